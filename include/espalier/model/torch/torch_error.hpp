// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier {

//! A pass that PyTorch could not make.
struct torch_error : error {
  using error::error;
};

}  // namespace espalier
