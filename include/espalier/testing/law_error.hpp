// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/error.hpp"

namespace espalier::testing {

//! Error: a part breaks a law. The message says which law, and where.
struct law_error : error {
  using error::error;
};

//! Checks a law: `holds` must be true.
//!
//! Errors      law_error with a message that consists of the pieces (text and numbers) in order
template <class... PiecesT>
void require_law(bool holds, const PiecesT&... pieces) {
  if (!holds) raise<law_error>(pieces...);
}

}  // namespace espalier::testing
