# The components of the library. A component is some folders of include/espalier/ and the target espalier::<component>. A header belongs
# to the component that names the innermost folder around it; NAME.hpp or NAME.cuh beside a folder NAME belongs to that folder, and other
# headers of include/espalier/ itself belong to core. Headers are found, not listed.
#
# Nothing that a component needs is looked for here, so that whoever does not use it needs nothing: NEEDS is what it links besides.

# espalier_component(<name> FOLDERS <folder>... [LINK <component>...] [NEEDS <target>...])
set(espalier_components)
macro(espalier_component name)
  cmake_parse_arguments(arg "" "" "FOLDERS;LINK;NEEDS" ${ARGN})
  list(APPEND espalier_components ${name})
  set(espalier_${name}_folders ${arg_FOLDERS})
  set(espalier_${name}_links ${arg_LINK})
  set(espalier_${name}_needs ${arg_NEEDS})
endmacro()

# The library: the standard library alone.
espalier_component(core FOLDERS core concepts sampling forward processor kv_store cost drafter tree_policy verifier backend decoder)
# Drafting the next round while the target verifies, in a thread.
espalier_component(ahead FOLDERS decoder/ahead LINK core NEEDS Threads::Threads)
# The laws of the concepts, for the tests of one's own parts.
espalier_component(testing FOLDERS testing LINK core)
# Regular expressions that say what may be written.
espalier_component(constraint FOLDERS constraint LINK core)
# Acceptance rates and expected block efficiency.
espalier_component(analysis FOLDERS analysis LINK core)
# Other engines' layouts of a tree, on the host and on the device.
espalier_component(interop FOLDERS interop cuda/interop LINK core)
# A transformer for small machines.
espalier_component(small FOLDERS model/small LINK core)
# A network that chooses trees.
espalier_component(selector FOLDERS selector LINK core)
# The registry of all parts.
espalier_component(espalier FOLDERS registry LINK core selector NEEDS Boost::headers)
# Views over trees.
espalier_component(views FOLDERS views LINK core NEEDS range-v3::range-v3)
# Pictures of trees and rounds.
espalier_component(report FOLDERS report LINK views)
# Files: models, costs, selectors, JSON schemas.
espalier_component(files FOLDERS model/files constraint/schema selector/files LINK constraint selector NEEDS nlohmann_json::nlohmann_json)
# The library's own transformer on the host.
espalier_component(llama FOLDERS model/llama LINK files NEEDS Threads::Threads)
# That transformer over ranks.
espalier_component(parallel FOLDERS model/parallel LINK llama)
# Ranks that are processes.
espalier_component(mpi FOLDERS model/mpi LINK parallel NEEDS MPI::MPI_CXX)
# Models that llama.cpp runs.
espalier_component(llama_cpp FOLDERS model/llama_cpp LINK core NEEDS llama)
# Grammars that say what may be written.
espalier_component(xgrammar FOLDERS constraint/grammar LINK constraint NEEDS xgrammar)
# Modules of PyTorch.
espalier_component(torch FOLDERS model/torch LINK files NEEDS "$<BUILD_INTERFACE:espalier_libtorch>" "$<INSTALL_INTERFACE:torch>")
# Tokenizers and chat templates of model files.
espalier_component(tokenizer FOLDERS model/tokenizer LINK files NEEDS PCRE2::8BIT utf8proc::utf8proc sentencepiece::sentencepiece)
# The round on the device.
espalier_component(cuda FOLDERS cuda LINK core NEEDS CUDA::cudart)
# The registry on the device.
espalier_component(cuda_registry FOLDERS cuda/registry LINK cuda espalier)
# The library's own transformer on the device.
espalier_component(cuda_llama FOLDERS cuda/model/llama LINK cuda llama NEEDS CUDA::cublasLt)
# That transformer over ranks.
espalier_component(cuda_parallel FOLDERS cuda/model/parallel LINK cuda_llama parallel)
# Ranks with a GPU each.
espalier_component(nccl FOLDERS cuda/model/nccl LINK cuda_parallel NEEDS NCCL::nccl)
# Modules of PyTorch on the device.
espalier_component(cuda_torch FOLDERS cuda/model/torch LINK cuda torch)

# espalier_find_headers(<root>): sets espalier_<component>_headers, paths below <root>, sorted, for every component.
function(espalier_find_headers root)
  # A change of the folders makes CMake run again.
  set(depends CONFIGURE_DEPENDS)
  if(CMAKE_SCRIPT_MODE_FILE)
    set(depends)
  endif()
  file(GLOB_RECURSE headers RELATIVE "${root}" ${depends} "${root}/include/*.hpp" "${root}/include/*.cuh")
  foreach(component IN LISTS espalier_components)
    foreach(folder IN LISTS espalier_${component}_folders)
      string(REPLACE "/" "_" key "${folder}")
      set(component_of_${key} ${component})
    endforeach()
  endforeach()
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "^include/espalier/|[.](hpp|cuh)$" "" folder "${header}")
    set(found core)
    while(folder)
      string(REPLACE "/" "_" key "${folder}")
      if(DEFINED component_of_${key})
        set(found ${component_of_${key}})
        break()
      endif()
      if(NOT folder MATCHES "/")
        break()
      endif()
      string(REGEX REPLACE "/[^/]*$" "" folder "${folder}")
    endwhile()
    list(APPEND espalier_${found}_headers "${header}")
  endforeach()
  foreach(component IN LISTS espalier_components)
    set(espalier_${component}_headers ${espalier_${component}_headers} PARENT_SCOPE)
  endforeach()
endfunction()
