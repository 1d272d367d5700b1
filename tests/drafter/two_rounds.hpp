// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "logits_of_rows.hpp"

namespace espalier_test {

// Returns a row as a sampler makes it at this temperature: at 0 the most probable token, the first of several, has all.
inline std::vector<double> at_temperature(std::vector<double> row, float temperature) {
  if (temperature == 0) {
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    std::fill(row.begin(), row.end(), 0.0);
    row[static_cast<std::size_t>(best)] = 1;
    return row;
  }
  for (double& x : row)
    x = std::pow(x, 1.0 / static_cast<double>(temperature));
  return espalier::testing::normalised(row);
}

// Checks that two rounds with a drafter write the distribution of a target, enumerated over all random numbers.
// target_rows(text) gives the target's row at temperature 1. Returns how many drafted tokens all second rounds accepted.
template <class DrafterT, class PolicyT, class VerifierT>
int accepted_of_two_rounds(std::int32_t vocab, const espalier::testing::tiny_model::row_function& target_rows,
                           const std::vector<espalier::token_id>& prompt, float temperature, DrafterT&& drafter,
                           const PolicyT& policy, const VerifierT& verifier) {
  namespace testing = espalier::testing;
  constexpr std::size_t n = 3;
  const testing::tiny_model::row_function after_prompt = [&](std::span<const espalier::token_id> path) {
    std::vector<espalier::token_id> text = prompt;
    text.insert(text.end(), path.begin(), path.end());
    return at_temperature(target_rows(text), temperature);
  };
  testing::text_distribution expected, emitted, distribution;
  testing::continue_with(after_prompt, {}, 1.0, n, expected);
  espalier::text_backend target(vocab, logits_of_rows{target_rows});
  espalier::token_kv kv(16);
  auto decode = espalier::make_decoder(drafter, policy, verifier, kv, target,
                                       {.text = {.sampling = {.temperature = temperature}}});
  int accepted = 0;
  espalier::enumerating_chance chance;
  do {
    decode.begin(prompt, {.max_tokens = 5});
    decode.step_with(chance);
    decode.step_with(chance);
    accepted += decode.last_round().accepted();
    const auto written = decode.current().written();
    emitted[{written.begin(), written.end()}] += chance.probability();
  } while (chance.next());
  for (const auto& [text, probability] : emitted)
    testing::continue_with(after_prompt, text, probability, n, distribution);
  INFO("temperature " << temperature);
  CHECK(testing::largest_difference(distribution, expected).size() < 1e-12);
  return accepted;
}

}  // namespace espalier_test
