// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier {

//! Error: PyTorch could not make a pass.
struct torch_error : error {
  using error::error;
};

}  // namespace espalier
