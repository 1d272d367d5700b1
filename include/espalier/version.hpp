// SPDX-License-Identifier: BSL-1.0
#pragma once

//! The version of the library. CMakeLists.txt reads it from here.
#define ESPALIER_VERSION_MAJOR 0
#define ESPALIER_VERSION_MINOR 1
#define ESPALIER_VERSION_PATCH 0
