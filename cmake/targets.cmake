# Makes a target of each component. They are defined without looking for what they need, so that whoever does not use them needs nothing.

# Here LibTorch is what espalier_find_torch() finds, or what the project around this one has found; installed, it is Torch's package.
add_library(espalier_libtorch INTERFACE)
if(TARGET torch)
  target_link_libraries(espalier_libtorch INTERFACE torch)
endif()

foreach(component IN LISTS espalier_components)
  set(target espalier_${component})
  if(component STREQUAL "espalier")
    set(target espalier)
  endif()
  add_library(${target} INTERFACE)
  add_library(espalier::${component} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${component})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
    FILES ${espalier_${component}_headers})
  list(TRANSFORM espalier_${component}_links PREPEND espalier:: OUTPUT_VARIABLE links)
  target_link_libraries(${target} INTERFACE ${links} ${espalier_${component}_needs})
endforeach()

# MPI's old bindings for C++, which mpi.h of Open MPI 4 and of MPICH 3 would include.
target_compile_definitions(espalier_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
# As an option, because CMake 3.25 does not know that nvcc has C++20.
target_compile_options(espalier_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
