// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier {

//! Error: llama.cpp could not do something, such as make a pass, or reach a server.
struct llama_cpp_error : error {
  using error::error;
};

}  // namespace espalier
