// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <stdexcept>

namespace models {

//! Error: a command line cannot be used; what() is a sentence.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace models
