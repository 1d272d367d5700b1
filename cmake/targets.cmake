# espalier::core           the library: the standard library, nothing else
# espalier::testing        laws that parts of one's own must keep, for their tests: nothing else
# espalier::selector       a network that chooses trees: nothing else, either
# espalier::espalier       core, selector and the registry of all parts: Boost.Hana
# espalier::views          range-v3 views over trees
# espalier::files          JSON and safetensors files: nlohmann-json
# espalier::llama          the library's own transformer on the host: files, threads
# espalier::parallel       that transformer over ranks: llama
# espalier::mpi            ranks that are processes: MPI, parallel
# espalier::llama_cpp      models that llama.cpp runs: llama.cpp
# espalier::xgrammar       grammars that say what may be written: xgrammar
# espalier::torch          modules of PyTorch: LibTorch, files
# espalier::tokenizer      tokenizers and chat templates of model files: PCRE2, utf8proc, SentencePiece, files
# espalier::cuda           the round on the device: CUDA runtime, CUB
# espalier::cuda_registry  the registry on the device: cuda, espalier
# espalier::cuda_llama     the library's own transformer on the device: cuBLASLt, cuda, llama
# espalier::cuda_parallel  that transformer over ranks: cuda_llama, parallel
# espalier::nccl           ranks with a GPU each: NCCL, cuda_parallel
# espalier::cuda_torch     modules of PyTorch on the device: cuda, torch
#
# They are defined without looking for what they need, so that whoever does not use them needs nothing. A target that knows another
# one links it, and the components of an installed package follow the same lines: espalier-config.cmake.in.

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

espalier_target(espalier_core "${espalier_core_headers}" EXPORT_NAME core)
espalier_target(espalier_testing "${espalier_testing_headers}" EXPORT_NAME testing LINK espalier::core)
espalier_target(espalier_selector "${espalier_selector_headers}" EXPORT_NAME selector LINK espalier::core)
espalier_target(espalier "${espalier_registry_headers}" EXPORT_NAME espalier LINK espalier::core espalier::selector Boost::headers)
espalier_target(espalier_views "${espalier_views_headers}" EXPORT_NAME views LINK espalier::core range-v3::range-v3)
espalier_target(espalier_files "${espalier_files_headers}" EXPORT_NAME files
  LINK espalier::core espalier::selector nlohmann_json::nlohmann_json)
espalier_target(espalier_llama "${espalier_llama_headers}" EXPORT_NAME llama LINK espalier::files Threads::Threads)
espalier_target(espalier_parallel "${espalier_parallel_headers}" EXPORT_NAME parallel LINK espalier::llama)
espalier_target(espalier_mpi "${espalier_mpi_headers}" EXPORT_NAME mpi LINK espalier::parallel MPI::MPI_CXX)
# MPI's old bindings for C++, which mpi.h of Open MPI 4 and of MPICH 3 would include.
target_compile_definitions(espalier_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
espalier_target(espalier_llama_cpp "${espalier_llama_cpp_headers}" EXPORT_NAME llama_cpp LINK espalier::core llama)
espalier_target(espalier_xgrammar "${espalier_xgrammar_headers}" EXPORT_NAME xgrammar LINK espalier::core xgrammar)
# Here LibTorch is what espalier_find_torch() finds, or what the project around this one has found; installed, it is Torch's package.
add_library(espalier_libtorch INTERFACE)
if(TARGET torch)
  target_link_libraries(espalier_libtorch INTERFACE torch)
endif()
espalier_target(espalier_torch "${espalier_torch_headers}" EXPORT_NAME torch
  LINK espalier::files "$<BUILD_INTERFACE:espalier_libtorch>" "$<INSTALL_INTERFACE:torch>")
espalier_target(espalier_tokenizer "${espalier_tokenizer_headers}" EXPORT_NAME tokenizer
  LINK espalier::files PCRE2::8BIT utf8proc::utf8proc sentencepiece::sentencepiece)
espalier_target(espalier_cuda "${espalier_cuda_headers}" EXPORT_NAME cuda LINK espalier::core CUDA::cudart)
# As an option, because CMake 3.25 does not know that nvcc has C++20.
target_compile_options(espalier_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
espalier_target(espalier_cuda_registry "${espalier_cuda_registry_headers}" EXPORT_NAME cuda_registry
  LINK espalier::cuda espalier::espalier)
espalier_target(espalier_cuda_llama "${espalier_cuda_llama_headers}" EXPORT_NAME cuda_llama
  LINK espalier::cuda espalier::llama CUDA::cublasLt)
espalier_target(espalier_cuda_parallel "${espalier_cuda_parallel_headers}" EXPORT_NAME cuda_parallel
  LINK espalier::cuda_llama espalier::parallel)
espalier_target(espalier_nccl "${espalier_nccl_headers}" EXPORT_NAME nccl LINK espalier::cuda_parallel NCCL::nccl)
espalier_target(espalier_cuda_torch "${espalier_cuda_torch_headers}" EXPORT_NAME cuda_torch
  LINK espalier::cuda espalier::torch)
