// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/counted.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/processor/forced_tokens.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/processor/minimum_length.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/processor/processors.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

namespace {

using tokens = std::vector<token_id>;
using all_processors = processors<penalties, banned_sequences, minimum_length, forced_tokens, logit_bias>;

constexpr std::int32_t vocab = 11;
constexpr models::text_model model{.seed = 5};  // the target of two_models
const tokens prompt{3, 1, 4, 1, 5};

// Unlike ones; the last changes nothing.
std::vector<all_processors> some() {
  const double never = -std::numeric_limits<double>::infinity();
  return {
      all_processors(penalties({.repetition = 1.2, .frequency = 0.8}), {}, {}, {}, {}),
      all_processors(penalties(), banned_sequences({{1, 2}, {7}, {4, 4, 4}}, vocab), minimum_length(9, {0, 10}, vocab),
                     {}, {}),
      all_processors(penalties({.presence = 1.5}), {}, {}, forced_tokens({8, 8, 2}, vocab),
                     logit_bias({{5, 2.5}, {6, never}}, vocab)),
      all_processors(),
  };
}

// Plain decoding, written down independently: the model's row, then the processor's.
tokens write_plain(all_processors process, int n) {
  tokens text(prompt);
  std::vector<float> z(vocab);
  process.begin(prompt);
  for (int i = 0; i < n; ++i) {
    model(text, z);
    process.process({}, std::span(z));
    text.push_back(static_cast<token_id>(std::max_element(z.begin(), z.end()) - z.begin()));
    process.commit(std::span(text).last(1));
  }
  return text;
}

template <class DrafterT, class PolicyT, class VerifierT>
auto decoder_of(two_models<>& m, DrafterT&& drafter, PolicyT policy, VerifierT verifier, decoder_options options,
                all_processors process = {}) {
  return make_decoder(std::forward<DrafterT>(drafter), policy, verifier, m.kv, m.target, options, process);
}

}  // namespace

TEST_CASE("greedy texts with a processor are those of plain decoding, whatever is drafted") {
  for (const all_processors& process : some()) {
    two_models<> m;
    const tokens expected = write_plain(process, 60);
    const auto check = [&](auto&& drafter, auto policy) {
      auto decode = decoder_of(m, drafter, policy, greedy(), {}, process);
      decode.begin(prompt, {.max_tokens = 60});
      CHECK(run(decode) == expected);
      decode.begin(prompt, {.max_tokens = 60});  // what was written before is forgotten
      CHECK(run(decode) == expected);
    };
    check(m.drafter(), plain());
    check(m.drafter(), chain({.length = 4}));
    check(m.drafter(), best_first({.budget = 12, .max_depth = 5}));
    check(prompt_lookup(), chain({.length = 6}));
  }
}

TEST_CASE("a draft that is the target is always accepted with a processor") {
  for (const all_processors& process : some()) {
    two_models<> m;
    m.draft = counted_backend(vocab, model);
    auto decode = decoder_of(m, m.drafter(), chain({.length = 4}), greedy(), {}, process);
    decode.begin(prompt, {.max_tokens = 60});
    while (decode.step())
      CHECK(decode.last_round().accepted() == std::min(4, decode.last_round().tree.n_draws));
  }
}

TEST_CASE("texts of a batch decoder have processors of their own, and are what they are alone") {
  const auto check = [](auto policy, auto verifier, const sampling_options& sampling) {
    std::vector<tokens> expected;
    const auto list = some();
    for (const all_processors& process : list) {
      two_models<> m;
      auto decode = decoder_of(m, m.drafter(), policy, verifier, {});
      decode.begin(prompt, {.max_tokens = 40}, {.sampling = sampling, .seed = 3}, process);
      expected.push_back(run(decode));
    }
    CHECK(expected[0] != expected[3]);
    two_models<> m;
    auto decode = make_batch_decoder(m.drafter(), policy, verifier, m.kv, m.target, {.max_texts = 2}, list[0]);
    const text_options options{.sampling = sampling, .seed = 3};
    decode.add(prompt, {.max_tokens = 40}, options);
    decode.add(prompt, {.max_tokens = 40}, options, {.processor = list[1]});
    decode.add(prompt, {.max_tokens = 40}, options, {.policy = policy, .processor = list[2]});
    decode.add(prompt, {.max_tokens = 40}, options, {.policy = policy, .processor = list[3]});
    decode.add(prompt, {.max_tokens = 40}, options, {.policy = policy});
    expected.push_back(expected[0]);  // without one of its own, the decoder's
    std::map<text_id, tokens> texts;
    for (int step = 0; !decode.idle(); ++step) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        if (e.round.state != status::running) texts[e.id] = copy(decode.current(e.id).tokens());
      }
      if (step == 3) {  // the second text goes on elsewhere
        const auto saved = decode.save(1);
        two_models<> other;
        auto alone = decoder_of(other, other.drafter(), policy, verifier, {});
        alone.load(saved);
        CHECK(run(alone) == expected[1]);
        std::vector<std::byte> bytes;
        saved.write(bytes);
        saved_text<decltype(policy), all_processors> read{{}, policy, false, list[1]};
        read.read(bytes);
        alone.load(read);
        CHECK(run(alone) == expected[1]);
      }
    }
    for (const auto& [id, text] : texts)
      CHECK(text == expected[static_cast<std::size_t>(id)]);
  };
  check(best_first({.budget = 8, .max_depth = 4}), greedy(), {});
  check(delayed(), traversal(), {.temperature = 1});
  check(chain(), target_only(), {.temperature = 0.8F});
}

namespace {

// After so many tokens of the text it leaves nothing, or what is no number.
struct breaking {
  std::size_t after = 1 << 20;
  float with = 0;
  std::size_t written = 0;

  void begin(std::span<const token_id>) { written = 0; }
  void commit(std::span<const token_id> more) { written += more.size(); }
  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    if (written + path.size() >= after) std::fill(logits.begin(), logits.end(), static_cast<NumberT>(with));
  }
};

}  // namespace

TEST_CASE("a text of which a processor leaves nothing ends there, and others go on") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float with : {-infinity, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t after : {0U, 1U, 7U, 12U}) {
      two_models<> m;
      const auto expected = write_plain({}, 30);
      auto decode = make_batch_decoder(m.drafter(), best_first({.budget = 8, .max_depth = 4}), greedy(), m.kv, m.target,
                                       {.max_texts = 2}, breaking());
      decode.add(prompt, {.max_tokens = 30}, {}, {.processor = breaking{after, with}});
      decode.add(prompt, {.max_tokens = 30}, {});
      int ends = 0;
      while (!decode.idle()) {
        for (const text_event& e : decode.step()) {
          REQUIRE(!e.error);
          if (e.round.state == status::running) continue;
          ++ends;
          CHECK(e.round.state == (e.id == 0 ? status::nothing_allowed : status::length));
        }
      }
      CHECK(ends == 2);
      CHECK(copy(decode.current(0).tokens()) == tokens(expected.begin(), expected.begin() + 5 + std::ptrdiff_t(after)));
      CHECK(copy(decode.current(1).tokens()) == expected);
      // It can go on, as any text that has ended.
      decode.resume(0, tokens{2}, {.max_tokens = 3});
      while (!decode.idle())
        decode.step();
      CHECK(decode.current(0).written().size() == std::min<std::size_t>(after, 3));
    }
  }
  two_models<> m;
  auto alone = make_decoder(m.drafter(), chain(), target_only(), m.kv, m.target,
                            {.text = {.sampling = {.temperature = 1}}}, breaking{3, -infinity});
  std::size_t shown = 0;
  alone.generate(prompt, {.max_tokens = 30}, [&](const round_record& r) { shown += r.committed.size(); });
  CHECK(alone.current().state() == status::nothing_allowed);
  CHECK((shown == 3 && alone.current().written().size() == 3));
}

TEST_CASE("runs are cut before a token that is not allowed, so no row is paid for it") {
  two_models<> m;
  const tokens repeats{1, 2, 3, 4, 1, 2, 3, 4, 1, 2};
  auto decode = make_decoder(prompt_lookup(), chain({.length = 6}), greedy(), m.kv, m.target, {},
                             banned_sequences({{3, 4}}, vocab));
  decode.begin(repeats, {.max_tokens = 1 << 10});
  decode.step();
  REQUIRE(decode.last_round().tree.n_nodes == 2);
  CHECK(decode.last_round().tree.token[1] == 3);
}

TEST_CASE("what a processor prescribes is drafted where a run is asked for, unless one that is found is as long") {
  two_models<> m;
  // 7 three times, of which the text knows nothing.
  auto decode = make_decoder(prompt_lookup(), chain({.length = 6}), greedy(), m.kv, m.target, {},
                             forced_tokens({7, 7, 7}, vocab));
  decode.begin(prompt, {.max_tokens = 1 << 10});
  decode.step();
  const tree_view tree = decode.last_round().tree;
  CHECK(tokens(tree.token + 1, tree.token + tree.n_nodes) == tokens{7, 7, 7});
  CHECK(decode.last_round().accepted() == 3);
  // No token that the target does not know.
  decode.begin(prompt, {.max_tokens = 20}, {}, forced_tokens({7, 11}, vocab + 1));
  decode.step();
  CHECK(decode.last_round().tree.n_nodes == 2);
}

TEST_CASE("what a processor prescribes is worth rows where a run without a match would not be") {
  two_models<> m;
  auto decode = make_decoder(prompt_lookup(), cost_aware({.budget = 6, .draft_cost = 0, .row_cost = 0.3}), greedy(),
                             m.kv, m.target, {}, forced_tokens({7, 7, 7}, vocab));
  decode.begin(prompt, {.max_tokens = 1 << 10});
  decode.step();
  CHECK(decode.last_round().tree.n_nodes == 4);
}

namespace {

// Has a guess at the first two tokens, and forbids 3 as the third.
struct guesses_two {
  std::size_t written = 0;
  void begin(std::span<const token_id>) { written = 0; }
  void commit(std::span<const token_id> more) { written += more.size(); }
  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    if (!allows(path, 3)) logits[3] = -std::numeric_limits<NumberT>::infinity();
  }
  bool allows(std::span<const token_id> path, token_id token) const { return token != 3 || written + path.size() != 2; }
  std::optional<token_id> prescribed(std::span<const token_id> path) const {
    if (written + path.size() < 2) return 9;
    return std::nullopt;
  }
};

}  // namespace

TEST_CASE("a guess is drafted where no run is found that is as long") {
  const auto drafted = [](const tokens& text) {
    two_models<> m;
    auto decode = make_decoder(prompt_lookup(), chain({.length = 6}), greedy(), m.kv, m.target, {}, guesses_two());
    decode.begin(text, {.max_tokens = 1 << 10});
    decode.step();
    const tree_view tree = decode.last_round().tree;
    return tokens(tree.token + 1, tree.token + tree.n_nodes);
  };
  CHECK(drafted({1, 2, 4}) == tokens{9, 9});
  CHECK(drafted({1, 2, 4, 5, 1}) == tokens{2, 4, 5, 1, 2, 4});
  CHECK(drafted({1, 2, 4, 3, 1}) == tokens{2, 4});  // cut, and as long
  CHECK(drafted({2, 3, 1, 2}) == tokens{3, 1, 2, 3, 1, 2});
  CHECK(drafted({2, 4, 3, 2}) == tokens{4, 3, 2, 4, 3, 2});
}

TEST_CASE("log-probabilities are of the processed row") {
  two_models<> m;
  auto decode = make_decoder(m.drafter(), chain(), greedy(), m.kv, m.target, {.text = {.seed = 1, .log_probs = 2}},
                             logit_bias({{6, 1e6}}, vocab));
  decode.begin(prompt, {.max_tokens = 3});
  decode.step();
  for (const scored_token& t : decode.last_round().log_probs) {
    CHECK((t.token == 6 && t.log_prob == Approx(0).margin(1e-6)));
    CHECK(t.best[0].token == 6);
  }
}

TEST_CASE("a block's rows pass through the processor by node") {
  struct block {
    std::vector<float> z;
    void begin(std::span<const token_id>) {}
    void commit(tree_view, verdict) {}
    void reserve(std::int32_t) {}
    std::int32_t capacity() const { return 400; }
    std::int32_t vocab_size() const { return vocab; }
    std::int32_t block_length() const { return 3; }
    vocab_rows<float> propose_block() {
      z.assign(3 * vocab, 0);
      for (std::size_t i = 0; i < 3; ++i)
        z[i * vocab + 4] = 9, z[i * vocab + 5] = 8;
      return {z.data(), 3, vocab};
    }
  };
  two_models<> m;
  auto decode = make_decoder(factorised(block{}), chain({.length = 3}), greedy(), m.kv, m.target, {},
                             banned_sequences({{4, 4}, {5, 4}}, vocab));
  decode.begin(prompt, {.max_tokens = 20});
  decode.step();
  const tree_view tree = decode.last_round().tree;
  REQUIRE(tree.n_nodes == 4);
  CHECK(tokens(tree.token + 1, tree.token + 4) == tokens{5, 5, 5});
}

TEST_CASE("rounds with processors allocate nothing once warm") {
  two_models<> m;
  m.kv = m.draft_kv = token_kv(400);
  auto decode = make_decoder(m.drafter(), best_first({.budget = 8, .max_depth = 4}), target_only(), m.kv, m.target,
                             {.text = {.sampling = {.temperature = 1}, .seed = 1}}, some()[1]);
  decode.begin(prompt, {.max_tokens = 300});
  for (int i = 0; i < 20; ++i)
    decode.step();
  const allocation_count count;
  for (int i = 0; i < 20; ++i)
    decode.step();
  CHECK(count.so_far() == 0);
}
