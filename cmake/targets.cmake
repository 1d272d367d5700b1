# espalier::espalier  the library: the standard library and Boost.Hana, nothing else
# espalier::views     range-v3 views over trees
# espalier::llama     the bundled host transformer: nlohmann-json, threads
# espalier::cuda      the round on the device: CUDA runtime, CUB
# espalier::cuda_llama  the bundled transformer on the device: cuBLASLt, nlohmann-json, threads
#
# All but the first are defined without looking for what they need, so that whoever does not use them needs nothing.

function(espalier_target name headers)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "EXPORT_NAME" "LINK")
  add_library(${name} INTERFACE)
  add_library(espalier::${arg_EXPORT_NAME} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${arg_EXPORT_NAME})
  target_compile_features(${name} INTERFACE cxx_std_20)
  target_sources(${name} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
    FILES ${headers})
  target_link_libraries(${name} INTERFACE ${arg_LINK})
endfunction()

espalier_target(espalier "${espalier_headers}" EXPORT_NAME espalier LINK Boost::headers)
espalier_target(espalier_views "${espalier_views_headers}" EXPORT_NAME views
  LINK espalier::espalier range-v3::range-v3)
espalier_target(espalier_llama "${espalier_llama_headers}" EXPORT_NAME llama
  LINK espalier::espalier nlohmann_json::nlohmann_json Threads::Threads)
espalier_target(espalier_cuda "${espalier_cuda_headers}" EXPORT_NAME cuda LINK espalier::espalier CUDA::cudart)
# As an option, because CMake 3.25 does not know that nvcc has C++20.
target_compile_options(espalier_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
espalier_target(espalier_cuda_llama "${espalier_cuda_llama_headers}" EXPORT_NAME cuda_llama
  LINK espalier::cuda espalier::llama CUDA::cublasLt)
