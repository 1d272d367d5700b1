# SPDX-License-Identifier: BSL-1.0
# The clang of Zig, which ./run fetches. It compiles the C library and libc++ of its target, too, when they are needed first.
find_program(espalier_zig zig-c++ HINTS "${CMAKE_CURRENT_LIST_DIR}/../../build/zig")
set(CMAKE_CXX_COMPILER "${espalier_zig}")
string(APPEND CMAKE_CXX_FLAGS_INIT " -fno-sanitize=undefined")  # which it checks unasked where nothing is optimised
set(CMAKE_PROJECT_espalier_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/packages.cmake")
