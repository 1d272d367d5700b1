# Writes the module that has all of core, compiles it, and runs the README's program, which imports it in place of the headers.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/../install/step.cmake")
file(REMOVE_RECURSE "${WORK}")
step("${CMAKE_COMMAND}" -E env "BUILD=${WORK}" "${PROJECT}/run" module)
file(READ "${PROJECT}/examples/readme/main.cpp" program)
string(REPLACE "#include <espalier/espalier.hpp>" "import espalier;" program "${program}")
file(WRITE "${WORK}/main.cpp" "#include <optional>\n${program}")  # clang 16 does not find its operators without it
step("${COMPILER}" -std=c++20 -Wall -Wextra -Werror --precompile "${WORK}/module/espalier.cppm" -o "${WORK}/espalier.pcm")
step("${COMPILER}" -std=c++20 -Wall -Wextra -Werror "-fmodule-file=espalier=${WORK}/espalier.pcm" "${WORK}/main.cpp" "${WORK}/espalier.pcm"
  -o "${WORK}/sing")
execute_process(COMMAND "${WORK}/sing" OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
if(NOT printed MATCHES "7[.]4 tokens a pass of the target")
  message(FATAL_ERROR "The README's program printed: ${printed}")
endif()
