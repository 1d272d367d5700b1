cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${WORK}/prefix" "${WORK}/consumer")

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " words)
    message(FATAL_ERROR "${words}\n${output}")
  endif()
endfunction()

step("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${WORK}/prefix")
step("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/consumer" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
  "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DEXPECTED_VERSION=${VERSION}")
step("${CMAKE_COMMAND}" --build "${WORK}/consumer")
step("${WORK}/consumer/core")
step("${WORK}/consumer/all_components")
