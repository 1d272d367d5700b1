cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/tools")
file(REMOVE_RECURSE "${WORK}")

step("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --component tools --prefix "${WORK}/prefix")
file(RENAME "${WORK}/prefix" "${WORK}/moved")
foreach(program IN LISTS PROGRAMS)
  step("${WORK}/moved/${BIN}/${program}" --help)
endforeach()
# --help names the folder of models that the program would take.
execute_process(COMMAND "${WORK}/moved/${BIN}/generate" --help OUTPUT_VARIABLE help)
string(FIND "${help}" "${WORK}/moved" found)
if(CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux" AND found EQUAL -1)
  message(FATAL_ERROR "The installed generate does not take the models installed with it:\n${help}")
endif()
step("${WORK}/moved/${BIN}/generate" --prompt "The king" --method plain --max-tokens 4)

# A program with parts of one's own finds the program generate there, as a library.
if(OWN_PARTS)
  step("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${WORK}/moved")
  step("${CMAKE_COMMAND}" -S "${SOURCE}/own_parts" -B "${WORK}/own_parts" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_PREFIX_PATH=${WORK}/moved"
    "-DOWN_PARTS=${OWN_PARTS}")
  step("${CMAKE_COMMAND}" --build "${WORK}/own_parts")
  step("${WORK}/own_parts/generate" --model "${WORK}/moved/share/espalier/models" --prompt "The king" --max-tokens 8
    --compare --repeats 1 --method entropy-tree,chain)
endif()
