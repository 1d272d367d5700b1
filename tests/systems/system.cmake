# cmake -DSYSTEM=<preset> -DPROJECT=<repository> -DWORK=<folder> -DTESTS=<list> -P system.cmake: builds these tests for another system as
# the preset says, and runs them there, but for macOS.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/../install/step.cmake")
list(TRANSFORM TESTS PREPEND test_ OUTPUT_VARIABLE programs)
list(JOIN TESTS "|" names)
step("${CMAKE_COMMAND}" --preset "${SYSTEM}" -S "${PROJECT}" -B "${WORK}")
step("${CMAKE_COMMAND}" --build "${WORK}" --parallel 1 --target ${programs})
if(SYSTEM STREQUAL "macos")
  return()
endif()
step("${CMAKE_CTEST_COMMAND}" --test-dir "${WORK}" --output-on-failure --no-tests=error --tests-regex "^(${names})$")
