// expect: for host code only
// SPDX-License-Identifier: BSL-1.0
#ifndef ESPALIER_VALID
#define __CUDACC__
#define __host__
#define __device__
#endif
#include "espalier/views.hpp"

static_assert(sizeof(espalier::views::children) > 0);
