// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/tree_policy/any_policy.hpp"

// The policy as the type that all policies of its regime share over a draft model, so that a test of many policies
// compiles one decoder for each regime.
template <class PolicyT>
auto untyped(PolicyT policy) {
  using takes = espalier::takes<espalier::sampled_rows<float>, espalier::philox_chance>;
  return espalier::any_policy<PolicyT::sampling, takes>(std::move(policy));
}
