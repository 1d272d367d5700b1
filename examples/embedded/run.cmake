# cmake -DROOT=<repository> -DBOARD=mps2-an386|mps2-an500 -DWORK=<folder> -DCXX=<arm-none-eabi-g++>
#       -DEMULATOR=<qemu-system-arm> [-DEXPECTED=<program>] [-DONLY=<number>] -P run.cmake
#
# Compiles the firmware for this board of QEMU, looks for what it must not have, and runs it. With EXPECTED, a program
# for the host, its texts must be that program's. With ONLY there is one of the compositions alone.
cmake_minimum_required(VERSION 3.24)
set(example "${ROOT}/examples/embedded")
set(cpu_mps2-an386 -mcpu=cortex-m4)
set(cpu_mps2-an500 -mcpu=cortex-m7)
set(cpu ${cpu_${BOARD}} -mthumb -mfloat-abi=hard -Os -ffunction-sections -fdata-sections)
file(MAKE_DIRECTORY "${WORK}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command} ends with ${result}:\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

if(ONLY)
  list(APPEND cpu -DFIRMWARE_ONLY=${ONLY})
endif()
set(image "${WORK}/firmware.elf")
run("${CXX}" ${cpu} -x c -c "${example}/start.c" -o "${WORK}/start.o")
run("${CXX}" ${cpu} -std=c++20 -Wall -Wextra -Werror -Wno-psabi -DESPALIER_HOSTED=0 -fno-exceptions -fno-rtti -fno-threadsafe-statics
  -ffp-contract=off "-I${ROOT}/include" "${example}/firmware.cpp" "${WORK}/start.o" -nostartfiles -T
  "${example}/mps2.ld" -Wl,--gc-sections -o "${image}")

# What a small machine must not pay for: heap, exceptions, threads, clock, locale, printf.
string(REGEX REPLACE "g\\+\\+$" "nm" nm "${CXX}")
run("${nm}" "${image}")
set(unwanted "malloc|_malloc_r|calloc|realloc|free|_free_r|_sbrk|_Zn[wa][^ \n]*|_Zd[la][^ \n]*|__cxa_[^ \n]*|_Unwind[^ \n]*"
  "|__gxx_personality[^ \n]*|_ZSt9terminatev|_ZSt[0-9]+__throw[^ \n]*|[^ \n]*(printf|strtod|locale|pthread|_ZNSt6chrono)[^ \n]*"
  "|clock|times|gettimeofday|_gettimeofday")
list(JOIN unwanted "" unwanted)
if(output MATCHES " (${unwanted})\n")
  message(FATAL_ERROR "The image has ${CMAKE_MATCH_1}")
endif()
string(REGEX REPLACE "g\\+\\+$" "size" size "${CXX}")
run("${size}" "${image}")
message("${output}")

run("${EMULATOR}" -M ${BOARD} -nographic -monitor none -serial none -semihosting -kernel "${image}")
message("${output}")
string(REGEX REPLACE "#[^\n]*\n" "" texts "${output}")
if(EXPECTED)
  run("${EXPECTED}")
  if(output STREQUAL "" OR NOT texts STREQUAL output)
    message(FATAL_ERROR "The host writes:\n${output}")
  endif()
endif()
