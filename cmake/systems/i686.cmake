# SPDX-License-Identifier: BSL-1.0
# Linux on x86 with 32 bits, and with SSE2: the x87 would reckon with other bits. A machine with 64 bits runs it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)
set(CMAKE_CXX_COMPILER i686-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT "-msse2 -mfpmath=sse")
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_PROJECT_espalier_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/packages.cmake")
