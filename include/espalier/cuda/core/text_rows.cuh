// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"

namespace espalier::cuda {

//! The rows of a round by text and node, in the memory of the device: espalier::node_rows of each text.
//!
//! Shapes      row_of [places][n_nodes]: the row of a node in `rows`, -1 where none was asked for
struct text_rows {
  vocab_rows<float> rows;
  const std::int32_t* row_of = nullptr;
  std::int32_t n_nodes = 0;

  ESPALIER_HOST_DEVICE node_rows<float> of(std::int32_t place) const {
    return {rows, row_of == nullptr ? nullptr : row_of + static_cast<std::ptrdiff_t>(place) * n_nodes};
  }
};

}  // namespace espalier::cuda
