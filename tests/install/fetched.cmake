cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/fetched")
file(REMOVE_RECURSE "${WORK}")

foreach(folder IN LISTS BOOST)
  if(EXISTS "${folder}/boost/hana.hpp")
    file(COPY "${folder}/boost/hana.hpp" "${folder}/boost/hana" DESTINATION "${WORK}/boost/libs/hana/include/boost")
  endif()
endforeach()
set(without_boost -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
  -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON)


# install_and_consume(<program> <options of the library> <options of its user>): a package may be moved once it is installed.
function(install_and_consume program options consumer_options)
  set(place "${WORK}/${program}")
  step("${CMAKE_COMMAND}" -S "${PROJECT}" -B "${place}/build" ${without_boost} ${options}
    "-DCMAKE_INSTALL_PREFIX=${place}/prefix" -DFETCHCONTENT_FULLY_DISCONNECTED=ON
    -DESPALIER_BUILD_TESTS=OFF -DESPALIER_BUILD_EXAMPLES=OFF -DESPALIER_BUILD_BENCH=OFF)
  step("${CMAKE_COMMAND}" --install "${place}/build")
  file(RENAME "${place}/prefix" "${place}/moved")
  file(REMOVE_RECURSE "${WORK}/boost" "${place}/build")
  step("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${place}/consumer" ${without_boost} ${consumer_options}
    "-DCMAKE_PREFIX_PATH=${place}/moved" "-DEXPECTED_VERSION=${VERSION}")
  step("${CMAKE_COMMAND}" --build "${place}/consumer" --target ${program})
  step("${place}/consumer/${program}")
endfunction()

install_and_consume(registry "-DFETCHCONTENT_SOURCE_DIR_BOOST=${WORK}/boost" "-DEXPECTED_BOOST=${WORK}/registry/moved")
install_and_consume(core -DESPALIER_REGISTRY=OFF -DCORE_ALONE=ON)
