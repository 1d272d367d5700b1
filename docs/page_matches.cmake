# SPDX-License-Identifier: BSL-1.0
# cmake -DPROGRAM=pairs -DPAGE=pairs.md -P page_matches.cmake: the page is what the program prints.
cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ "${PAGE}" page)
if(NOT page STREQUAL printed)
  message(FATAL_ERROR "${PAGE} is not what the code says. Make it anew: ${PROGRAM} > ${PAGE}")
endif()
