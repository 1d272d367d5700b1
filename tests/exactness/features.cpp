// SPDX-License-Identifier: BSL-1.0
// Trees over a head on the target's hidden states, by enumeration: two rounds of a whole decoder write the target's
// distribution to 1e-12, every pair of the registry. The head's rows depend on the target's states and on its own
// along the path, and have 0 for the tokens that it does not know.
#include <boost/hana.hpp>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "drafter/feature_model.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "exactness/any_parts.hpp"
#include "exactness/tiny_options.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

const std::vector<token_id> prompt{0, 1, 0};

// A target with a world's rows, whose hidden state of a row is a number of the row's token and position.
struct states_of_world {
  struct logits_type {
    tiny_model::row_function row;
    void operator()(std::span<const token_id> text, std::span<double> logits) const {
      const std::vector<double> p = row(text.subspan(std::min(prompt.size(), text.size())));
      for (std::size_t t = 0; t < p.size(); ++t)
        logits[t] = std::log(p[t]);
    }
  };
  text_backend<logits_type> model;
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

}  // namespace

TEST_CASE("two rounds over a head on hidden states write the target's distribution to 1e-12: every pair") {
  constexpr std::size_t n = 3;
  int pairs = 0, drafted = 0;
  std::int64_t outcomes = 0;
  for (const tiny_model& w : tiny_models()) {
    const bool has_zeros = w.name == "zeros in p, vocabulary 3";
    if (!has_zeros && w.name != "unlike, vocabulary 2") continue;
    text_distribution expected, greedily_expected;
    continue_with(w.target, {}, 1.0, n, expected);
    continue_with(argmax_only(w.target), {}, 1.0, n, greedily_expected);
    for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
      using policy_type = typename std::decay_t<decltype(policy)>::type;
      constexpr bool greedily = ArgmaxVerifier<typename std::decay_t<decltype(verifier)>::type>;
      INFO(policy.name << " with " << verifier.name << ", " << w.name);
      auto part = policy;
      part.options = tiny(policy.options).back();
      feature_model<double> head{.vocab = w.vocab, .positions = 16, .seed = 5};
      if (has_zeros) head.few = {0, 2};
      states_of_world target{text_backend(w.vocab, states_of_world::logits_type{w.target})};
      token_kv kv(16, pairs++ % 2 == 0 ? commit_mode::compact : commit_mode::truncate);
      feature_steps drafter(head);
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
  std::cout << "two rounds over a head: " << pairs << " pairs and models, " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
  CHECK(drafted > 1000);
}
