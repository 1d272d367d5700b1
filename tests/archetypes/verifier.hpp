// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "archetypes/chance.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/probabilities.hpp"

namespace archetypes {

//! The target rows of a round with nothing superfluous: for compiling only.
struct target_rows {
  std::span<const float> row(espalier::node_id);
  espalier::token_id argmax(espalier::node_id);
};

//! A Verifier with nothing superfluous: for compiling only.
struct verifier {
  static constexpr espalier::regime lossless = espalier::regime::iid;
  espalier::verdict verify(espalier::tree_view, espalier::node_rows<float>, target_rows&, chance&);
};
static_assert(espalier::Verifier<verifier, espalier::node_rows<float>, target_rows, chance>);

}  // namespace archetypes
