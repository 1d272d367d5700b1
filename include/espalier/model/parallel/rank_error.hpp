// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier {

//! Ranks that can no longer work together: one is dead or late, a call between them failed, or they differ in what they
//! do. what() names the rank. The communicator is of no use then: go on with new ranks from the last committed token.
struct rank_error : error {
  using error::error;
};

}  // namespace espalier
