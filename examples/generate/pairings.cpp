// SPDX-License-Identifier: BSL-1.0
#include "pairings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "espalier/concepts/regime.hpp"
#include "on_device.hpp"

namespace generate {

namespace {

// A number that is higher the more of a method's drafts the verifier accepts in drawn texts, as precise as a default
// needs.
int preference(std::string_view verifier, bool drafts) {
  if (verifier == "target-only") return drafts ? 1 : 3;
  return verifier == "traversal" || verifier == "traversal-distinct" ? 2 : 0;
}

// The names of the methods that can use a drafter on a device, in the registry's order.
std::vector<std::string> methods_over(const arguments& arguments) {
  if (arguments.device == device_kind::cuda) return methods_on_device(arguments.drafter);
  std::vector<std::string> names;
  for (const auto& method : arguments.parts.methods)
    if (method->takes_rows || !method->drafts) names.emplace_back(method->name);
  return names;
}

// The names of the methods for whose trees a verifier is lossless.
std::vector<std::string> methods_for(const parts& offered, const std::string& verifier) {
  std::vector<std::string> names;
  for (const auto& method : offered.methods) {
    if (espalier::compatible(method->sampling, offered.verifiers.find(verifier)->lossless))
      names.emplace_back(method->name);
  }
  return names;
}

// The methods if none is named: all to compare, else the best one for the temperature.
std::vector<std::string> default_methods(const arguments& arguments) {
  if (arguments.compare) {
    std::vector<std::string> all = methods_over(arguments);
    std::erase_if(all, [&](const std::string& name) {
      const bool merges = arguments.text_method.empty() || find_method(arguments.parts, name).merges();
      return !merges || (arguments.ahead && name == "neural-delayed");
    });
    return all;
  }
  if (arguments.drafter == drafter_kind::block) return {"best-first"};
  // The best method for models that come together is known. For others it follows from measured passes, on the host.
  const bool on_host = arguments.device == device_kind::cpu;
  if (arguments.drafter == drafter_kind::text) return {on_host ? "cost-aware" : "chain"};
  if (arguments.drafter == drafter_kind::self || (on_host && !arguments.models.draft.empty())) return {"cost-aware"};
  const bool draws = arguments.target.text.sampling.temperature > 0 && arguments.text_method.empty();
  return {draws ? "delayed" : "dynatree"};
}

}  // namespace

const method& find_method(const parts& offered, std::string_view name) {
  const method* found = offered.methods.find(name);
  if (found == nullptr) throw usage_error(fmt::format("there is no method {}.", name));
  return *found;
}

std::vector<std::string> verifiers_for(const parts& offered, const method& grown, bool draws_text) {
  // Puts the preferred one first, and leaves the others in their order.
  std::vector<std::string> names;
  int best = -1;
  for (const auto& verifier : offered.verifiers) {
    if (!espalier::compatible(grown.sampling, verifier->lossless) || verifier->changes_text ||
        (draws_text && verifier->argmax_only))
      continue;
    const int value = verifier->argmax_only ? 9 : preference(verifier->name, grown.drafts);
    names.insert(value > best ? names.begin() : names.end(), std::string(verifier->name));
    best = (std::max)(best, value);
  }
  return names;
}

std::vector<pairing> pairings(const arguments& arguments) {
  const bool draws_text = arguments.target.text.sampling.temperature > 0;
  const parts& offered = arguments.parts;
  const std::vector<std::string> possible = methods_over(arguments);
  for (const std::string& verifier : arguments.verifiers) {
    if (arguments.device == device_kind::cuda && !verifies_on_device(verifier))
      throw usage_error(fmt::format("--verifier {} does not run on --device cuda: the library's do.", verifier));
  }
  std::vector<pairing> found;
  for (const std::string& method : arguments.methods.empty() ? default_methods(arguments) : arguments.methods) {
    if (std::find(possible.begin(), possible.end(), method) == possible.end()) {
      if (arguments.device == device_kind::cuda) {
        throw usage_error(fmt::format("--method {} with --drafter {} does not run on --device cuda: {} do.", method,
                                      espalier::name_of(arguments.drafter), listed(possible)));
      }
      throw usage_error(fmt::format("--method {} does not grow from probabilities by node: --drafter {} goes with {}.",
                                    method, espalier::name_of(arguments.drafter), listed(possible)));
    }
    if (arguments.verifiers.empty()) {
      found.push_back({method, verifiers_for(offered, find_method(offered, method), draws_text).front()});
      continue;
    }
    const generate::method& grown = find_method(offered, method);
    std::size_t n = 0;
    for (const std::string& verifier : arguments.verifiers) {
      if (!espalier::compatible(grown.sampling, offered.verifiers.find(verifier)->lossless)) continue;
      found.push_back({method, verifier});
      ++n;
    }
    if (n == 0 && !(arguments.compare && arguments.methods.empty())) {
      const std::string& verifier = arguments.verifiers.front();
      throw usage_error(fmt::format(
          "--verifier {0} would change the distribution of the text with --method {1}: {0} goes with {2}; {1} "
          "goes with {3}.",
          verifier, method, listed(methods_for(offered, verifier)), listed(verifiers_for(offered, grown, false))));
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
