// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>
#include <type_traits>

namespace espalier {

//! The options of a part without options.
struct no_options {
  static constexpr void describe(auto) {}
};

//! A policy or verifier that the registry knows: its type, its options, its name and a summary. Several entries may
//! have the same type and differ in their options. The options of a copy may be changed before the copy makes the part.
template <class PartT, class OptionsT = no_options>
struct part {
  using type = PartT;
  using options_type = OptionsT;

  std::string_view name;     //!< for people and command lines: lower case, with hyphens
  std::string_view summary;  //!< a few words
  OptionsT options{};

  //! Makes a PartT from the options, or a MadeT, if that is given: another type that is made from the same options.
  //!
  //! Errors      option_error of the part
  template <class MadeT = PartT>
  constexpr MadeT make() const {
    if constexpr (std::is_same_v<OptionsT, no_options>) {
      return MadeT();
    } else {
      return MadeT(options);
    }
  }
};

}  // namespace espalier
