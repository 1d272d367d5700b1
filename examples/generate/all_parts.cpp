// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "parts.hpp"

namespace generate {

namespace {

bool is_flag_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// Adds one's own parts to the library's. Each name is a value of a flag, and begins the flags of its part's options.
template <class PartT>
void add_own(part_list<PartT>& to, const part_list<PartT>& own, std::set<std::string, std::less<>>& taken) {
  for (const auto& part : own) {
    if (!is_flag_name(part->name))
      throw usage_error(
          fmt::format("a part is called \"{}\", but its name must consist of a to z, 0 to 9 and hyphens.", part->name));
    if (!taken.emplace(part->name).second)
      throw usage_error(fmt::format("a part is called {}, but that name is taken: it needs another one.", part->name));
  }
  to.add(own);
}

}  // namespace

parts all_parts(const parts& own) {
  parts all = library_parts();
  std::set<std::string, std::less<>> taken{"draft"};  // --draft.temperature
  for (const auto& known : espalier::known_values<drafter_kind>)
    taken.emplace(known.name);
  for (const auto& part : all.methods)
    taken.emplace(part->name);
  for (const auto& part : all.verifiers)
    taken.emplace(part->name);
  add_own(all.methods, own.methods, taken);
  add_own(all.verifiers, own.verifiers, taken);
  return all;
}

}  // namespace generate
