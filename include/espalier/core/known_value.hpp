// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>

namespace espalier {

//! One value of an enumeration, with its name for people and command lines.
template <class EnumT>
struct known_value {
  EnumT value;
  std::string_view name;     //!< lower case, with hyphens
  std::string_view summary;  //!< a few words
};

//! All values of EnumT: a std::array of known_value<EnumT> in the order of their numbers from 0 on, the default first.
//! Each enumeration specialises it.
template <class EnumT>
inline constexpr int known_values = 0;

template <class EnumT>
constexpr std::string_view name_of(EnumT value) {
  for (const known_value<EnumT>& known : known_values<EnumT>) {
    if (known.value == value) return known.name;
  }
  return "unknown";
}

}  // namespace espalier
