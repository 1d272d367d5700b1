# SPDX-License-Identifier: BSL-1.0
# Included after project() where the tests are built for another system than this one. Of this system's packages they use those that
# are headers alone, in a folder that holds nothing else of /usr/include; what is missing is fetched. Tests that need other packages are
# left out.
set(espalier_other_system TRUE)
set(headers "${PROJECT_BINARY_DIR}/packages/include")
file(MAKE_DIRECTORY "${headers}")

# espalier_headers(<package> <target> <header> <folder>...): the target, of these folders, where this system has the header.
function(espalier_headers package target header)
  set(CMAKE_DISABLE_FIND_PACKAGE_${package} ON PARENT_SCOPE)
  if(NOT EXISTS "/usr/include/${header}")
    return()
  endif()
  foreach(folder IN LISTS ARGN)
    file(CREATE_LINK "/usr/include/${folder}" "${headers}/${folder}" SYMBOLIC)
  endforeach()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE "${headers}")
endfunction()
espalier_headers(Boost Boost::headers boost/hana.hpp boost)
espalier_headers(nlohmann_json nlohmann_json::nlohmann_json nlohmann/json.hpp nlohmann)
espalier_headers(range-v3 range-v3::range-v3 range/v3/all.hpp concepts meta range std)
espalier_headers(Catch2 Catch2::Catch2 catch2/catch.hpp catch2)
set(Catch2_VERSION 2.13)  # version 3, which is fetched otherwise, has no such header
