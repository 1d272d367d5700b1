# SPDX-License-Identifier: BSL-1.0
# macOS on 64-bit Arm, for which Zig's clang compiles and links. Nothing here runs it.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER_TARGET aarch64-macos)
set(CMAKE_CXX_FLAGS_INIT "-include \"${CMAKE_CURRENT_LIST_DIR}/macos.hpp\"")
set(CMAKE_INSTALL_NAME_TOOL true)  # nothing is installed
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
