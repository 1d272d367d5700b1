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

# The same for who builds without CMake, where pkg-config is.
find_program(pkg_config pkg-config)
cmake_path(GET COMPILER STEM compiler_name)
if(pkg_config AND NOT compiler_name STREQUAL "cl")
  file(GLOB modules "${WORK}/prefix/*/pkgconfig")
  foreach(component IN ITEMS core espalier)
    execute_process(COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${modules}"
        "${pkg_config}" --cflags --libs --print-errors "espalier-${component} = ${VERSION}"
      RESULT_VARIABLE result OUTPUT_VARIABLE found ERROR_VARIABLE found)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "pkg-config does not find espalier-${component}: ${found}")
    endif()
    separate_arguments(found UNIX_COMMAND "${found}")
    separate_arguments(flags UNIX_COMMAND "${FLAGS}")
    set(source core)
    if(component STREQUAL "espalier")
      set(source registry)
    endif()
    step("${COMPILER}" -std=c++20 ${flags} "${SOURCE}/${source}.cpp" -o "${WORK}/${source}" ${found})
    step("${WORK}/${source}")
  endforeach()
endif()
