// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>
#include <type_traits>

#include "espalier/registry.hpp"

// Options of the same part that make trees small enough for thousands of texts.
template <class OptionsT>
OptionsT small(OptionsT options) {
  espalier::for_each_option(options, []<class ValueT>(const auto& option, ValueT& value) {
    const auto set = [&](std::string_view name, int to) {
      if constexpr (std::is_arithmetic_v<ValueT>) {
        if (option.name == name) value = static_cast<ValueT>(to);
      }
    };
    set("paths", 3);
    set("trunk", 1);
    set("length", 2);
    set("budget", 6);
    set("max_depth", 2);
  });
  return options;
}

// Whether the trees of a policy are drawn, and not chosen.
template <class PolicyT>
inline constexpr bool draws =
    espalier::drafts<PolicyT> && !espalier::compatible(PolicyT::sampling, espalier::regime::deterministic);

// Calls f(policy, verifier), two parts, for every pair of the registry whose trees are drawn and whose verifier
// samples.
template <class FunctionT>
void for_each_sampled_pair(const FunctionT& f) {
  espalier::for_each_compatible_pair(
      [&]<class PolicyT, class VerifierT>(const PolicyT& policy, const VerifierT& verifier) {
        if constexpr (draws<typename PolicyT::type> && !espalier::ArgmaxVerifier<typename VerifierT::type>)
          f(policy, verifier);
      });
}
