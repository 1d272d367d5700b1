// SPDX-License-Identifier: BSL-1.0
// Nothing: what it includes is precompiled.
#include "catch.hpp"
