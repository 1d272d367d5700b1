// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "../../examples/generate/parts.hpp"

namespace bench {

//! The program bench_tables_real_models, with the methods and verifiers of generate and these of one's own.
//!
//! Returns 0, or 2 if its arguments, a file, a model or the name of a part cannot be used.
int real_models(int argc, char** argv, const generate::parts& own);

}  // namespace bench
