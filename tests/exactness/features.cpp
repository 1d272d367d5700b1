// SPDX-License-Identifier: BSL-1.0
// Trees over a head on the target's hidden states, and over blocks whose rows are corrected by path, by enumeration: two
// rounds of a whole decoder write the target's distribution to 1e-12, every pair of the registry. The head's rows depend
// on the target's states and on its own along the path, and have 0 for the tokens that it does not know; the blocks'
// have 0 for tokens without a column, and one kind for those that it does not choose among.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "drafter/conditioned_drafters.hpp"
#include "drafter/feature_model.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "exactness/any_parts.hpp"
#include "exactness/tiny_options.hpp"
#include "logits_of_rows.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

const std::vector<token_id> prompt{0, 1, 0};

// A target with a world's rows, whose hidden state of a row is a number of the row's token and position.
struct states_of_world {
  text_backend<logits_of_rows> model;
  std::vector<float> states{};

  std::int32_t vocab_size() const { return model.vocab_size(); }
  vocab_rows<double> forward(token_kv& kv, forward_batch_view batch) {
    states.clear();
    for (std::size_t i = 0; i < batch.tokens.size(); ++i)
      states.push_back(static_cast<float>(3 * batch.tokens[i]) + static_cast<float>(batch.positions[i]) / 2);
    return model.forward(kv, batch);
  }
  std::span<const float> hidden(int, int row) const {
    return std::span<const float>(states).subspan(static_cast<std::size_t>(row), 1);
  }
};

// Checks two rounds over the drafter that make(world) returns, for every pair and two worlds.
template <class MakeT>
void check_two_rounds(const char* what, const MakeT& make) {
  constexpr std::size_t n = 3;
  int pairs = 0, drafted = 0;
  std::int64_t outcomes = 0;
  for (const tiny_model& w : tiny_models()) {
    if (w.name != "zeros in p, vocabulary 3" && w.name != "unlike, vocabulary 2") continue;
    text_distribution expected, greedily_expected;
    continue_with(w.target, {}, 1.0, n, expected);
    continue_with(argmax_only(w.target), {}, 1.0, n, greedily_expected);
    for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
      using policy_type = typename std::decay_t<decltype(policy)>::type;
      constexpr bool greedily = ArgmaxVerifier<typename std::decay_t<decltype(verifier)>::type>;
      INFO(policy.name << " with " << verifier.name << ", " << w.name);
      auto part = policy;
      part.options = tiny(policy.options).back();
      states_of_world target{text_backend(w.vocab, logits_of_rows{w.target, prompt.size()})};
      token_kv kv(16, pairs++ % 2 == 0 ? commit_mode::compact : commit_mode::truncate);
      auto drafter = make(w);
      auto decode = make_decoder(drafter, enumerated_policy<policy_type::sampling>(part.make()),
                                 any_verifier<lazy_rows<double>>(verifier.make()), kv, target,
                                 {.text = {.sampling = {.temperature = greedily ? 0.0F : 1.0F}}});
      text_distribution emitted, distribution;
      enumerating_chance chance;
      do {
        decode.begin(prompt, {.max_tokens = 5});
        decode.step_with(chance);
        decode.step_with(chance);
        drafted += decode.last_round().accepted();
        const auto written = decode.current().written();
        emitted[{written.begin(), written.end()}] += chance.probability();
        ++outcomes;
      } while (chance.next());
      for (const auto& [text, probability] : emitted)
        continue_with(greedily ? argmax_only(w.target) : w.target, text, probability, n, distribution);
      REQUIRE(largest_difference(distribution, greedily ? greedily_expected : expected).size() < 1e-12);
    });
  }
  std::cout << "two rounds over " << what << ": " << pairs << " pairs and models, " << outcomes
            << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
  CHECK(drafted > 1000);
}

// A world's draft as a block drafter: the row of a depth follows the text and some tokens of the last number.
template <class BlockT>
BlockT block_of(const tiny_model& w) {
  return {w.vocab, 2, [&w](std::span<const token_id> text, std::int32_t place) {
            std::vector<token_id> path(text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end());
            path.insert(path.end(), static_cast<std::size_t>(place), w.vocab - 1);
            std::vector<double> row = w.draft(path);
            for (double& p : row)
              p = std::log(p);
            return row;
          }};
}

// A world's draft model with columns for some tokens alone.
struct narrow_model {
  text_backend<logits_of_rows> model;
  std::vector<token_id> few;
  std::vector<double> logits{};

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::span<const token_id> tokens() const { return few; }
  vocab_rows<double> forward(token_kv& kv, forward_batch_view batch) {
    const vocab_rows<double> all = model.forward(kv, batch);
    logits.clear();
    for (std::int32_t row = 0; row < all.n_rows; ++row) {
      for (const token_id token : few)
        logits.push_back(all.row(row)[static_cast<std::size_t>(token)]);
    }
    return {logits.data(), all.n_rows, static_cast<std::int32_t>(few.size())};
  }
};

}  // namespace

TEST_CASE(
    "two rounds over a draft model of some tokens' columns write the target's distribution to 1e-12: every pair") {
  check_two_rounds("a draft model of some tokens' columns", [](const tiny_model& w) {
    narrow_model model{text_backend(w.vocab, logits_of_rows{w.draft, prompt.size()}), {0, w.vocab > 2 ? 2 : 1}};
    return autoregressive(std::move(model), token_kv(16));
  });
}

TEST_CASE("two rounds over a head on hidden states write the target's distribution to 1e-12: every pair") {
  check_two_rounds("a head", [](const tiny_model& w) {
    feature_model<double> head{.vocab = w.vocab, .positions = 16, .seed = 5};
    if (w.vocab > 2) head.few = {0, 2};
    return feature_steps(std::move(head));
  });
}

TEST_CASE(
    "two rounds over a block of some tokens' columns, corrected by path, write the target's distribution to 1e-12: "
    "every pair") {
  check_two_rounds("a block of some tokens' columns", [](const tiny_model& w) {
    return factorised(block_of<narrow_drafter<refining_drafter<double>>>(w));
  });
}

TEST_CASE(
    "two rounds over a block that chooses among candidates write the target's distribution to 1e-12: every pair") {
  check_two_rounds("a block that chooses",
                   [](const tiny_model& w) { return factorised(block_of<choosing_drafter<double>>(w)); });
}
