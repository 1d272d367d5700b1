# cmake -DROOT=<repository> -DBOARD=<board> -DWORK=<folder> -DCXX=<compiler> -DEMULATOR=<qemu-system-...>
#       [-DPROGRAM=firmware|pair|minimal] [-DEXPECTED=<program>] [-DONLY=<number>] [-DWIDE=float] -P run.cmake
#
# Compiles PROGRAM.cpp for this board of QEMU, looks for what it must not have, and runs it. With EXPECTED, a program
# for the host, its texts must be that program's. With ONLY there is one of the compositions alone. WIDE is what sums and
# ratios are reckoned in, double without it. Boards are
#
#     mps2-an386, mps2-an500   Cortex-M4 and M7: arm-none-eabi-g++, qemu-system-arm
#     virt-rv32, virt-rv64     RV32IMAFC, RV64GC: riscv64-unknown-elf-g++, qemu-system-riscv32, qemu-system-riscv64
cmake_minimum_required(VERSION 3.24)
set(example "${ROOT}/examples/embedded")
include("${example}/unwanted.cmake")
if(NOT PROGRAM)
  set(PROGRAM firmware)
endif()
set(cpu_mps2-an386 -mcpu=cortex-m4 -mthumb -mfloat-abi=hard)
set(cpu_mps2-an500 -mcpu=cortex-m7 -mthumb -mfloat-abi=hard)
set(cpu_virt-rv32 -march=rv32imafc -mabi=ilp32f -mcmodel=medany)
set(cpu_virt-rv64 -march=rv64gc -mabi=lp64d -mcmodel=medany)
set(cpu ${cpu_${BOARD}} -Os -ffunction-sections -fdata-sections)
set(cxx -std=c++20 -Wall -Wextra -Werror -DESPALIER_HOSTED=0 -fno-exceptions -fno-rtti -fno-threadsafe-statics
  -ffp-contract=off -fno-math-errno -fno-tree-loop-distribute-patterns
  "-I${ROOT}/include" "-DPAIR_FILE=\"${example}/pair.bin\"")
set(link -nostartfiles "-L${example}" -Wl,--gc-sections)
if(BOARD MATCHES "^virt")
  # Debian has a C library for this compiler, picolibc, and no C++ library. That of newlib for Arm is the same but for
  # what depends on the processor, and its headers are all that is needed.
  file(GLOB library LIST_DIRECTORIES true /usr/include/newlib/c++/*)
  list(GET library 0 library)
  list(APPEND cpu -specs=picolibc.specs)
  list(APPEND cxx -nostdinc++ -isystem "${library}" -isystem "${library}/arm-none-eabi/thumb/v6-m/nofp")
  list(APPEND link -T "${example}/virt.ld" -nostdlib -lm -lc -lgcc)
  set(emulated -M virt -bios none)
else()
  list(APPEND cxx -Wno-psabi)
  list(APPEND link -T "${example}/mps2.ld")
  set(emulated -M ${BOARD})
endif()
file(MAKE_DIRECTORY "${WORK}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command} ends with ${result}:\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

# The compiler's own nm and size.
function(run_tool name)
  run("${CXX}" -print-prog-name=${name})
  string(STRIP "${output}" tool)
  run("${tool}" ${ARGN})
  set(output "${output}" PARENT_SCOPE)
endfunction()

if(WIDE)
  list(APPEND cxx -DESPALIER_WIDE_NUMBER=${WIDE})
endif()
if(ONLY)
  list(APPEND cxx -DFIRMWARE_ONLY=${ONLY})
endif()
set(image "${WORK}/${PROGRAM}.elf")
run("${CXX}" ${cpu} -x c -c "${example}/start.c" -o "${WORK}/start.o")
run("${CXX}" ${cpu} ${cxx} "${example}/${PROGRAM}.cpp" "${WORK}/start.o" ${link} -o "${image}")

run_tool(nm "${image}")
find_unwanted(name "${output}")
if(name)
  message(FATAL_ERROR "The image has ${name}")
endif()
run_tool(size "${image}")
message("${output}")

# What it prints goes to the serial port; its end is asked of the debugger.
execute_process(RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE complaint INPUT_FILE /dev/null
  COMMAND "${EMULATOR}" ${emulated} -nographic -monitor none -serial stdio -semihosting -icount shift=0 -kernel "${image}")
message("${printed}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "The firmware ends with ${result}: ${complaint}")
endif()
string(REGEX REPLACE "#[^\n]*\n" "" texts "${printed}")
if(EXPECTED)
  run("${EXPECTED}")
  if(output STREQUAL "" OR NOT texts STREQUAL output)
    message(FATAL_ERROR "The host writes:\n${output}")
  endif()
endif()
