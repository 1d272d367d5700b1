// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! The drafter of plain decoding, for the policy `plain`: it has nothing to propose.
struct no_drafter {
  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return (std::numeric_limits<std::int32_t>::max)(); }
  node_rows<float> rows() const { return {}; }
};

}  // namespace espalier
