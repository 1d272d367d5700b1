// SPDX-License-Identifier: BSL-1.0
#include "pairings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cstddef>
#include <type_traits>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/registry.hpp"
#include "on_device.hpp"

namespace generate {

namespace {

namespace hana = boost::hana;

// A number that is higher the more of a method's drafts the verifier accepts in drawn texts, as precise as a default
// needs.
template <class VerifierT>
constexpr int preference(bool drafts) {
  if (std::is_same_v<VerifierT, espalier::target_only>) return drafts ? 1 : 3;
  if (std::is_same_v<VerifierT, espalier::traversal>) return 2;
  if (std::is_same_v<VerifierT, espalier::traversal_without_replacement>) return 2;
  return 0;
}

// A list of names that puts the preferred one first, and leaves the others in the registry's order.
class ranking {
 public:
  void add(std::string_view name, int preference) {
    names_.insert(preference > best_ ? names_.begin() : names_.end(), std::string(name));
    best_ = (std::max)(best_, preference);
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  int best_ = -1;
};

template <class PolicyT>
known_method described(std::string_view name) {
  constexpr bool drafts = espalier::drafts<PolicyT>;
  ranking all, sampling;
  hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    using verifier_type = typename PartT::type;
    if (!espalier::compatible(PolicyT::sampling, verifier_type::lossless)) return;
    constexpr bool argmax_only = espalier::ArgmaxVerifier<verifier_type>;
    all.add(part.name, argmax_only ? 9 : preference<verifier_type>(drafts));
    if (!argmax_only) sampling.add(part.name, preference<verifier_type>(drafts));
  });
  return {.name = name,
          .drafts = drafts,
          .draws = !espalier::compatible(PolicyT::sampling, espalier::regime::deterministic),
          .takes_runs = espalier::TreePolicy<PolicyT, espalier::prompt_lookup, espalier::philox_chance>,
          .verifiers = all.take(),
          .sampling_verifiers = sampling.take()};
}

// The names of the methods that can use a drafter on a device, in the registry's order.
std::vector<std::string> methods_over(drafter_kind drafter, device_kind device) {
  if (device == device_kind::cuda) return methods_on_device(drafter);
  std::vector<std::string> names;
  for (const known_method& method : known_methods())
    if (method.takes_runs || !is_sequence(drafter)) names.emplace_back(method.name);
  return names;
}

// The names of the methods for whose trees a verifier is lossless.
std::vector<std::string> methods_for(const std::string& verifier) {
  std::vector<std::string> names;
  for (const known_method& method : known_methods())
    if (std::count(method.verifiers.begin(), method.verifiers.end(), verifier) > 0) names.emplace_back(method.name);
  return names;
}

// The methods if none is named: all to compare, else the best one for the temperature.
std::vector<std::string> default_methods(const arguments& arguments) {
  if (arguments.compare) return methods_over(arguments.drafter, arguments.device);
  if (arguments.drafter == drafter_kind::block) return {"best-first"};
  // The best method for models that come together is known. For others it follows from measured passes, on the host.
  const bool on_host = arguments.device == device_kind::cpu;
  if (is_sequence(arguments.drafter)) return {on_host ? "cost-aware" : "chain"};
  if (on_host && !arguments.models.draft.empty()) return {"cost-aware"};
  return {arguments.target.text.sampling.temperature > 0 ? "delayed" : "dynatree"};
}

}  // namespace

const std::vector<known_method>& known_methods() {
  static const std::vector<known_method> methods = [] {
    std::vector<known_method> found;
    hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
      found.push_back(described<typename PartT::type>(part.name));
    });
    return found;
  }();
  return methods;
}

const known_method& find_method(std::string_view name) {
  for (const known_method& method : known_methods())
    if (method.name == name) return method;
  throw usage_error(fmt::format("there is no method {}.", name));
}

const std::string& default_verifier(std::string_view method, bool draws_text) {
  const known_method& known = find_method(method);
  return (draws_text ? known.sampling_verifiers : known.verifiers).front();
}

std::vector<pairing> pairings(const arguments& arguments) {
  const bool draws_text = arguments.target.text.sampling.temperature > 0;
  const std::vector<std::string> possible = methods_over(arguments.drafter, arguments.device);
  std::vector<pairing> found;
  for (const std::string& method : arguments.methods.empty() ? default_methods(arguments) : arguments.methods) {
    if (std::find(possible.begin(), possible.end(), method) == possible.end()) {
      if (arguments.device == device_kind::cuda) {
        throw usage_error(fmt::format("--method {} with --drafter {} does not run on --device cuda: {} do.", method,
                                      espalier::name_of(arguments.drafter), listed(possible)));
      }
      throw usage_error(
          fmt::format("--method {} asks for probabilities, which --drafter {} does not have: it goes with {}.", method,
                      espalier::name_of(arguments.drafter), listed(possible)));
    }
    if (arguments.verifiers.empty()) {
      found.push_back({method, default_verifier(method, draws_text)});
      continue;
    }
    const std::vector<std::string>& lossless = find_method(method).verifiers;
    std::size_t n = 0;
    for (const std::string& verifier : arguments.verifiers) {
      if (std::find(lossless.begin(), lossless.end(), verifier) == lossless.end()) continue;
      found.push_back({method, verifier});
      ++n;
    }
    if (n == 0 && !(arguments.compare && arguments.methods.empty())) {
      const std::string& verifier = arguments.verifiers.front();
      throw usage_error(fmt::format(
          "--verifier {0} would change the distribution of the text with --method {1}: {0} goes with {2}; {1} "
          "goes with {3}.",
          verifier, method, listed(methods_for(verifier)), listed(lossless)));
    }
  }
  return found;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace generate
