// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"

namespace espalier::cuda::interop {

//! The reason why a format of another engine cannot hold a tree. Kernels do not throw: a conversion that was given the
//! address of a misfit, on the device and set to {}, writes there the first reason that it finds. The host raises it.
struct misfit {
  enum class kind : std::int32_t {
    none,
    too_many_rows,  //!< the sequence has more rows than the format has room for
    wrong_order,    //!< a row is not in the order that the format asks for
    long_path,      //!< a row is deeper than the format's paths are long
  };

  kind what = kind::none;
  std::int32_t sequence = 0;  //!< number of the sequence in the KV store
  std::int32_t row = 0;       //!< row of the sequence that does not fit; for too_many_rows, the number of its rows
};

namespace detail {

// Stores a misfit, unless `to` is null or has one already.
__device__ inline void report(misfit* to, misfit::kind what, std::int32_t sequence, std::int32_t row) {
  static_assert(sizeof(misfit::kind) == sizeof(int));
  if (to == nullptr || atomicCAS(reinterpret_cast<int*>(&to->what), 0, static_cast<int>(what)) != 0) return;
  to->sequence = sequence;
  to->row = row;
}

}  // namespace detail

//! Throws the error of a misfit; does nothing if there is none.
//!
//! Errors      input_error that names the sequence and its row
inline void raise_misfit(const misfit& found) {
  if (found.what == misfit::kind::too_many_rows)
    raise<input_error>("sequence ", found.sequence, " has ", found.row, " rows, more than the format has room for.");
  if (found.what == misfit::kind::wrong_order)
    raise<input_error>("row ", found.row, " of sequence ", found.sequence, " is not in breadth-first order.");
  if (found.what == misfit::kind::long_path)
    raise<input_error>("row ", found.row, " of sequence ", found.sequence, " is deeper than the format's paths.");
}

}  // namespace espalier::cuda::interop
