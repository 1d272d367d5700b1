// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! Returns the chance of the round whose tree grows after this text, for the policy and for the verifier: the chance
//! that a decoder would use. A chance that is keyed by another number than the text's length may give a later round the
//! random numbers of this round, and the text is then no sample of the target's distribution.
//!
//! Shapes      text: all tokens, the prompt's first; the last one is the tree's root
//! Complexity  O(1)
//! Errors      input_error if the text is empty, or if its last token is not the root's: it is then not the text of
//!             this round
inline philox_chance round_chance(std::uint64_t seed, std::uint32_t stream, std::span<const token_id> text,
                                  tree_view tree) {
  if (text.empty() || text.back() != tree.token[root_node]) {
    raise<input_error>("the root of the tree is token ", tree.token[root_node], ", but the text of ", text.size(),
                       " tokens does not end with it: the root is the last token of the text.");
  }
  return philox_chance(seed, stream, static_cast<std::uint32_t>(text.size()));
}

}  // namespace espalier
