// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "ot_verifiers.hpp"
#include "run_program.hpp"

namespace nde {

//! The program nde with verifiers of one's own beside the registry's: those of a list of `espalier::part` that take
//! independent draws, and for which there is a function branching_probabilities(verifier, p, q, draws) in their
//! namespace (see espalier/analysis/branching.hpp). A program of one file calls it in main(), and is linked with
//! espalier::nde.
//!
//! Returns what run_program() returns.
template <class ListT>
int nde_main(int argc, const char* const* argv, const ListT& own) {
  return run_program(argc, argv, ot_verifiers_of(own));
}

}  // namespace nde
