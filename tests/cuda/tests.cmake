# The sources of each CUDA test, from tests/cuda. One test is one program, for the emulated device and for a GPU.
set(espalier_cuda_tests)
macro(espalier_cuda_sources name)
  list(APPEND espalier_cuda_tests ${name})
  set(espalier_cuda_test_${name} ${ARGN})
  list(TRANSFORM espalier_cuda_test_${name} PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
endmacro()

espalier_cuda_sources(core core/arrays.cu core/block_barrier.cu core/read_ahead.cu core/warpgroup_products.cu)
espalier_cuda_sources(team core/sum_before.cu core/team.cu)
espalier_cuda_sources(tree_compile core/tree_compile.cu)
espalier_cuda_sources(kv_store kv_store/stores.cu)
espalier_cuda_sources(interop interop/conversions.cu)
espalier_cuda_sources(sampling
  sampling/found_keys.cu
  sampling/sampler.cu
  sampling/top_children.cu
  sampling/top_tokens.cu)
espalier_cuda_sources(tree_policy
  drafter/joint.cu
  drafter/prompt_lookup.cu
  registry.cu
  tree_policy/adaptive_chain.cu
  tree_policy/best_first.cu
  tree_policy/cascade.cu
  tree_policy/chain.cu
  tree_policy/delayed.cu
  tree_policy/dynatree.cu
  tree_policy/dyspec_greedy.cu
  tree_policy/dyspec_threshold.cu
  tree_policy/eagle2.cu
  tree_policy/fixed.cu
  tree_policy/growth/append_draws.cu
  tree_policy/sequoia.cu
  tree_policy/specinfer_static.cu)
espalier_cuda_sources(attention model/attention/batch_invariant.cu model/attention/tree_attention.cu)
espalier_cuda_sources(llama backend/callable.cu backend/on_host.cu model/llama/host_llama.cpp model/llama/llama_backend.cu
  model/llama/matrix_products.cu model/llama/persistent_pass.cu drafter/block_diffusion.cu)
espalier_cuda_sources(models_in_rounds model/llama/host_llama.cpp model/llama/models_in_rounds.cu)
espalier_cuda_sources(parallel model/parallel/parallel_backend.cu)
espalier_cuda_sources(nccl model/parallel/nccl_communicator.cu)
espalier_cuda_sources(decoder decoder/batch_decoder.cu decoder/cascade.cu decoder/decoder.cu decoder/shared_rows.cu
  decoder/text_processors.cu)
espalier_cuda_sources(verifier verifier/verify.cu)

# On a real device alone: LibTorch does not know the emulated one.
set(espalier_cuda_torch_source model/torch/torch_backend.cu)
