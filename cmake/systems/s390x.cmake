# SPDX-License-Identifier: BSL-1.0
# Linux on s390x, which has its bytes in the other order (big-endian), under QEMU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR s390x)
set(CMAKE_CXX_COMPILER s390x-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-s390x)
set(CMAKE_PROJECT_espalier_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/packages.cmake")
