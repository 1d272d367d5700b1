// SPDX-License-Identifier: BSL-1.0
// Texts that are longer than the cache: what is drafted over a window that slides changes nothing.
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "decoder/windowed_tokens.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using models::text_model;

namespace {

using tokens = std::vector<token_id>;

constexpr std::int32_t vocab = 11;
constexpr std::int32_t length = 150;
constexpr sink_window_options small{.sinks = 2, .window = 9, .block = 5, .scratch = 64};
constexpr sink_window_options smaller{.sinks = 1, .window = 4, .block = 3, .scratch = 256};
const tokens short_prompt{3, 1, 4, 1}, long_prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2};

sink_window_options with(sink_window_options o, commit_mode mode) {
  o.commit = mode;
  return o;
}

// Target and draft over windows of their own.
template <class DraftKVT = windowed_tokens>
struct windowed_models {
  explicit windowed_models(const sink_window_options& window, DraftKVT draft_window, std::int32_t n_sequences = 1)
      : kv(window, n_sequences),
        draft_kv(std::move(draft_window)),
        target(vocab, text_model{.seed = 5}),
        draft(vocab, text_model{.seed = 5, .noise = 0.15}) {}

  template <class PolicyT, class VerifierT>
  auto decoder(PolicyT policy, VerifierT verifier, const decoder_options& options) {
    return make_decoder(drafter(), std::move(policy), std::move(verifier), kv, target, options);
  }
  auto drafter() { return autoregressive<counted_backend&, DraftKVT&>(draft, draft_kv, {.temperature = 1}); }

  windowed_tokens kv;
  DraftKVT draft_kv;
  counted_backend target, draft;
};

decoder_options sampled(float temperature, std::int32_t chunk = 64) {
  return {.text = {.sampling = {.temperature = temperature}, .seed = 8}, .prefill_rows = chunk};
}

template <class PolicyT, class VerifierT>
tokens write(PolicyT policy, VerifierT verifier, const tokens& prompt, const decoder_options& options,
             const sink_window_options& window = small, const sink_window_options& draft_window = smaller) {
  windowed_models m(window, windowed_tokens(draft_window));
  auto decode = m.decoder(policy, verifier, options);
  decode.begin(prompt, {.max_tokens = length});
  return run(decode);
}

// Plain decoding through window_of.
tokens written_greedily(tokens text) {
  const auto end = text.size() + length;
  std::vector<float> logits(vocab);
  while (text.size() < end) {
    text_model{.seed = 5}(window_of(text, small), logits);
    text.push_back(static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  return text;
}

delayed trees() {
  return delayed({.paths = 3, .trunk = 2, .length = 3});
}

dynatree few() {
  return dynatree({.budget = 24});
}

cost_aware priced() {
  return cost_aware({.budget = 12, .draft_cost = 0.01, .row_cost = 0.001});
}

}  // namespace

TEST_CASE("over a window, greedy and target_only write what plain decoding writes, however the window slides") {
  for (const tokens& prompt : {short_prompt, long_prompt, tokens{7}}) {
    const tokens greedily = written_greedily(prompt), drawn = write(plain(), target_only(), prompt, sampled(1));
    CHECK(drawn != greedily);
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      for (const std::int32_t chunk : {64, 3}) {
        INFO("a prompt of " << prompt.size() << " in chunks of " << chunk << ", commit " << name_of(mode));
        const auto check = [&](auto policy, auto verifier, float temperature) {
          CHECK(write(policy, verifier, prompt, sampled(temperature, chunk), with(small, mode), with(smaller, mode)) ==
                (temperature == 0 ? greedily : drawn));
        };
        check(plain(), target_only(), 0);
        check(few(), greedy(), 0);
        check(trees(), traversal(), 0);
        check(chain({.length = 7}), target_only(), 0);
        check(chain({.length = 7}), target_only(), 1);
        check(priced(), target_only(), 1);
      }
    }
  }
}

TEST_CASE("a text over a window does not depend on how it is served") {
  const auto check = [](auto policy, auto verifier) {
    for (const tokens& prompt : {short_prompt, long_prompt}) {
      const tokens expected = write(policy, verifier, prompt, sampled(1));
      REQUIRE(expected.size() == prompt.size() + length);
      CHECK(write(policy, verifier, prompt, sampled(1, 5)) == expected);
      for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
        INFO("commit " << name_of(mode));
        CHECK(write(policy, verifier, prompt, sampled(1), with(small, mode), with(smaller, mode)) == expected);

        // Every few rounds in other caches, or after a failure in these.
        windowed_models m(with(small, mode), windowed_tokens(with(smaller, mode)));
        windowed_models n(with(small, mode), windowed_tokens(with(smaller, mode)));
        auto first = m.decoder(policy, verifier, sampled(1)), second = n.decoder(policy, verifier, sampled(1));
        first.begin(prompt, {.max_tokens = length});
        bool in_first = true;
        for (int round = 0; (in_first ? first : second).current().running(); ++round) {
          auto& decode = in_first ? first : second;
          auto& backend = round % 2 == 0 ? (in_first ? m : n).target : (in_first ? m : n).draft;
          backend.fails = round % 3 == 0;
          try {
            decode.step();
          } catch (const std::runtime_error&) {
          }
          backend.fails = false;
          decode.step();
          if (round % 50 != 49) continue;
          (in_first ? second : first).load(decode.save());
          in_first = !in_first;
        }
        CHECK(copy((in_first ? first : second).current().tokens()) == expected);
      }
    }
  };
  check(trees(), traversal());
  check(priced(), target_only());
}

TEST_CASE("a batch writes over windows what a decoder writes") {
  const auto check = [](auto policy, auto verifier, float temperature) {
    const auto requests = many::requests(5, {.temperature = temperature});
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      windowed_models alone(small, windowed_tokens(smaller));
      auto decode_alone = alone.decoder(policy, verifier, {});
      windowed_models m(with(small, mode), windowed_tokens(with(smaller, mode), 3), 3);
      auto decode = make_batch_decoder(m.drafter(), policy, verifier, m.kv, m.target, {.max_texts = 3});
      for (const many::request& r : requests)
        many::add(decode, r);
      for (const auto& [id, text] : many::run_all(decode)) {
        INFO("text " << id << ", commit " << name_of(mode));
        const many::request& r = requests[static_cast<std::size_t>(id)];
        decode_alone.begin(r.prompt, r.stop(), r.options);
        CHECK(text == run(decode_alone));
      }
    }
  };
  check(trees(), traversal(), 1);
  check(priced(), target_only(), 1);
}

TEST_CASE("a draft without a window stops where its cache ends, and the text goes on") {
  const tokens expected = written_greedily(short_prompt);
  windowed_models m(small, token_kv(40));
  auto decode = m.decoder(few(), greedy(), sampled(0));
  decode.begin(short_prompt, {.max_tokens = length});
  int drafted = 0;
  while (decode.step()) {
    if (decode.current().size() > 60) drafted = std::max(drafted, decode.last_round().tree.n_draws);
  }
  CHECK(drafted == 0);
  CHECK(copy(decode.current().tokens()) == expected);
}

TEST_CASE("a window's draft tells what its model says at the last two tokens, on either side of a slide") {
  const text_model model{.seed = 9};
  counted_backend draft(vocab, model);
  const auto row_of = [&](std::span<const token_id> text) {
    std::vector<float> logits(vocab), row(vocab);
    model(window_of(text, smaller), logits);
    sampler(sampling_options{.temperature = 1}).probabilities(logits, row, 0);
    return row;
  };
  const auto is = [](std::span<const float> a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  for (std::size_t n = 2; n <= long_prompt.size(); ++n) {
    windowed_tokens kv(smaller);
    autoregressive<counted_backend&, windowed_tokens&> drafter(draft, kv);
    drafter.keep_states();
    drafter.reserve(4);
    const std::span<const token_id> text = std::span(long_prompt).first(n);
    const node_id root[] = {root_node};
    tree<> t(4);
    for (int turn = 0; turn < 2; ++turn) {  // the second time the cache holds it all, or must read it again
      drafter.begin(text);
      t.reset(text.back());
      drafter.propose(t.view(), root);
      INFO(n << " tokens");
      CHECK(is(drafter.root_state().row, row_of(text)));
      CHECK(is(drafter.previous_state().row, row_of(text.first(n - 1))));
    }
  }
}

TEST_CASE("log-probabilities of a prompt that the window slides over do not depend on its chunks") {
  const auto scores = [](std::int32_t chunk) {
    windowed_models m(small, windowed_tokens(smaller));
    auto options = sampled(1, chunk);
    options.text.log_probs = 0;
    options.text.prompt_log_probs = true;
    auto decode = m.decoder(chain(), target_only(), options);
    decode.begin(long_prompt, {.max_tokens = 30});
    std::vector<std::pair<token_id, float>> all;
    while (decode.step()) {
      for (const scored_token& s : decode.last_round().log_probs)
        all.emplace_back(s.token, s.log_prob);
    }
    return all;
  };
  const auto expected = scores(1);
  CHECK(expected.size() == long_prompt.size() - 1 + 30);
  CHECK(scores(4) == expected);
  CHECK(scores(64) == expected);
}

TEST_CASE("rounds over a window allocate nothing, however long the text") {
  windowed_models m(small, windowed_tokens(smaller));
  auto decode = m.decoder(few(), greedy(), sampled(0));
  std::int64_t n_allocated = -1;
  for (int turn = 0; turn < 2; ++turn) {  // the first makes the backend's memory as large as it gets
    decode.begin(short_prompt, {.max_tokens = 3000});
    decode.step();
    const allocation_count allocations;
    while (decode.step()) {
    }
    n_allocated = allocations.so_far();
  }
  CHECK(n_allocated == 0);
  CHECK(decode.current().size() == 3004);
  CHECK(m.kv.held(0) < m.kv.capacity());
}

TEST_CASE("a window without room for what is drafted, or longer than the model, is refused") {
  windowed_models m({.sinks = 2, .window = 9, .block = 5, .scratch = 4}, windowed_tokens(smaller));
  CHECK(says(message_of<option_error>([&] { m.decoder(chain({.length = 5}), target_only(), sampled(0)); }),
             "scratch is 4"));
  CHECK_NOTHROW(m.decoder(chain({.length = 4}), target_only(), sampled(0)));
  windowed_models n(small, windowed_tokens({.window = 9, .block = 5, .scratch = 3}));
  CHECK(says(message_of<option_error>([&] { n.decoder(chain({.length = 4}), target_only(), sampled(0)); }),
             "scratch is 3"));

  struct positioned : counted_backend {
    std::int32_t max_positions() const { return 40; }
  } backend{counted_backend(vocab, {})};
  CHECK(says(message_of<option_error>([&] { context_length(backend, n.kv); }), "have 80 positions"));
  CHECK(context_length(backend, windowed_tokens({.window = 20, .block = 10, .scratch = 6})) == 1 << 30);
}
