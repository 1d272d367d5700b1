# Whether this machine compiles CUDA. ESPALIER_CUDA=OFF does not even look.
#
# Sets ESPALIER_HAS_CUDA, and ESPALIER_HAS_GPU: a GPU is here, or was named by CMAKE_CUDA_ARCHITECTURES. Otherwise programs hold code for
# compute capability 8.0 and 9.0, and PTX for later ones; and tests and examples PTX alone, since ptxas would take minutes to optimise
# for every card what none here will run.
option(ESPALIER_CUDA "Compile the CUDA half where nvcc is" ON)
set(ESPALIER_HAS_CUDA FALSE)
if(ESPALIER_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE espalier_no_gpu OUTPUT_QUIET ERROR_QUIET)
  set(ESPALIER_HAS_GPU TRUE)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND espalier_no_gpu EQUAL 0)
    set(CMAKE_CUDA_ARCHITECTURES native)
  elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    set(ESPALIER_HAS_GPU FALSE)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    set(ESPALIER_HAS_CUDA ${CUDAToolkit_FOUND})
  endif()
endif()

# Flags of this repository's own CUDA programs. Without -fmad, host and device round alike: their results are compared bit for bit.
add_library(espalier_cuda_flags INTERFACE)
target_compile_options(espalier_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xcompiler=-Wall,-Wextra,-Wno-parentheses --Werror=all-warnings>)

# Flags of code for a GPU that is not here, which nobody runs: nvcc compiles all of it, and takes no time to optimise.
add_library(espalier_unrun_cuda_flags INTERFACE)
target_compile_options(espalier_unrun_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-O0>)
if(ESPALIER_HAS_CUDA AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(espalier_unrun_cuda_flags INTERFACE "SHELL:$<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile max>")
endif()
