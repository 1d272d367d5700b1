// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/decoder/text_processors.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "cuda/device_trees.cuh"
#include "cuda/sampling/rows.cuh"
#include "cuda/support.cuh"
#include "espalier/backend/text.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/concepts/processor.cuh"
#include "espalier/cuda/core/row_changes.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/registry.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/forced_tokens.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/processor/minimum_length.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/processor/processors.hpp"
#include "raises.hpp"
#include "verifier_of.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::device_text_backend;
using espalier_test::setting;
using espalier_test::written;

namespace {

constexpr std::int32_t vocab = 37;

// An automaton that can be made to throw.
struct fragile : token_automaton {
  int left;  // steps until it does

  fragile(const token_automaton& automaton, int steps) : token_automaton(automaton), left(steps) {}
  state_type advance(state_type state, token_id token) {
    if (left-- <= 0) raise<error>("the grammar is gone.");
    return token_automaton::advance(state, token);
  }
};

using all_processors =
    processors<logit_bias, penalties, minimum_length, banned_sequences, forced_tokens, constrained<fragile>>;

// Token 0 ends texts, or nothing does; the others are letters, and pairs of these.
vocabulary_trie letters(bool ends) {
  std::vector<std::string> pieces(vocab);
  for (int t = 1; t < vocab; ++t) {
    pieces[static_cast<std::size_t>(t)] = std::string(1, static_cast<char>('a' + (t - 1) % 12));
    if (t > 12) pieces[static_cast<std::size_t>(t)] += static_cast<char>('a' + t % 5);
  }
  return vocabulary_trie(pieces, ends ? std::vector<token_id>{0} : std::vector<token_id>{});
}

constrained<fragile> matching(const char* pattern, bool ends = true, int steps = 1 << 30) {
  return constrained<fragile>(fragile(regular_expression(pattern, letters(ends)), steps));
}

constrained<fragile> anything() {
  return {};
}

// Unlike ones, some of which leave nothing in the end; the last changes nothing.
std::vector<all_processors> some() {
  const double never = -std::numeric_limits<double>::infinity();
  return {
      all_processors(logit_bias({{5, 2.5}, {6, never}, {36, -0.3}, {5, 0.1}}, vocab), penalties(), {}, {}, {},
                     anything()),
      all_processors({}, penalties({.repetition = 1.3, .presence = 0.4, .frequency = 0.7}), {}, {}, {}, anything()),
      all_processors({}, penalties(), minimum_length(12, {2, 9}, vocab),
                     banned_sequences({{1, 2}, {7}, {4, 4, 4}}, vocab), forced_tokens({8, 8, 2}, vocab), anything()),
      all_processors({}, penalties(), {}, {}, {}, matching("(ab|c[d-h]*)+(i|jj)")),
      all_processors(logit_bias({{3, 1.5}}, vocab), penalties({.presence = 1.5}), minimum_length(9, {0}, vocab), {}, {},
                     matching("[a-l]{5,25}")),
      all_processors({}, penalties(), {}, {}, {}, matching("[a-f]{14}", false)),
      all_processors({}, penalties(), {}, {}, {}, matching("z")),
      all_processors({}, penalties(), {}, {}, {}, anything()),
  };
}

template <class DecoderT>
written text_of(DecoderT& decode, const setting& s, const all_processors& process) {
  written text;
  decode.begin(s.prompt, s.stop, s.options.text, process);
  while (decode.step()) {
    const auto committed = decode.last_round().committed;
    text.rounds.emplace_back(committed.begin(), committed.end());
  }
  text.end = decode.current().state();
  return text;
}

template <class PolicyT, class VerifierT>
written host_text(const PolicyT& policy, const VerifierT& verifier, const setting& s, const all_processors& process) {
  text_backend target(s.vocab, s.target_law), draft(s.vocab, s.draft_law);
  token_kv kv(s.context), draft_kv(s.draft_context);
  auto decode = make_decoder(autoregressive(draft, draft_kv, s.draft), policy.make(), verifier_of(policy, verifier), kv,
                             target, s.options, process);
  return text_of(decode, s, process);
}

setting setting_of(bool draws) {
  setting s;
  s.stop = {.max_tokens = 40, .tokens = {0}};
  s.options.text.seed = 7;
  s.options.text.sampling.temperature = draws ? 1.0F : 0.0F;
  return s;
}

std::vector<token_id> tokens_of(const written& text) {
  std::vector<token_id> tokens;
  for (const auto& round : text.rounds)
    tokens.insert(tokens.end(), round.begin(), round.end());
  return tokens;
}

}  // namespace

TEST_CASE("What a processor lists for the device is what it does to a row") {
  static_assert(device::ListingProcessor<all_processors> && device::ListingProcessor<logit_bias> &&
                device::ListingProcessor<penalties> && device::ListingProcessor<minimum_length> &&
                device::ListingProcessor<banned_sequences> && device::ListingProcessor<forced_tokens> &&
                device::ListingProcessor<constrained<token_automaton>> && !device::ListingProcessor<no_processor>);
  std::mt19937 random(3);
  device::row_changes list(vocab);
  for (all_processors process : some()) {
    process.begin(std::vector<token_id>{3, 1, 4, 1, 5});
    for (int n = 0; n < 40; ++n) {
      std::vector<token_id> path(random() % 5);
      for (token_id& t : path)
        t = static_cast<token_id>(random() % vocab);
      std::vector<float> row(vocab);
      for (float& z : row)
        z = random() % 9 == 0 ? -INFINITY : static_cast<float>(random() % 1000) * 0.013F - 6.0F;
      std::vector<float> expected = row;
      process.process(path, std::span(expected));
      list.begin();
      process.changes(path, list);
      for (token_id t = 0; t < vocab; ++t) {
        float& z = row[static_cast<std::size_t>(t)];
        for (std::int32_t i = list.first_of(t); i >= 0; i = list.steps()[static_cast<std::size_t>(i)].next)
          z = list.steps()[static_cast<std::size_t>(i)].applied(z);
        if (list.is_masked() && !list.is_allowed(t)) z = -INFINITY;
      }
      CHECK(row == expected);
      if (n % 8 == 7) process.commit(std::vector<token_id>(1, static_cast<token_id>(random() % vocab)));
    }
  }
}

namespace {

int ended_early = 0;

template <class PolicyT, class VerifierT>
void compare(const PolicyT& policy, const VerifierT& verifier, std::int32_t context = 150) {
  setting s = setting_of(!ArgmaxVerifier<typename VerifierT::type>);
  s.context = s.draft_context = context;
  const auto list = some();
  for (const bool replay : {true, false}) {
    s.options.replay = replay;
    auto grown = device::make_on_device(policy);
    const std::int32_t rows = espalier_test::rows_for(grown);
    device_text_backend target(vocab, s.target_law, rows), draft(vocab, s.draft_law, rows);
    device::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
    auto decode = device::make_decoder(device::autoregressive(draft, draft_kv, s.draft), std::move(grown),
                                       verifier.make(), kv, target, s.options, list.back());
    for (std::size_t i = replay ? 0 : 5; i < (replay ? list.size() : 6); ++i) {
      INFO(policy.name << " with " << verifier.name << ", processor " << i);
      const written expected = host_text(policy, verifier, s, list[i]);
      CHECK(text_of(decode, s, list[i]) == expected);
      ended_early += expected.end == status::nothing_allowed ? 1 : 0;
      if (i == 5 && context > 30) CHECK(expected.end == status::nothing_allowed);
      if (i == 6) CHECK(tokens_of(expected).empty());
    }
  }
}

}  // namespace

TEST_CASE("Host and device write the same text with every processor, whatever the parts") {
  compare(part<chain, chain_options>{"chain", "", {.length = 4}}, part<greedy>{"greedy", ""});
  compare(part<dyspec_greedy, dyspec_greedy_options>{"dyspec-greedy", "", {.budget = 9}},
          part<residual_walk>{"residual-walk", ""});
  compare(part<iid_paths, iid_paths_options>{"iid-paths", "", {.paths = 3, .length = 3}},
          part<traversal>{"traversal", ""});
  // Where lists of what is asked about are longer than trees may be.
  compare(part<dyspec_greedy, dyspec_greedy_options>{"dyspec-greedy", "", {.budget = 9}},
          part<residual_walk>{"residual-walk", ""}, 12);
  CHECK(ended_early > 7);
}

namespace {

const part<chain, chain_options> chain_of_four{"chain", "", {.length = 4}};
const part<target_only> drawn{"target-only", ""};

struct many_texts {
  device_text_backend target{vocab, espalier_test::target_model, 3 * 6};
  device_text_backend draft{vocab, espalier_test::draft_model, 3 * 6};
  device::contiguous_kv<float> kv{1, 1, 3, 150}, draft_kv{1, 1, 3, 150};

  auto decoder(std::int32_t max_rows = 1 << 20) {
    return device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                      target_only(), kv, target,
                                      {.max_texts = 3, .max_rows = max_rows, .prefill_rows = 6},
                                      all_processors({}, penalties(), {}, {}, {}, anything()));
  }
};

}  // namespace

namespace {

// Allows every third token, or but a few, by the text's length.
struct every_third {
  static constexpr std::int32_t vocab = 9001;

  using state_type = int;
  std::vector<std::uint32_t> mask = std::vector<std::uint32_t>(280);  // the last tokens are beyond it

  int start() const { return 0; }
  int advance(int state, token_id) const { return state + 1; }
  std::span<const std::uint32_t> allowed(int state) {
    for (std::size_t t = 0; t < 32 * mask.size(); ++t) {
      const bool is_allowed = state == 3 ? t == 17 : state == 4 ? false : t % 3 == static_cast<std::size_t>(state) % 3;
      mask[t / 32] = (mask[t / 32] & ~(1U << t % 32)) | static_cast<std::uint32_t>(is_allowed) << t % 32;
    }
    return mask;
  }
};

template <class NumberT>
void check_rows() {
  constexpr std::int32_t size = every_third::vocab, nodes = 7;
  using processor = processors<penalties, logit_bias, constrained<every_third>>;
  const std::vector<token_id> text{5, 7, 2, 7};
  // A chain of five, and another child of the root.
  tree<> drafted(nodes - 1);
  drafted.reset(text.back());
  node_id u = root_node;
  for (int depth = 0; depth < 5; ++depth)
    u = drafted.append(u, 3 * depth + 2, -1);
  drafted.append(root_node, 40, -1);
  espalier_test::device_sequence on_device(drafted.view(), 4, nodes + 2);
  const auto tokens = espalier_test::to_device(text);
  device::text_batch texts = on_device.texts();
  texts.texts.tokens = tokens.data();
  const double never = -std::numeric_limits<double>::infinity();
  std::vector<token_bias> biases{{16, -1e9}, {17, never}, {2, 0.25}};
  for (token_id t = 100; t < size; t += 37)
    biases.push_back({t, 0.01 * t});
  espalier::text written;
  written.begin(text, {}, {}, 100, size);
  processor process(penalties({.repetition = 1.7, .frequency = 0.3}), logit_bias(biases, size),
                    constrained<every_third>(every_third{}));
  std::mt19937 random(5);
  std::vector<NumberT> rows(static_cast<std::size_t>(nodes * size));
  for (NumberT& z : rows)
    z = espalier_test::as<NumberT>(random() % 7 == 0 ? -INFINITY : static_cast<float>(random() % 4001) * 0.01F - 20);
  // After the node of depth 3, whose row is the third, token 17 alone is allowed.
  rows[2 * size + 17] = espalier_test::as<NumberT>(1);
  const auto logits = espalier_test::to_device(rows);
  const std::vector<std::int32_t> row_of{0, 6, 5, 2, 4, 3, 1};
  const auto rows_of_nodes = espalier_test::to_device(row_of);
  device::device_array<device::fault> found(1);
  found.fill_bytes(0, nullptr);
  device::detail::text_processors<processor> of_texts(nodes + 2, nodes, size, 1);
  of_texts.follow(0, written, process, nullptr);
  const std::int32_t place = 0;
  REQUIRE(of_texts.prepare(std::span(&place, 1)));
  of_texts.template run<NumberT>(texts, {nodes, rows_of_nodes.data(), nullptr, 0}, {logits.data(), nodes, size},
                                 found.data(), nullptr);
  const std::vector<NumberT> changed = espalier_test::to_host(logits);
  const auto ends = espalier_test::to_host(of_texts.ends(), nodes);
  process.begin(text);
  for (node_id v = 0; v < nodes; ++v) {
    std::vector<token_id> path;
    for (node_id a = v; a != root_node; a = drafted.view().parent[a])
      path.insert(path.begin(), drafted.view().token[a]);
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row_of[static_cast<std::size_t>(v)]) * size;
    const std::vector<NumberT> before(first, first + size);
    std::vector<float> expected = espalier_test::as_floats(std::span<const NumberT>(before));
    process.process(path, std::span(expected));
    const bool is_possible =
        std::any_of(expected.begin(), expected.end(), [](float z) { return z > -espalier_test::infinity; });
    CHECK(is_possible == (path.size() != 3 && path.size() != 4));
    CHECK(ends[static_cast<std::size_t>(v)] == (is_possible ? 0 : 1));
    bool is_same = true;
    for (std::int32_t t = 0; t < size; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const float wanted = espalier_test::as_float(is_possible ? espalier_test::as<NumberT>(expected[i]) : before[i]);
      const auto at = static_cast<std::size_t>(row_of[static_cast<std::size_t>(v)]) * size + i;
      is_same = is_same && espalier_test::as_float(changed[at]) == wanted;
    }
    INFO("node " << v);
    CHECK(is_same);
  }
  CHECK(espalier_test::to_host(found)[0].what == device::fault::kind::none);
}

}  // namespace

TEST_CASE("Rows change in place, in numbers of every kind, and those that would have no token left stay") {
  const int major = GENERATE(8, 9);
  const espalier_test::emulated_capability capability(major);
  check_rows<float>();
  if (major == 9) check_rows<__half>(), check_rows<__nv_bfloat16>();
}

TEST_CASE("A processor that has nothing left to do is not asked any more") {
  const std::vector<token_id> text{5, 9, 2};
  tree<> root(1);
  root.reset(9);
  espalier_test::device_sequence on_device(root.view(), 2);
  const auto tokens = espalier_test::to_device(text);
  device::text_batch texts = on_device.texts();
  texts.texts.tokens = tokens.data();
  espalier::text written;
  written.begin(std::span(text).first(1), {}, {}, 100, vocab);
  device::device_array<float> logits(vocab);
  logits.fill_bytes(0, nullptr);
  const auto row_of = espalier_test::to_device(std::vector<std::int32_t>{0});
  device::device_array<device::fault> found(1);
  device::detail::text_processors<forced_tokens> of_texts(2, 1, vocab, 1);
  of_texts.follow(0, written, forced_tokens({9, 2}, vocab), nullptr);
  const std::int32_t place = 0;
  // Rounds after the first and the second token, which are forced, and a last one.
  for (std::int32_t size = 1; size <= 3; ++size) {
    on_device.set(root.view(), size);
    CHECK(of_texts.prepare(std::span(&place, 1)));
    of_texts.run<float>(texts, {1, row_of.data(), nullptr, 0}, {logits.data(), 1, vocab}, found.data(), nullptr);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const auto row = espalier_test::to_host(logits);
    CHECK(std::count(row.begin(), row.end(), 0.0F) == (size == 3 ? vocab : 1));
    if (size < 3) CHECK(row[static_cast<std::size_t>(text[static_cast<std::size_t>(size)])] == 0);
    logits.fill_bytes(0, nullptr);
  }
  CHECK(!of_texts.prepare(std::span(&place, 1)));
}

TEST_CASE("Texts of a batch have processors of their own, and one that nothing may follow ends alone") {
  const setting s = setting_of(true);
  const auto list = some();
  many_texts models;
  // Passes have room for all trees, or trees are cut.
  auto decode = models.decoder(GENERATE(1 << 20, 8));
  std::map<text_id, std::vector<token_id>> told;
  std::vector<text_id> ids;
  const auto add = [&](std::size_t i) {
    ids.push_back(decode.add(s.prompt, s.stop, s.options.text, {.processor = list[i]}));
  };
  for (std::size_t i = 0; i + 2 < list.size(); ++i)
    add(i);
  for (int step = 0; !decode.idle(); ++step) {
    for (const text_event& e : decode.step()) {
      REQUIRE(!e.error);
      told[e.id].insert(told[e.id].end(), e.round.committed.begin(), e.round.committed.end());
      CHECK(decode.current(e.id).state() == e.round.state);
    }
    if (step == 2) add(6), add(7);
  }
  ids.push_back(decode.add(s.prompt, s.stop, s.options.text));  // with the decoder's
  while (!decode.idle()) {
    for (const text_event& e : decode.step())
      told[e.id].insert(told[e.id].end(), e.round.committed.begin(), e.round.committed.end());
  }
  for (std::size_t i = 0; i <= list.size(); ++i) {
    INFO("text " << i);
    const written expected = host_text(chain_of_four, drawn, s, list[std::min(i, list.size() - 1)]);
    CHECK(told[ids[i]] == tokens_of(expected));
    CHECK(decode.current(ids[i]).state() == expected.end);
  }
}

TEST_CASE("A text that nothing may follow can be resumed, and its constraint begins anew") {
  const setting s = setting_of(false);
  const all_processors process = some()[5];
  many_texts models;
  auto decode =
      device::make_decoder(device::autoregressive(models.draft, models.draft_kv), device::make_on_device(chain_of_four),
                           greedy(), models.kv, models.target, s.options, process);
  text_backend target(vocab, s.target_law), draft(vocab, s.draft_law);
  token_kv kv(s.context), draft_kv(s.context);
  auto expected = make_decoder(autoregressive(draft, draft_kv, s.draft), chain_of_four.make(), greedy(), kv, target,
                               s.options, process);
  const auto go_on = [&](auto& decoder) {
    decoder.generate(s.prompt, s.stop);
    CHECK(decoder.current().state() == status::nothing_allowed);
    decoder.resume(std::vector<token_id>{4, 2}, s.stop);
    while (decoder.step()) {
    }
    CHECK(decoder.current().state() == status::nothing_allowed);
    const auto tokens = decoder.current().tokens();
    return std::vector<token_id>(tokens.begin(), tokens.end());
  };
  CHECK(go_on(decode) == go_on(expected));
}

TEST_CASE("A processor that throws holds its text, and the others go on") {
  const setting s = setting_of(true);
  const auto list = some();
  const int steps = GENERATE(0, 1, 7, 23);
  CAPTURE(steps);
  many_texts models;
  auto decode = models.decoder();
  const text_id good = decode.add(s.prompt, s.stop, s.options.text, {.processor = list[4]});
  const text_id bad =
      decode.add(s.prompt, s.stop, s.options.text,
                 {.processor = all_processors({}, penalties(), {}, {}, {}, matching("[a-f]{30}", true, steps))});
  // Its prompt is read in passes of the others' rounds.
  setting later = s;
  for (token_id t = 0; t < 40; ++t)
    later.prompt.push_back(t % 11);
  const text_id reading = decode.add(later.prompt, later.stop, later.options.text, {.processor = list[1]});
  std::map<text_id, std::vector<token_id>> told;
  int failures = 0;
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      if (e.error) {
        CHECK(e.id == bad);
        ++failures;
        CHECK(message_of<error>([&] { std::rethrow_exception(e.error); }) == "the grammar is gone.");
      } else {
        told[e.id].insert(told[e.id].end(), e.round.committed.begin(), e.round.committed.end());
      }
    }
  }
  CHECK(failures == 1);
  CHECK(told[good] == tokens_of(host_text(chain_of_four, drawn, s, list[4])));
  CHECK(told[reading] == tokens_of(host_text(chain_of_four, drawn, later, list[1])));
}
