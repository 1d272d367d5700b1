// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "ot_verifiers.hpp"

namespace nde {

//! The program nde: does what its command line asks for, with the registry's verifiers and these of one's own.
//!
//! Returns 0 if all is done, 1 if a trace is damaged, 2 if the arguments, a file, a model or the name of a verifier
//! cannot be used, which a sentence on stderr explains.
int run_program(int argc, const char* const* argv, const std::vector<ot_verifier>& own);

}  // namespace nde
