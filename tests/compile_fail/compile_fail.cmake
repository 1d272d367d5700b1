# cmake -DSOURCE=<file> -DCOMMAND=<compiler and flags, separated by |> [-DVALID=ON] -P compile_fail.cmake
#
# The first line of the file is `// expect: <CMake regular expression>`. With ESPALIER_VALID defined the file must
# compile, which is tried with -DVALID=ON; without it, it must not, and the compiler must say what is expected.
#
# `// expect in 3 of 40 lines: <regular expression>`: the first 3 lines must say it, and there must be 40 lines at most,
# as a user sees them, excerpts of the source included. `in 3 of 40 lines, of clang in 1 of 80: ` has other numbers for
# clang, which shows ten instantiations behind an error in a template.
cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C)
string(REPLACE "|" ";" COMMAND "${COMMAND}")

file(READ "${SOURCE}" text)
if(NOT text MATCHES
    "^// expect( in ([0-9]+) of ([0-9]+) lines)?(, of clang in ([0-9]+) of ([0-9]+))?: ([^\n]+)\n(.*)$")
  message(FATAL_ERROR "${SOURCE} does not begin with a line `// expect: <regular expression>`.")
endif()
set(first "${CMAKE_MATCH_2}")
set(most "${CMAKE_MATCH_3}")
set(expected "${CMAKE_MATCH_7}")
set(program "${CMAKE_MATCH_8}")
if(CMAKE_MATCH_4 AND "-fno-caret-diagnostics" IN_LIST COMMAND)
  set(first "${CMAKE_MATCH_5}")
  set(most "${CMAKE_MATCH_6}")
endif()
if(NOT text MATCHES "ESPALIER_VALID")
  message(FATAL_ERROR "${SOURCE} never looks at ESPALIER_VALID, so both builds are the same.")
endif()
if(most)
  list(REMOVE_ITEM COMMAND -fno-diagnostics-show-caret -fno-caret-diagnostics)
  if(program MATCHES "${expected}")
    message(FATAL_ERROR "`${expected}` could come from an excerpt of ${SOURCE}.")
  endif()
endif()

if(VALID)
  execute_process(COMMAND ${COMMAND} -DESPALIER_VALID "${SOURCE}"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "The valid form does not compile:\n${output}")
  endif()
endif()

execute_process(COMMAND ${COMMAND} "${SOURCE}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "The faulty form compiles.")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "The compiler does not say `${expected}`, but:\n${output}")
endif()
if(most)
  string(REGEX REPLACE "[^\n]" "" breaks "${output}")
  string(LENGTH "${breaks}" lines)
  if(lines GREATER most)
    message(FATAL_ERROR "The compiler says ${lines} lines, more than ${most}:\n${output}")
  endif()
  string(REPEAT "[^\n]*\n" ${first} pattern)
  string(REGEX MATCH "^${pattern}" beginning "${output}\n\n\n")
  if(first LESS most AND NOT beginning MATCHES "${expected}")
    message(FATAL_ERROR "The first ${first} lines do not say `${expected}`:\n${output}")
  endif()
endif()
