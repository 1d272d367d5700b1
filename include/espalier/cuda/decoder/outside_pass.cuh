// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/halves.cu
#pragma once

#include <cuda_runtime.h>

#include "espalier/cuda/core/forward_batch.cuh"

namespace espalier::cuda {

//! A pass of the target that an engine makes outside a decoder on the device, between two halves of a step.
//! begin_step() and end_step() return the next pass of the step, or a pass that converts to false: then the step is
//! over.
struct outside_pass {
  forward_batch_view batch{};     //!< the rows to forward, over the target's cache, in the memory of the device; valid
                                  //!< in the order of the stream until the logits are handed over, or the step is given
                                  //!< up. A pass that reads a prompt alone has no outputs: its logits are vocab_rows{}
  cudaStream_t stream = nullptr;  //!< the decoder's stream: the batch is ready for work that is enqueued there

  explicit operator bool() const { return batch.n_rows > 0; }
};

}  // namespace espalier::cuda
