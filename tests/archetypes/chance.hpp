// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/chance.hpp"

namespace archetypes {

//! A Chance with nothing superfluous: for compiling only.
struct chance {
  bool accept(double p, double q, espalier::chance_key);
  std::int32_t pick(std::span<const float> weights, espalier::chance_key);
  std::int32_t index(std::int32_t n, espalier::chance_key);
};
static_assert(espalier::Chance<chance>);

}  // namespace archetypes
