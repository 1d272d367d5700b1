// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "arguments.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/registry.hpp"
#include "on_device.hpp"

namespace generate {

//! A way to write, by the names of its parts in the registry.
struct pairing {
  std::string method;
  std::string verifier;
};

//! Whether a drafter gives runs of tokens without probabilities.
constexpr bool is_sequence(drafter_kind drafter) {
  return drafter == drafter_kind::prompt_lookup || drafter == drafter_kind::ngram;
}

//! The names of the methods that a drafter can do with, where they are to run, in the registry's order.
inline std::vector<std::string> methods_over(drafter_kind drafter, device_kind device) {
  if (device == device_kind::cuda) return methods_on_device(drafter);
  std::vector<std::string> names;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    using policy_type = typename PartT::type;
    constexpr bool takes_runs = espalier::TreePolicy<policy_type, espalier::prompt_lookup, espalier::philox_chance>;
    if (takes_runs || !is_sequence(drafter)) names.emplace_back(part.name);
  });
  return names;
}

namespace detail {

// The higher, the more of a method's drafts the verifier accepts where texts are drawn, as far as a default needs to know.
template <class PolicyT, class VerifierT>
constexpr int preference() {
  if (std::is_same_v<VerifierT, espalier::target_only>) return espalier::drafts<PolicyT> ? 1 : 3;
  if (std::is_same_v<VerifierT, espalier::traversal>) return 2;
  if (std::is_same_v<VerifierT, espalier::traversal_without_replacement>) return 2;
  return 0;
}

inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace detail

//! The verifiers that are lossless for a method's trees, the one to take by default first; without those that only write the
//! most probable text, where texts are drawn.
inline std::vector<std::string> verifiers_for(const std::string& method, bool draws_text) {
  std::vector<std::string> names;
  int best = -1;
  espalier::for_each_compatible_pair([&]<class PolicyT, class VerifierT>(const PolicyT& policy, const VerifierT& part) {
    if (policy.name != method) return;
    constexpr bool argmax_only = espalier::is_argmax_only<typename VerifierT::type>;
    if (argmax_only && draws_text) return;
    const int preference = argmax_only ? 9 : detail::preference<typename PolicyT::type, typename VerifierT::type>();
    names.insert(preference > best ? names.begin() : names.end(), std::string(part.name));
    best = (std::max)(best, preference);
  });
  return names;
}

//! The methods whose trees a verifier is lossless for.
inline std::vector<std::string> methods_for(const std::string& verifier) {
  std::vector<std::string> names;
  espalier::for_each_compatible_pair([&](const auto& policy, const auto& part) {
    if (part.name == verifier) names.emplace_back(policy.name);
  });
  return names;
}

//! The methods that are meant where none is named: to compare all, else the best for the temperature.
inline std::vector<std::string> default_methods(const arguments& arguments) {
  if (arguments.compare) return methods_over(arguments.drafter, arguments.device);
  if (is_sequence(arguments.drafter)) return {"chain"};
  if (arguments.drafter == drafter_kind::block) return {"best-first"};
  return {arguments.target.sampling.temperature > 0 ? "delayed" : "dynatree"};
}

//! What to write with: each method of the arguments with each verifier of theirs that is lossless for it, or with its default.
//!
//! Errors      usage_error where a method that was named has no verifier among those that were, or asks for probabilities that
//!             the drafter does not have
inline std::vector<pairing> pairings(const arguments& arguments) {
  const bool draws_text = arguments.target.sampling.temperature > 0;
  const std::vector<std::string> possible = methods_over(arguments.drafter, arguments.device);
  std::vector<pairing> found;
  for (const std::string& method : arguments.methods.empty() ? default_methods(arguments) : arguments.methods) {
    if (std::find(possible.begin(), possible.end(), method) == possible.end()) {
      if (arguments.device == device_kind::cuda) {
        throw usage_error(fmt::format("--method {} with --drafter {} does not run on --device cuda: {} do.", method,
                                      espalier::name_of(arguments.drafter), detail::listed(possible)));
      }
      throw usage_error(
          fmt::format("--method {} asks for probabilities, which --drafter {} does not have: it goes with {}.", method,
                      espalier::name_of(arguments.drafter), detail::listed(possible)));
    }
    const std::vector<std::string> lossless = verifiers_for(method, false);
    std::size_t n = 0;
    for (const std::string& verifier : arguments.verifiers) {
      if (std::find(lossless.begin(), lossless.end(), verifier) == lossless.end()) continue;
      found.push_back({method, verifier});
      ++n;
    }
    if (arguments.verifiers.empty()) {
      found.push_back({method, verifiers_for(method, draws_text).front()});
    } else if (n == 0 && !(arguments.compare && arguments.methods.empty())) {
      const std::string& verifier = arguments.verifiers.front();
      throw usage_error(fmt::format(
          "--verifier {0} would change the distribution of the text with --method {1}: {0} goes with {2}; {1} "
          "goes with {3}.",
          verifier, method, detail::listed(methods_for(verifier)), detail::listed(lossless)));
    }
  }
  return found;
}

}  // namespace generate
