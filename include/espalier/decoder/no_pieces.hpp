// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <string_view>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier {

//! Gives each token an empty piece: for texts without stop strings.
struct no_pieces {
  std::string_view operator()(token_id) const { return {}; }
};

namespace detail {

// Checks that a text with stop strings is given pieces. Errors: input_error if the text has stop strings, and PieceT is
// no_pieces.
template <class PieceT>
void require_pieces(const text& t) {
  if (std::is_same_v<PieceT, no_pieces> && t.reads_pieces())
    raise<input_error>(
        "stop strings need the text of each token: give step(), end_step() or generate() a function for it.");
}

}  // namespace detail

}  // namespace espalier
