# SPDX-License-Identifier: BSL-1.0
# cmake -DPYTHON=<python3> -DWORK=<folder> -P same.cmake: each picture here is what draw.py draws.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
execute_process(COMMAND "${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/draw.py" "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB pictures RELATIVE "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/*.svg")
foreach(picture IN LISTS pictures)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E compare_files "${CMAKE_CURRENT_LIST_DIR}/${picture}" "${WORK}/${picture}"
    RESULT_VARIABLE differs)
  if(differs)
    message(SEND_ERROR "${picture} is not what docs/pictures/draw.py draws: run it.")
  endif()
endforeach()
