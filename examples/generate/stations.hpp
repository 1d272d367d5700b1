// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <string_view>

#include "espalier/decoder/round.hpp"

namespace generate {

//! A station of the round, with its share of the time.
struct station {
  std::string_view name;  //!< name of the member
  std::string_view label;
  double espalier::station_seconds::*seconds;
};

inline constexpr std::array stations = {
    station{"draft_forward", "draft model's passes", &espalier::station_seconds::draft_forward},
    station{"grow", "growing trees", &espalier::station_seconds::grow},
    station{"compile", "making batches", &espalier::station_seconds::compile},
    station{"target_forward", "target model's passes", &espalier::station_seconds::target_forward},
    station{"verify", "verifying", &espalier::station_seconds::verify},
    station{"commit", "committing", &espalier::station_seconds::commit},
    station{"on_device", "rounds on the device", &espalier::station_seconds::on_device}};

}  // namespace generate
