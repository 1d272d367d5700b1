# SPDX-License-Identifier: BSL-1.0
# Windows with 64 bits: MinGW compiles, with threads as POSIX has them, and Wine runs it.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_CXX_FLAGS_INIT -Wa,-mbig-obj)  # objects with more sections than 32,768
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
find_program(espalier_wine NAMES wine64 wine PATHS /usr/lib/wine)
set(CMAKE_CROSSCOMPILING_EMULATOR "${espalier_wine}")
set(CMAKE_PROJECT_espalier_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/packages.cmake")
