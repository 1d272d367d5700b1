# espalier::c, the library for C, and for every language that can call C: included by the projects that build it. The
# number in its file's name is that of its ABI.
set(espalier_c_include "${CMAKE_CURRENT_LIST_DIR}/../../include")
# espalier_abi_of(<variable> <header> <macro>): the number of an ABI.
function(espalier_abi_of variable header macro)
  file(STRINGS "${espalier_c_include}/espalier/c/${header}" line REGEX "define ${macro} ")
  string(REGEX MATCH "[0-9]+" number "${line}")
  set(${variable} ${number} PARENT_SCOPE)
endfunction()
espalier_abi_of(abi espalier.h ESPALIER_ABI)
add_library(espalier_c SHARED)
foreach(source IN ITEMS espalier.cpp outside_decoder.cpp policies.cpp verifiers.cpp)
  target_sources(espalier_c PRIVATE "${CMAKE_CURRENT_LIST_DIR}/${source}")
endforeach()
add_library(espalier::c ALIAS espalier_c)
set_target_properties(espalier_c PROPERTIES EXPORT_NAME c CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  VERSION "${abi}" SOVERSION "${abi}")
include(GNUInstallDirs)
target_include_directories(espalier_c INTERFACE "$<BUILD_INTERFACE:${espalier_c_include}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_libraries(espalier_c PRIVATE $<BUILD_INTERFACE:espalier::espalier> $<BUILD_INTERFACE:espalier::interop>
  $<BUILD_INTERFACE:espalier_build_flags>)
