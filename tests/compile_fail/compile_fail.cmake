# cmake -DSOURCE=<file> -DCOMMAND=<compiler and flags, separated by |> [-DVALID=ON] -P compile_fail.cmake
#
# The first line of the file is `// expect: <CMake regular expression>`. With ESPALIER_VALID defined the file must
# compile, which is tried with -DVALID=ON; without it, it must not, and the compiler must say what is expected.
cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C)
string(REPLACE "|" ";" COMMAND "${COMMAND}")

file(READ "${SOURCE}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE} does not begin with a line `// expect: <regular expression>`.")
endif()
set(expected "${CMAKE_MATCH_1}")
if(NOT text MATCHES "ESPALIER_VALID")
  message(FATAL_ERROR "${SOURCE} never looks at ESPALIER_VALID, so both builds are the same.")
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
