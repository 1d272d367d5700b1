// SPDX-License-Identifier: BSL-1.0
// Two texts that share rounds, by enumeration: whatever the one writes, the other is distributed as the target alone
// writes, wherever one of them joins or leaves, shared budget included.
#include <cmath>
#include <iostream>
#include <map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/batch_laws.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

coverage all;

template <class PolicyT, class VerifierT>
void check(PolicyT policy, VerifierT verifier) {
  all += check_batch(policy, verifier);
}

template <class PolicyT, class VerifierT>
void check_runs(PolicyT policy, VerifierT verifier) {
  all += check_batch(policy, verifier, [](auto&, auto&) { return prompt_lookup(); });
}

}  // namespace

TEST_CASE("two texts that share rounds are each the target's, and independent of each other") {
  check(delayed({.paths = 2, .trunk = 1, .length = 0}), traversal());
  check(delayed({.paths = 2, .trunk = 0, .length = 1}), specinfer());
  check(dyspec_greedy({.budget = 2}), residual_walk());
  check(sampled_chain({.length = 2}), block_verification());
  check(cost_aware({.budget = 2, .draft_cost = 0.01, .row_cost = 0.001}), target_only());
  check_runs(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.001}), target_only());
  check_runs(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.1}), target_only());
  check(cost_aware_draws({.budget = 2, .draft_cost = 0.01, .row_cost = 0.001}), residual_walk());
  check(cost_aware_draws({.budget = 2, .draft_cost = 0.3, .row_cost = 0.1}), traversal_without_replacement());
  std::cout << "two texts of a batch decoder: " << all.n_outcomes << " outcomes, 0 failing\n";
  CHECK(all.n_outcomes > 10000);
}
