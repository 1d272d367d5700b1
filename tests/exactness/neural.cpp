// SPDX-License-Identifier: BSL-1.0
// A tree that is chosen by what is known at the root leaves the target's distribution alone, whatever chooses: every
// outcome, with its exact probability.
#include <array>
#include <bit>
#include <boost/hana/for_each.hpp>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/testing/lossless.hpp"
#include "logits_of_rows.hpp"

using namespace espalier;
using namespace espalier::testing;
namespace hana = boost::hana;

namespace {

// The text so far plays the part of a hidden state.
constexpr std::int32_t hidden_numbers = 2;

// Chooses among small trees by all that it is shown.
struct arbitrary_selector {
  std::array<delayed_options, 5> trees = {{{.paths = 1, .trunk = 0, .length = 0},
                                           {.paths = 3, .trunk = 0, .length = 1},
                                           {.paths = 2, .trunk = 1, .length = 1},
                                           {.paths = 1, .trunk = 2, .length = 0},
                                           {.paths = 2, .trunk = 0, .length = 2}}};
  std::uint64_t seed = 0;
  std::set<std::int32_t>* chosen = nullptr;
  int* calls = nullptr;

  std::int32_t target_hidden_size() const { return hidden_numbers; }
  std::int32_t draft_hidden_size() const { return hidden_numbers; }

  std::int32_t choose(const selector_features& features) {
    std::uint64_t key = seed;
    const auto take = [&](std::span<const float> numbers) {
      for (const float x : numbers)
        key = mixed(key ^ std::bit_cast<std::uint32_t>(x));
    };
    take(features.scalars);
    take(features.target_hidden);
    take(features.draft_hidden_prev);
    take(features.draft_hidden_root);
    const std::int32_t action = delayed_action::number(trees[static_cast<std::size_t>(key % trees.size())]);
    if (chosen != nullptr) chosen->insert(action);
    if (calls != nullptr) ++*calls;
    return action;
  }
};

// A model whose hidden state of a row is a hash of the text.
struct stateful_backend {
  text_backend<logits_of_rows> inner;
  std::vector<float> hidden{};

  std::int32_t vocab_size() const { return inner.vocab_size(); }
  auto forward(token_kv& kv, forward_batch_view batch) {
    const auto logits = inner.forward(kv, batch);
    hidden.clear();
    for (std::int32_t row = 0; row < batch.n_rows(); ++row) {
      const auto i = static_cast<std::size_t>(row);
      const auto key =
          static_cast<std::uint64_t>(batch.tokens[i]) * 1000 + static_cast<std::uint64_t>(batch.positions[i]);
      for (std::int32_t k = 0; k < hidden_numbers; ++k)
        hidden.push_back(static_cast<float>(mixed_unit(key * 7 + static_cast<std::uint64_t>(k))));
    }
    return logits;
  }
  std::int32_t hidden_size() const { return hidden_numbers; }
  std::span<const float> hidden_state(std::int32_t row) const {
    return std::span(hidden).subspan(static_cast<std::size_t>(row * hidden_numbers), hidden_numbers);
  }
};

// Calls f(part) for each verifier that is lossless for independent draws and samples.
template <class FunctionT>
void for_each_sampling_verifier(const FunctionT& f) {
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(regime::iid, verifier_type::lossless) && !ArgmaxVerifier<verifier_type>) f(part);
  });
}

// Two rounds of a decoder; the first has the fallback's tree, the second the selector's.
template <class MakeT>
void require_the_targets_distribution(std::size_t n, const MakeT& make, int rounds, std::int64_t& outcomes) {
  const std::vector<token_id> prompt{0, 0, 0};
  for (const tiny_model& w : tiny_models()) {
    if (w.vocab > 3) continue;
    text_distribution expected;
    continue_with(w.target, {}, 1.0, n, expected);
    for_each_sampling_verifier([&](const auto& verifier) {
      INFO(verifier.name << ", " << w.name);
      token_kv kv(24), draft_kv(24);
      stateful_backend target{{w.vocab, logits_of_rows{w.target, prompt.size()}}};
      stateful_backend draft{{w.vocab, logits_of_rows{w.draft, prompt.size()}}};
      autoregressive drafter(draft, draft_kv, {.temperature = 1});
      auto decode = make_decoder(drafter, make(), chosen_verifier<regime::iid>(verifier.name), kv, target,
                                 {.text = {.sampling = {.temperature = 1}}});
      text_distribution emitted, distribution;
      enumerating_chance chance;
      do {
        decode.begin(prompt, {.max_tokens = 12});
        for (int i = 0; i < rounds; ++i)
          decode.step_with(chance);
        const auto written = decode.current().written();
        emitted[{written.begin(), written.end()}] += chance.probability();
        ++outcomes;
      } while (chance.next());
      for (const auto& [text, probability] : emitted)
        continue_with(w.target, text, probability, n, distribution);
      REQUIRE(largest_difference(distribution, expected).size() < 1e-12);
    });
  }
}

const cost_model costs{"", "", "", cost_curve::linear(1, 0.1), cost_curve::linear(10, 1)};

}  // namespace

TEST_CASE(
    "a chosen tree leaves the target's distribution alone: every verifier of independent draws, two rounds of a "
    "decoder") {
  std::int64_t outcomes = 0;
  std::set<std::int32_t> chosen;
  int calls = 0;
  // The first round drafts one token, so that the second stands in different contexts.
  for (const std::uint64_t seed : {1U, 2U}) {
    require_the_targets_distribution(
        4,
        [&] {
          return neural_delayed({.paths = 1, .trunk = 1, .length = 0},
                                arbitrary_selector{.seed = seed, .chosen = &chosen, .calls = &calls}, costs);
        },
        2, outcomes);
  }
  std::cout << "chosen trees: " << outcomes << " outcomes, " << chosen.size() << " different trees, 0 failing\n";
  CHECK(outcomes > 10000);
  CHECK(chosen.size() == 5);
}

TEST_CASE("a selector that is asked in each of three rounds") {
  std::int64_t outcomes = 0;
  int calls = 0;
  require_the_targets_distribution(
      4,
      [&] {
        arbitrary_selector selector{.calls = &calls};
        selector.trees.fill({.paths = 1, .trunk = 0, .length = 0});
        selector.trees[1] = {.paths = 2, .trunk = 0, .length = 1};
        return neural_delayed({.paths = 1, .trunk = 0, .length = 0}, selector, costs);
      },
      3, outcomes);
  CHECK(outcomes > 1000);
  CHECK(calls > 1000);
}

TEST_CASE("without a selector the tree is the options', and delayed's") {
  coverage report;
  const tiny_model w = tiny_models()[0];
  const neural_delayed<> policy({.paths = 2, .trunk = 1, .length = 1});
  CHECK(policy.max_nodes() == 3);
  const auto with_it = round_distribution(w, delayed({.paths = 2, .trunk = 1, .length = 1}), specinfer(), report);
  CHECK(largest_difference(round_distribution(w, policy, specinfer(), report), with_it).size() == 0);
}
