// SPDX-License-Identifier: BSL-1.0
// What a text is written with belongs to the text, not to where it is served.
#include <set>
#include <vector>

#include "catch.hpp"
#include "decoder/counted.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6};
constexpr sampling_options sampling{.temperature = 1.1F, .top_k = 9};

template <class DecoderT>
std::vector<token_id> write(DecoderT& decode, const text_options& options) {
  decode.begin(prompt, {.max_tokens = 40}, options);
  return run(decode);
}

}  // namespace

TEST_CASE("equal options give equal texts, whatever decoder, sequence, chunk, order and texts before") {
  const text_options options{.sampling = sampling, .seed = 17, .stream = 4};
  two_models first;
  auto reference = first.decoder(delayed(), traversal());
  const std::vector<token_id> expected = write(reference, options);
  two_models m;
  for (const std::int32_t sequence : {0, 1, 2}) {
    for (const std::int32_t chunk : {1, 5, 64}) {
      for (const node_order order : {node_order::insertion, node_order::depth_first, node_order::heavy_path}) {
        auto decode = m.decoder(delayed(), traversal(),
                                {.text = {.sampling = {.temperature = 0.3F}, .seed = 1, .stream = 9},
                                 .order = order,
                                 .sequence = sequence,
                                 .prefill_rows = chunk});
        CHECK(write(decode, options) == expected);
        CHECK(write(decode, {.sampling = sampling, .seed = 18, .stream = 4}) != expected);
        CHECK(write(decode, options) == expected);
      }
    }
  }
}

TEST_CASE("two requests without a seed differ, and each can be written again") {
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), {.text = {.sampling = sampling}});
  std::set<std::uint64_t> seeds;
  std::set<std::vector<token_id>> texts;
  for (int i = 0; i < 6; ++i) {
    decode.begin(prompt, {.max_tokens = 40});
    const std::vector<token_id> text = run(decode);
    const std::uint64_t seed = decode.current().seed();
    seeds.insert(seed);
    texts.insert(text);
    CHECK(decode.current().options().seed == seed);
    CHECK(write(decode, {.sampling = sampling, .seed = seed}) == text);
  }
  CHECK(seeds.size() == 6);
  CHECK(texts.size() == 6);
}

TEST_CASE("two requests with one seed are equal, those of other streams differ") {
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), {.text = {.sampling = sampling, .seed = 5}});
  const auto generate = [&] { return copy(decode.generate(prompt, {.max_tokens = 40})); };
  const std::vector<token_id> text = generate();
  CHECK(generate() == text);
  std::set<std::vector<token_id>> texts;
  for (std::uint32_t stream = 0; stream < 6; ++stream)
    texts.insert(write(decode, {.sampling = sampling, .seed = 5, .stream = stream}));
  CHECK(texts.size() == 6);
}

TEST_CASE("a text that goes on draws anew in each turn, with its own options") {
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), {.text = {.sampling = {.temperature = 0.1F}, .seed = 1}});
  const text_options options{.sampling = sampling, .seed = 5, .stream = 3};
  std::set<std::vector<token_id>> written;
  write(decode, options);
  for (int turn = 0; turn < 3; ++turn) {
    decode.resume(prompt, {.max_tokens = 40});
    CHECK(decode.current().round() == 0);
    run(decode);
    written.insert(copy(decode.current().written()));
    CHECK(decode.current().options().stream == 3);
    CHECK(decode.current().seed() == 5);
  }
  CHECK(written.size() == 3);
}

TEST_CASE("the draws are those of the text's seed, stream and length") {
  two_models m;
  auto decode = m.decoder(delayed(), traversal());
  const text_options options{.sampling = sampling, .seed = 5, .stream = 3};
  const std::vector<token_id> text = write(decode, options);
  decode.begin(prompt, {.max_tokens = 40}, options);
  while (decode.current().running()) {
    philox_chance chance(5, 3, static_cast<std::uint32_t>(decode.current().size()));
    REQUIRE(decode.step_with(chance));
  }
  CHECK(copy(decode.current().tokens()) == text);
}

TEST_CASE("what target_only writes depends on the seed, not on what is drafted") {
  two_models m;
  const text_options options{.sampling = sampling, .seed = 5, .stream = 3};
  auto undrafted = m.decoder(plain(), target_only());
  const std::vector<token_id> text = write(undrafted, options);
  auto drawn = m.decoder(delayed(), target_only());
  CHECK(write(drawn, options) == text);
  CHECK(drawn.current().round() < undrafted.current().round());
  auto ranked = m.decoder(dynatree(), target_only());
  CHECK(write(ranked, options) == text);
}
