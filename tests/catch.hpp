// SPDX-License-Identifier: BSL-1.0
#pragma once

// Catch2 2.13 and 3 under one name. Tests include this and nothing of Catch2's own.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
