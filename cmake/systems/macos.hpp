// SPDX-License-Identifier: BSL-1.0
// Included first: in Zig 0.17 <cmath> leaves <cfloat> nothing to define, or the other way round.
#include <cmath>
#undef _LIBCPP_FLOAT_H
#include <cfloat>
