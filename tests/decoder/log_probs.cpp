// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/log_probs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/composition.hpp"
#include "decoder/counted.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr models::text_model model{.seed = 5};
constexpr std::size_t vocab = 11;
constexpr double tolerance = 1e-6;  // of the exponentials

std::vector<token_id> some_prompt(std::int32_t n) {
  std::vector<token_id> tokens;
  for (std::int32_t i = 0; i < n; ++i)
    tokens.push_back(i * i % 11);
  return tokens;
}

// Of the raw logits after a text, in double.
std::vector<double> log_probs_after(std::span<const token_id> text) {
  std::vector<float> logits(vocab);
  model(text, logits);
  double sum = 0;
  for (const float x : logits)
    sum += std::exp(static_cast<double>(x));
  std::vector<double> out;
  for (const float x : logits)
    out.push_back(static_cast<double>(x) - std::log(sum));
  return out;
}

// Whether these are of the tokens of a text from place `first` on, with the k best of each place.
void require_scores(std::span<const scored_token> scores, std::span<const token_id> text, std::size_t first,
                    std::size_t k) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::vector<double> expected = log_probs_after(text.first(first + i));
    REQUIRE(scores[i].token == text[first + i]);
    REQUIRE(std::abs(scores[i].log_prob - expected[static_cast<std::size_t>(text[first + i])]) < tolerance);
    REQUIRE(scores[i].best.size() == std::min(k, vocab));
    std::vector<token_id> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](token_id a, token_id b) {
      return expected[static_cast<std::size_t>(a)] > expected[static_cast<std::size_t>(b)];
    });
    for (std::size_t j = 0; j < scores[i].best.size(); ++j) {
      const token_log_prob best = scores[i].best[j];
      REQUIRE(best.token == order[j]);
      REQUIRE(std::abs(best.log_prob - expected[static_cast<std::size_t>(order[j])]) < tolerance);
      if (best.token == scores[i].token) REQUIRE(best.log_prob == scores[i].log_prob);
    }
  }
}

// Writes a text and looks at the scores of each round; gives how many there were of the prompt.
template <class DecoderT>
std::size_t check_scores(DecoderT& decode, std::size_t k, std::size_t next) {
  std::size_t of_prompt = 0;
  while (decode.step()) {
    const round_record& r = decode.last_round();
    const auto tokens = decode.current().tokens();
    if (r.committed.empty()) {
      require_scores(r.log_probs, tokens, next, k);
      next += r.log_probs.size();
      of_prompt += r.log_probs.size();
    } else {
      REQUIRE(r.log_probs.size() == r.committed.size());
      require_scores(r.log_probs, tokens, tokens.size() - r.committed.size(), k);
    }
  }
  return of_prompt;
}

template <class PolicyT, class VerifierT>
void check_pair(PolicyT policy, VerifierT verifier, float temperature) {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const std::int32_t length : {1, 8, 100}) {
      for (const std::int32_t k : {0, 1, 3, 20}) {
        for (const std::int32_t chunk : {3, 64}) {
          two_models m(model, mode, mode);
          auto decode = m.decoder(policy, verifier, {.order = node_order::heavy_path, .prefill_rows = chunk});
          text_options options{.sampling = {.temperature = temperature, .top_k = temperature > 0 ? 7 : 0},
                               .seed = 4,
                               .log_probs = k,
                               .prompt_log_probs = true};
          const std::vector<token_id> prompt = some_prompt(length);
          for (int time = 0; time < 2; ++time) {  // also with a filled cache
            decode.begin(prompt, {.max_tokens = 25}, options);
            const std::size_t n = check_scores(decode, static_cast<std::size_t>(k), 1);
            REQUIRE(n == prompt.size() - 1);
          }
          const std::vector<token_id> text = copy(decode.current().tokens());
          // Scores change nothing of the text, and the prompt's are not told where they are not asked for.
          options.prompt_log_probs = false;
          decode.begin(prompt, {.max_tokens = 25}, options);
          REQUIRE(check_scores(decode, static_cast<std::size_t>(k), 1) == 0);
          REQUIRE(copy(decode.current().tokens()) == text);
          options.log_probs = -1;
          options.prompt_log_probs = true;
          decode.begin(prompt, {.max_tokens = 25}, options);
          while (decode.step())
            REQUIRE(decode.last_round().log_probs.empty());
          REQUIRE(copy(decode.current().tokens()) == text);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("log-probabilities are those of the raw logits, for every kind of tree, store and chunk") {
  for_each_policy([](auto policy, const char* name) {
    INFO(name);
    check_pair(policy, greedy(), 0);
  });
  check_pair(delayed(), traversal(), 1);
  check_pair(dyspec_greedy(), residual_walk(), 0.6F);
  check_pair(chain(), target_only(), 1.5F);
}

TEST_CASE("the tokens of each turn are scored, whatever was read before") {
  for (const std::int32_t chunk : {4, 64}) {
    two_models m(model);
    auto decode = m.decoder(chain(), target_only(), {.prefill_rows = chunk});
    const text_options options{.sampling = {.temperature = 1}, .seed = 2, .log_probs = 2, .prompt_log_probs = true};
    decode.begin(some_prompt(30), {.max_tokens = 9}, options);
    REQUIRE(check_scores(decode, 2, 1) == 29);
    for (const std::int32_t n : {0, 1, 20}) {
      const std::size_t before = decode.current().tokens().size();
      decode.resume(some_prompt(n), {.max_tokens = 9});
      m.count(before + static_cast<std::size_t>(n));
      REQUIRE(check_scores(decode, 2, before) == static_cast<std::size_t>(n));
      REQUIRE(m.target.text_rows == n + 1);
    }
  }
}

TEST_CASE("a prompt that is scored alone, in parts, and given up in between") {
  for (int steps = 0; steps < 9; ++steps) {
    two_models m(model);
    auto decode = m.decoder(chain(), greedy(), {.prefill_rows = 4});
    decode.begin(some_prompt(30), {.max_tokens = 0}, {.log_probs = 1, .prompt_log_probs = true});
    std::size_t scored = 0;
    for (int i = 0; i < steps && decode.step(); ++i) {
      require_scores(decode.last_round().log_probs, decode.current().tokens(), 1 + scored, 1);
      scored += decode.last_round().log_probs.size();
    }
    // Another decoder reads the whole text meanwhile: that spares no score.
    auto other = m.decoder(chain(), greedy());
    other.begin(some_prompt(40), {.max_tokens = 0});
    run(other);
    decode.resume(some_prompt(5), {.max_tokens = 0});
    scored += check_scores(decode, 1, 1 + scored);
    CHECK(scored == 34);
  }
}

TEST_CASE("a chunk whose scores fail is scored again") {
  two_models m(model);
  auto decode = m.decoder(chain(), greedy(), {.prefill_rows = 4});
  decode.begin(some_prompt(20), {.max_tokens = 5}, {.log_probs = 1, .prompt_log_probs = true});
  decode.step();
  std::size_t scored = decode.last_round().log_probs.size();
  m.target.fails = true;
  REQUIRE_THROWS_AS(decode.step(), std::runtime_error);
  m.target.fails = false;
  scored += check_scores(decode, 1, 1 + scored);
  CHECK(scored == 19);
}

TEST_CASE("tokens of probability 0 have a log-probability of minus infinity, and are none of the best") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  log_probs<double> scores;
  scores.reserve(2, 3, 4);
  const std::vector<double> row{1, -infinity, 1, -infinity};
  scores.add(row, 1, 0);
  scores.add(row, 2, 1);
  REQUIRE(scores.tokens().size() == 2);
  CHECK(scores.tokens()[0].log_prob == -infinity);
  CHECK(std::abs(scores.tokens()[1].log_prob - std::log(0.5)) < 1e-15);
  for (const scored_token& s : scores.tokens()) {
    REQUIRE(s.best.size() == 2);
    CHECK(s.best[0].token == 0);
    CHECK(s.best[1].token == 2);
  }
  scores.clear();
  CHECK(scores.tokens().empty());
  CHECK_THROWS_AS(scores.add(std::vector<double>(4, -infinity), 0, 0), numeric_error);
}

TEST_CASE("rounds that tell log-probabilities do not allocate") {
  two_models m(model);
  auto decode = m.decoder(chain(), greedy());
  decode.begin(some_prompt(8), {.max_tokens = 200}, {.log_probs = 5});
  for (int i = 0; i < 20; ++i)
    decode.step();  // the backends of these tests take memory
  const allocation_count count;
  while (decode.step()) {
  }
  CHECK(count.so_far() == 0);
}
