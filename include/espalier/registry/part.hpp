// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>
#include <type_traits>

#include "espalier/registry/option.hpp"

namespace espalier {

//! A known part: its type, its options, its name and what it does. Several parts may share a type and differ in their
//! options. A copy may have its options changed before it makes the part.
template <class PartT, class OptionsT = no_options>
struct part {
  using type = PartT;
  using options_type = OptionsT;

  std::string_view name;     //!< for people and flags: lower case, with hyphens
  std::string_view summary;  //!< a few words
  OptionsT options{};

  //! Errors      option_error of the part
  constexpr PartT make() const {
    if constexpr (std::is_same_v<OptionsT, no_options>) {
      return PartT();
    } else {
      return PartT(options);
    }
  }
};

}  // namespace espalier
