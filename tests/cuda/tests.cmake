# The sources of each CUDA test, from tests/cuda. One test is one program, for the emulated device and for a GPU.
set(espalier_cuda_tests)
# espalier_cuda_sources(<name> <folder or file>...): all sources of a folder, and of the folders in it.
macro(espalier_cuda_sources name)
  list(APPEND espalier_cuda_tests ${name})
  set(espalier_cuda_test_${name})
  foreach(path ${ARGN})
    if(IS_DIRECTORY "${CMAKE_CURRENT_LIST_DIR}/${path}")
      file(GLOB_RECURSE found CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/${path}/*.cu")
      list(APPEND espalier_cuda_test_${name} ${found})
    else()
      list(APPEND espalier_cuda_test_${name} "${CMAKE_CURRENT_LIST_DIR}/${path}")
    endif()
  endforeach()
endmacro()

# The kernels of all verifiers, and their functions of C.
set(espalier_cuda_verifiers ../../examples/c/device_verifiers.cu)
set(espalier_cuda_functions ../../examples/c/espalier_cuda.cu)

espalier_cuda_sources(core core/arrays.cu core/block_barrier.cu core/read_ahead.cu core/warpgroup_products.cu)
espalier_cuda_sources(team core/sum_before.cu core/team.cu)
espalier_cuda_sources(tree_compile core/tree_compile.cu)
espalier_cuda_sources(kv_store kv_store)
espalier_cuda_sources(interop interop)
espalier_cuda_sources(sampling sampling)
espalier_cuda_sources(tree_policy drafter/joint.cu drafter/prompt_lookup.cu registry.cu tree_policy)
espalier_cuda_sources(attention model/attention)
espalier_cuda_sources(llama backend drafter/block_diffusion.cu drafter/factorised.cu model/llama/expert_mixture.cu model/llama/host_llama.cpp
  model/llama/llama_backend.cu
  model/llama/matrix_products.cu model/llama/persistent_pass.cu model/llama/row_upload.cu)
espalier_cuda_sources(draft_heads drafter/feature_steps.cu model/llama/parallel_head_model.cu)
espalier_cuda_sources(models_in_rounds model/llama/host_llama.cpp model/llama/models_in_rounds.cu)
espalier_cuda_sources(hybrid model/llama/host_llama.cpp model/llama/hybrid.cu)
espalier_cuda_sources(parallel model/llama/host_llama.cpp model/parallel)
espalier_cuda_sources(nccl model/nccl)
espalier_cuda_sources(cascade_and_halves decoder/cascade.cu decoder/halves.cu ${espalier_cuda_verifiers})
espalier_cuda_sources(decoder decoder/decoder.cu drafter/autoregressive.cu ${espalier_cuda_verifiers}
  decoder/pairs_of_chosen_nodes.cu decoder/pairs_of_distinct_draws.cu decoder/pairs_of_draws.cu decoder/pairs_of_paths.cu)
espalier_cuda_sources(batch_decoder decoder/batch_decoder.cu decoder/batch_halves.cu ${espalier_cuda_verifiers}
  decoder/shared_rows.cu decoder/text_processors.cu)
espalier_cuda_sources(selector selector ${espalier_cuda_verifiers})
espalier_cuda_sources(verifier verifier)
espalier_cuda_sources(c c ${espalier_cuda_functions} ${espalier_cuda_verifiers} ../../examples/c/verifiers.cpp)

# On a real device alone: LibTorch does not know the emulated one.
set(espalier_cuda_torch_source model/torch/torch_backend.cu)
