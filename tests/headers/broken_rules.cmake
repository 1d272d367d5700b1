# cmake -DROOT=<repository> -DWORK=<folder> -P broken_rules.cmake: breaks rules in a copy, and checks that each is named.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${WORK}")
foreach(path IN ITEMS include docs/design.md)
  get_filename_component(folder "${WORK}/${path}" DIRECTORY)
  file(COPY "${ROOT}/${path}" DESTINATION "${folder}")
endforeach()

file(COPY "${ROOT}/tests" DESTINATION "${WORK}"
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.cu" PATTERN "*.cmake" PATTERN "CMakeLists.txt" PATTERN "data" EXCLUDE)

set(expected)
# include_in(<header> <what it shall include> [<what is said of it>])
macro(include_in header included)
  file(APPEND "${WORK}/include/espalier/${header}" "#include \"espalier/${included}\"\n")
  list(APPEND expected "${header} is of [a-z_/]+, which does not include ${included}")
endmacro()
include_in(core/token.hpp concepts/backend.hpp)
include_in(concepts/regime.hpp sampling/sampler.hpp)
include_in(tree_policy/plain.hpp drafter/no_drafter.hpp)
include_in(verifier/greedy.hpp espalier.hpp)
include_in(decoder/stop.hpp verifier/greedy.hpp)
include_in(cuda/drafter/no_drafter.cuh cuda/backend/callable.cuh)
include_in(cuda/core/path.cuh concepts/regime.hpp)
include_in(cuda/model/llama/number.cuh backend/text.hpp)

file(WRITE "${WORK}/include/espalier/model/other.hpp" "// SPDX-License-Identifier: BSL-1.0\n#pragma once\n")
list(APPEND expected "model/other.hpp stands in no folder of the table" "model/other.hpp has no test tests/model/other.cpp")

string(REPEAT "x" 118 long)
file(APPEND "${WORK}/include/espalier/core/token.hpp" "// ${long}\n")
list(APPEND expected "core/token.hpp has a line of more than 120 columns: // xxx")

# A row that names one below it: the two would include each other.
file(READ "${WORK}/docs/design.md" page)
string(REGEX REPLACE "(\n\\| `sampling` \\|[^|]*\\| `core`)" "\\1 `decoder`" page "${page}")
file(WRITE "${WORK}/docs/design.md" "${page}")
list(APPEND expected "lets sampling include decoder, which is no row above it")

# A part without a test, and with it the headers in its folder.
file(REMOVE "${WORK}/tests/verifier/khisti.cpp")
list(APPEND expected "verifier/khisti.hpp has no test tests/verifier/khisti.cpp"
  "verifier/khisti/pair_select.hpp has no test" "verifier/khisti/pair_select_view.hpp has no test")
# A test of three headers that is gone, two that nothing builds, and a header that names another test although it has its own.
file(REMOVE "${WORK}/tests/core/util/bytes.cpp")
list(APPEND expected "byte_reader.hpp is said to be tested by tests/core/util/bytes.cpp, but there is no such file"
  "byte_writer.hpp is said to be tested by tests/core/util/bytes.cpp, but there is no such file"
  "checksum.hpp is said to be tested by tests/core/util/bytes.cpp, but there is no such file")
file(READ "${WORK}/tests/CMakeLists.txt" page)
string(REPLACE "SOURCES views.cpp" "" page "${page}")
string(REGEX REPLACE "FOLDERS report" "FOLDERS report EXCEPT report/timeline.cpp" page "${page}")
file(WRITE "${WORK}/tests/CMakeLists.txt" "${page}")
list(APPEND expected "tests/views.cpp is built by no test" "tests/report/timeline.cpp is built by no test")
file(WRITE "${WORK}/tests/decoder/processed_rows.cpp" "")
list(APPEND expected "processed_rows.hpp says that it is tested by tests/[a-z_/.]*, and has tests/decoder/processed_rows.cpp")

execute_process(COMMAND "${CMAKE_COMMAND}" "-DROOT=${WORK}" -P "${CMAKE_CURRENT_LIST_DIR}/rules.cmake"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
set(missing)
foreach(sentence IN LISTS expected)
  if(NOT output MATCHES "${sentence}")
    string(APPEND missing "\n  ${sentence}")
  endif()
endforeach()
string(REGEX MATCHALL
  "which does not include|in no folder|no row above|has no test|no such file|built by no test|and has tests|a line of"
  named "${output}")
list(LENGTH named n_named)
list(LENGTH expected n_expected)
if(missing OR result EQUAL 0 OR NOT n_named EQUAL n_expected)
  message(FATAL_ERROR "${n_expected} breaches were made, ${n_named} are named; these are not:${missing}\n${output}")
endif()
