// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "catch.hpp"
#include "espalier/core/option.hpp"
#include "raises.hpp"

// The value next to a bound, on the side that is not allowed.
template <class ValueT>
ValueT beyond(ValueT bound, int direction) {
  if constexpr (std::is_integral_v<ValueT>) {
    return static_cast<ValueT>(bound + direction);
  } else {
    return std::nextafter(bound, static_cast<ValueT>(direction * 1e9));
  }
}

// Checks that a part takes its options at both ends of their ranges, and says of every value beyond whose it is and
// what is allowed. build(options) makes the part; adjust(options) lowers the highest options to what it has room for.
template <class OptionsT, class BuildT, class AdjustT>
void check_ranges(const OptionsT& defaults, const BuildT& build, const AdjustT& adjust) {
  OptionsT lowest = defaults;
  OptionsT highest = defaults;
  espalier::for_each_option(lowest, []<class ValueT>(const auto& option, ValueT& value) {
    if constexpr (std::is_arithmetic_v<ValueT>) value = option.low;
  });
  espalier::for_each_option(highest, []<class ValueT>(const auto& option, ValueT& value) {
    if constexpr (std::is_arithmetic_v<ValueT>) value = option.high();
  });
  adjust(highest);
  CHECK_NOTHROW(build(lowest));
  CHECK_NOTHROW(build(highest));

  OptionsT options = highest;
  espalier::for_each_option(options, [&]<class ValueT>(const auto& option, ValueT& value) {
    using limits = std::numeric_limits<ValueT>;
    const ValueT before = value;
    const auto refuses = [&](ValueT tried, auto shown, auto low, auto high) {
      value = tried;
      CHECK(message_of<espalier::option_error>([&] { build(options); }) ==
            message_of<espalier::option_error>([&] { espalier::require_option(option.name, shown, low, high); }));
      value = before;
    };
    INFO(option.name);
    if constexpr (std::is_enum_v<ValueT>) {
      const int known = static_cast<int>(espalier::known_values<ValueT>.size());
      refuses(static_cast<ValueT>(known), known, 0, known - 1);
      refuses(static_cast<ValueT>(-1), -1, 0, known - 1);
    } else if constexpr (std::is_arithmetic_v<ValueT>) {
      const auto refuses_beyond = [&](ValueT bound, int direction) {
        if (bound == limits::lowest() || bound == (limits::max)()) return;
        refuses(beyond(bound, direction), beyond(bound, direction), option.low, option.high());
      };
      refuses_beyond(option.low, -1);
      refuses_beyond(option.high(), 1);
      if constexpr (limits::has_quiet_NaN) refuses(limits::quiet_NaN(), limits::quiet_NaN(), option.low, option.high());
    }
  });
}

template <class OptionsT, class BuildT>
void check_ranges(const OptionsT& defaults, const BuildT& build) {
  check_ranges(defaults, build, [](OptionsT&) {});
}
