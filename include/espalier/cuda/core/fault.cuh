// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! The reason why a kernel could not use a row: no token may be drawn from it. Kernels do not throw. A kernel leaves
//! the fault in the memory of the device, the rest of the round commits nothing to the text, and the host raises the
//! fault when the round's result arrives.
struct fault {
  enum class kind : std::int32_t {
    none,
    bad_logit,  //!< a logit is NaN or plus infinity
    no_token,   //!< all logits are minus infinity
  };

  kind what = kind::none;
  row_origin row;
  token_id token = 0;  //!< the token with the bad logit
  float value = 0;     //!< the bad logit
};

//! Stores a fault, unless one is stored already. Called in kernels.
__device__ inline void report(fault* to, const fault& found) {
  static_assert(sizeof(fault::kind) == sizeof(int));
  if (atomicCAS(reinterpret_cast<int*>(&to->what), 0, static_cast<int>(found.what)) != 0) return;
  to->row = found.row;
  to->token = found.token;
  to->value = found.value;
}

//! Throws the error of a fault; does nothing if there is none.
//!
//! Errors      numeric_error for the fault, in the same words as on the host
inline void raise_fault(const fault& found) {
  if (found.what == fault::kind::bad_logit)
    espalier::detail::raise_bad_logit(found.row, found.token, static_cast<double>(found.value));
  if (found.what == fault::kind::no_token) espalier::detail::raise_no_token(found.row);
}

}  // namespace espalier::cuda
