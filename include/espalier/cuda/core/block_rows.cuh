// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/fault.cuh"

namespace espalier::cuda {

//! What a BlockDrafter answers: espalier::block_rows of each lane, and where who reads them reports what is not finite.
//!
//! Shapes      logits [lanes][length][vocab]; found [places]
template <class NumberT>
struct block_rows {
  vocab_rows<NumberT> logits;
  std::int32_t length = 0;
  fault* found = nullptr;
};

template <class NumberT>
block_rows(vocab_rows<NumberT>, std::int32_t, fault*) -> block_rows<NumberT>;

}  // namespace espalier::cuda
