// expect: for programs with a heap
// SPDX-License-Identifier: BSL-1.0
#ifndef ESPALIER_VALID
#define ESPALIER_HOSTED 0
#define ESPALIER_EXCEPTIONS 0
#endif
#include "espalier/espalier.hpp"

static_assert(sizeof(espalier::tree<>) > 0);
