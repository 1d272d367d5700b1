# espalier::c_cuda, the verifiers of the library for C on CUDA devices: included, after cmake/cuda.cmake and library.cmake, by the
# projects that build it. CUDA's runtime is linked into it.
espalier_abi_of(abi espalier_cuda.h ESPALIER_CUDA_ABI)
add_library(espalier_c_cuda SHARED "${CMAKE_CURRENT_LIST_DIR}/espalier_cuda.cu" "${CMAKE_CURRENT_LIST_DIR}/device_verifiers.cu")
add_library(espalier::c_cuda ALIAS espalier_c_cuda)
set_target_properties(espalier_c_cuda PROPERTIES EXPORT_NAME c_cuda CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON VERSION "${abi}" SOVERSION "${abi}" CUDA_RUNTIME_LIBRARY Static)
target_include_directories(espalier_c_cuda INTERFACE "$<BUILD_INTERFACE:${espalier_c_include}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
# Without -fmad, device and host round alike, and their verdicts are equal.
target_compile_options(espalier_c_cuda PRIVATE -std=c++20 -fmad=false)
target_link_libraries(espalier_c_cuda PRIVATE $<BUILD_INTERFACE:espalier::espalier>)
