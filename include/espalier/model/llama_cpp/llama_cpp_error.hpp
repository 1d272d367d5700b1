// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier {

//! What llama.cpp could not do: a pass that failed, a server that has gone away.
struct llama_cpp_error : error {
  using error::error;
};

}  // namespace espalier
