// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/registry/chosen_verifier.hpp"

// The verifier of a pair of the registry, as the type that all verifiers for the policy's trees share: so a test of all
// pairs compiles one decoder a policy. It has the options of the registry.
template <class PolicyPartT, class VerifierPartT>
auto verifier_of(const PolicyPartT&, const VerifierPartT& verifier) {
  constexpr espalier::regime sampling = PolicyPartT::type::sampling;
  static_assert(espalier::compatible(sampling, VerifierPartT::type::lossless));
  return espalier::chosen_verifier<sampling>(verifier.name);
}
