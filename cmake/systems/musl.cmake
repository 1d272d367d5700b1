# SPDX-License-Identifier: BSL-1.0
# Linux with musl in place of glibc, and libc++: zig's clang has both.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_CXX_COMPILER zig c++)
set(CMAKE_CXX_FLAGS_INIT "-target x86_64-linux-musl")
set(CMAKE_PROJECT_espalier_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/packages.cmake")
