# Whether this machine compiles CUDA. ESPALIER_CUDA=OFF does not even look.
#
# Sets ESPALIER_HAS_CUDA. Code for compute capability 8.0 and 9.0, and PTX for later ones.
option(ESPALIER_CUDA "Compile the CUDA half where nvcc is" ON)
set(ESPALIER_HAS_CUDA FALSE)
if(ESPALIER_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    # Where no card was named: tests compile for one architecture, optimised little, and examples to PTX, which the driver
    # compiles when they first run. Optimising every kernel for every card takes ptxas minutes.
    set(espalier_test_architectures 90)
    set(espalier_test_flags -Ofc=max)
    set(espalier_example_architectures 80-virtual 90-virtual)
  else()
    set(espalier_test_architectures ${CMAKE_CUDA_ARCHITECTURES})
    set(espalier_test_flags)
    set(espalier_example_architectures ${CMAKE_CUDA_ARCHITECTURES})
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
