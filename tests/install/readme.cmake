cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/readme")
file(REMOVE_RECURSE "${WORK}")
step("${CMAKE_COMMAND}" -S "${PROJECT}/examples/readme" -B "${WORK}" -G "${GENERATOR}"
  "-DFETCHCONTENT_SOURCE_DIR_ESPALIER=${PROJECT}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}")
step("${CMAKE_COMMAND}" --build "${WORK}")
sing(1 "${WORK}/sing")
