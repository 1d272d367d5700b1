cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/consume")
file(REMOVE_RECURSE "${WORK}")

step("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${WORK}/prefix")
step("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/consumer" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
  "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DEXPECTED_VERSION=${VERSION}")
step("${CMAKE_COMMAND}" --build "${WORK}/consumer")
foreach(program IN ITEMS core registry all_components)
  step("${WORK}/consumer/${program}")
endforeach()
