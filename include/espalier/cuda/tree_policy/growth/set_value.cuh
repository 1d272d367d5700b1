// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include "espalier/config.hpp"

namespace espalier::cuda::detail {

// One thread: what a policy keeps of a text is this from now on.
template <class ValueT>
ESPALIER_KERNEL void set_value(ValueT* to, ValueT value) {
  *to = value;
}

}  // namespace espalier::cuda::detail
