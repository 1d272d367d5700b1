// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier::testing {

//! A law that a part breaks. The message says which one, and where.
struct law_error : error {
  using error::error;
};

//! Checks a law.
//!
//! Errors      law_error with a message made of the pieces (text and numbers) in order
template <class... PiecesT>
void require_law(bool holds, const PiecesT&... pieces) {
  if (!holds) raise<law_error>(pieces...);
}

}  // namespace espalier::testing
