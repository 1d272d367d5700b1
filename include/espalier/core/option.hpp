// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <limits>
#include <string_view>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/number_list.hpp"

namespace espalier {

//! One value of an enumeration, with its name for people and command lines.
template <class EnumT>
struct known_value {
  EnumT value;
  std::string_view name;     //!< name of the value: lower case, with hyphens
  std::string_view summary;  //!< meaning of the value, in a few words
};

//! All values of EnumT: a std::array of known_value<EnumT> in the order of their numbers, which begin at 0. Each
//! enumeration specialises it.
template <class EnumT>
inline constexpr int known_values = 0;

//! The name of a value; "unknown" for a number that is none of the known values.
template <class EnumT>
constexpr std::string_view name_of(EnumT value) {
  for (const known_value<EnumT>& known : known_values<EnumT>) {
    if (known.value == value) return known.name;
  }
  return "unknown";
}

template <class OptionsT, class ValueT>
struct option;

//! The description that a struct gives of this member.
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

//! The description of one member of an options struct: checks of constructors, flags, help and JSON are made from it.
//! A struct describes each member with its lowest and its highest value. The highest may be the value of a member that
//! was described before:
//!
//!     static constexpr void describe(auto see) {
//!       see(option{"max_length", &chain_options::max_length, "drafted tokens at most", 1, 1024});
//!       see(option{"length", &chain_options::length, "drafted tokens", 1, &chain_options::max_length});
//!     }
//!
//! Without a range every value of the type is allowed; for an enumeration, the known values. A number_list has no
//! range: the part checks its numbers.
template <class OptionsT, class ValueT>
struct option {
  //! The highest value allowed: a number, or the value of another option.
  struct highest {
    constexpr highest(ValueT value) : number(value) {}
    constexpr highest(ValueT OptionsT::*option) : other(option) {}
    constexpr ValueT in(const OptionsT& options) const { return other == nullptr ? number : options.*other; }

    ValueT number{};
    ValueT OptionsT::*other = nullptr;
  };

  std::string_view name;  //!< the name of the member
  ValueT OptionsT::*member;
  std::string_view help;  //!< meaning of the option, in a few words, without the range
  ValueT low = std::numeric_limits<ValueT>::lowest();
  highest limit = (std::numeric_limits<ValueT>::max)();

  //! The highest value that the option can have, whatever the other options are.
  constexpr ValueT high() const { return limit.other == nullptr ? limit.number : option_of(limit.other).high(); }

  //! The name of the option that this one must not exceed; empty if its limit is a number.
  constexpr std::string_view high_name() const { return limit.other == nullptr ? "" : option_of(limit.other).name; }
};

template <class OptionsT, class ValueT, class... RangeT>
option(std::string_view, ValueT OptionsT::*, std::string_view, RangeT...) -> option<OptionsT, ValueT>;

//! Calls f(option, value) for each option of a struct; value is a reference to the member.
template <class OptionsT, class FunctionT>
constexpr void for_each_option(OptionsT& options, FunctionT&& f) {
  OptionsT::describe([&](const auto& one) { f(one, options.*one.member); });
}

//! Checks every option of a struct, and returns the struct, so that a constructor can initialise members from checked
//! options.
//!
//! Errors      option_error that names the first option out of range, its value and its range
template <class OptionsT>
const OptionsT& require_options(const OptionsT& options) {
  for_each_option(options, [&]<class ValueT>(const option<OptionsT, ValueT>& one, const ValueT& value) {
    if constexpr (std::is_enum_v<ValueT>) {
      require_option(one.name, static_cast<int>(value), 0, static_cast<int>(known_values<ValueT>.size()) - 1);
    } else if constexpr (!std::is_same_v<ValueT, number_list>) {
      require_option(one.name, value, one.low, one.limit.in(options));
    }
  });
  return options;
}

}  // namespace espalier
