// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "parts.hpp"

namespace generate {

//! The program generate: does what its command line asks for, with the library's parts and these of one's own.
//!
//! Returns 0 if all is done, 1 if texts differ that must not, 2 if the arguments, a file, a model or the name of a part
//! cannot be used, which a sentence on stderr explains.
int run_program(int argc, const char* const* argv, const parts& own);

}  // namespace generate
