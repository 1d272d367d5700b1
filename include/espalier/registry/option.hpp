// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <limits>
#include <string_view>
#include <type_traits>

namespace espalier {

//! One field of an options struct: what people call it, where it is, and what it may be.
//!
//! Law         the part refuses every value outside [low, high]; values inside may be refused for the sake of other options
template <class OptionsT, class ValueT>
struct option {
  using value_type = ValueT;

  std::string_view name;  //!< the member's
  ValueT OptionsT::*member;
  double low;
  double high;            //!< infinity: no bound
  std::string_view help;  //!< what it means, in a few words, without the range
};

template <class OptionsT, class ValueT>
option(std::string_view, ValueT OptionsT::*, double, double, std::string_view) -> option<OptionsT, ValueT>;

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

//! The options of a part that has none.
struct no_options {};

//! A hana::tuple of option<OptionsT, ...>, in the order of the members. espalier/registry.hpp describes the library's own
//! structs; describe yours by a specialisation.
template <class OptionsT>
inline constexpr auto options_of = boost::hana::make_tuple();

//! Calls f(option, value) for each option of the struct; value is a reference to the member.
template <class OptionsT, class FunctionT>
constexpr void for_each_option(OptionsT& options, FunctionT&& f) {
  boost::hana::for_each(options_of<std::remove_const_t<OptionsT>>,
                        [&](const auto& option) { f(option, options.*(option.member)); });
}

}  // namespace espalier
