# SPDX-License-Identifier: BSL-1.0
# Linux on x86-64 with musl and libc++, both of which Zig's clang brings. This machine runs it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER_TARGET x86_64-linux-musl)
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
