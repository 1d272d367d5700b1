// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <limits>
#include <string_view>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/known_value.hpp"

namespace espalier {

template <class OptionsT, class ValueT>
struct option;

//! What a struct says of its member.
//!
//! Pre         the struct describes the member
template <class OptionsT, class ValueT>
constexpr option<OptionsT, ValueT> option_of(ValueT OptionsT::*member) {
  option<OptionsT, ValueT> found{{}, member, {}};
  OptionsT::describe([&]<class OtherT>(const option<OptionsT, OtherT>& one) {
    if constexpr (std::is_same_v<OtherT, ValueT>) {
      if (one.member == member) found = one;
    }
  });
  return found;
}

//! What an options struct says of one of its members: from it come the checks of constructors, flags, help and JSON. A
//! struct shows each member with the lowest and the highest value, which may be that of a member that was shown before:
//!
//!     static constexpr void describe(auto see) {
//!       see(option{"max_length", &chain_options::max_length, "drafted tokens at most", 1, 1024});
//!       see(option{"length", &chain_options::length, "drafted tokens", 1, &chain_options::max_length});
//!     }
//!
//! Without a range every value of the type is allowed; of an enumeration, the known ones.
template <class OptionsT, class ValueT>
struct option {
  //! A number, or the value of another option.
  struct highest {
    constexpr highest(ValueT value) : number(value) {}
    constexpr highest(ValueT OptionsT::*option) : other(option) {}
    constexpr ValueT in(const OptionsT& options) const { return other == nullptr ? number : options.*other; }

    ValueT number{};
    ValueT OptionsT::*other = nullptr;
  };

  std::string_view name;  //!< the member's
  ValueT OptionsT::*member;
  std::string_view help;  //!< what it means, in a few words, without the range
  ValueT low = std::numeric_limits<ValueT>::lowest();
  highest limit = (std::numeric_limits<ValueT>::max)();

  //! The highest that it may be, whatever the other options are.
  constexpr ValueT high() const { return limit.other == nullptr ? limit.number : option_of(limit.other).high(); }

  //! The name of the option that it must not exceed; empty where that is a number.
  constexpr std::string_view high_name() const { return limit.other == nullptr ? "" : option_of(limit.other).name; }
};

template <class OptionsT, class ValueT, class... RangeT>
option(std::string_view, ValueT OptionsT::*, std::string_view, RangeT...) -> option<OptionsT, ValueT>;

//! Calls f(option, value) for each option of a struct; value is a reference to the member.
template <class OptionsT, class FunctionT>
constexpr void for_each_option(OptionsT& options, FunctionT&& f) {
  OptionsT::describe([&](const auto& one) { f(one, options.*one.member); });
}

//! Checks every option of a struct, and returns the struct, for members that are made from what was checked.
//!
//! Errors      option_error that names the first option out of range, its value and its range
template <class OptionsT>
const OptionsT& require_options(const OptionsT& options) {
  for_each_option(options, [&]<class ValueT>(const option<OptionsT, ValueT>& one, const ValueT& value) {
    if constexpr (std::is_enum_v<ValueT>) {
      require_option(one.name, static_cast<int>(value), 0, static_cast<int>(known_values<ValueT>.size()) - 1);
    } else {
      require_option(one.name, value, one.low, one.limit.in(options));
    }
  });
  return options;
}

}  // namespace espalier
