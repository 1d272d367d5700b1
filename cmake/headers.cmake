# Every public header, by the target that offers it. Never globbed: a header that is not listed here is
# neither installed nor tested, and the test headers.rules names it.

# espalier::espalier: the standard library and Boost.Hana. include/espalier/espalier.hpp includes all of these.
set(espalier_headers
  include/espalier/espalier.hpp
  include/espalier/version.hpp
  include/espalier/config.hpp
  include/espalier/core/chance.hpp
  include/espalier/core/enumerating_chance.hpp
  include/espalier/core/error.hpp
  include/espalier/core/float_block.hpp
  include/espalier/core/forward_batch.hpp
  include/espalier/core/forward_batch_view.hpp
  include/espalier/core/philox.hpp
  include/espalier/core/probabilities.hpp
  include/espalier/core/status.hpp
  include/espalier/core/token.hpp
  include/espalier/core/tree.hpp
  include/espalier/core/tree_mask.hpp
  include/espalier/core/tree_order.hpp
  include/espalier/core/tree_view.hpp
  include/espalier/core/verdict.hpp
  include/espalier/concepts/backend.hpp
  include/espalier/concepts/drafter.hpp
  include/espalier/concepts/kv_store.hpp
  include/espalier/concepts/regime.hpp
  include/espalier/concepts/tree_policy.hpp
  include/espalier/concepts/verifier.hpp
  include/espalier/sampling/lazy_rows.hpp
  include/espalier/sampling/sampler.hpp
  include/espalier/sampling/softmax.hpp
  include/espalier/sampling/top_k.hpp
  include/espalier/drafter/autoregressive.hpp
  include/espalier/drafter/no_drafter.hpp
  include/espalier/tree_policy/chain.hpp
  include/espalier/tree_policy/dynatree.hpp
  include/espalier/tree_policy/fixed.hpp
  include/espalier/tree_policy/layer.hpp
  include/espalier/tree_policy/plain.hpp
  include/espalier/verifier/greedy.hpp
  include/espalier/verifier/target_only.hpp
  include/espalier/kv_store/contiguous.hpp
  include/espalier/kv_store/slot_ledger.hpp
  include/espalier/kv_store/token_kv.hpp
  include/espalier/backend/callable.hpp
  include/espalier/backend/prefill.hpp
  include/espalier/backend/text.hpp
  include/espalier/decoder/decoder.hpp
  include/espalier/decoder/observer.hpp
  include/espalier/decoder/round.hpp
  include/espalier/decoder/session.hpp
  include/espalier/decoder/statistics.hpp
  include/espalier/decoder/stop.hpp
  include/espalier/registry.hpp
  include/espalier/registry/known_value.hpp
  include/espalier/registry/option.hpp
  include/espalier/registry/part.hpp
)

# espalier::views: adds range-v3.
set(espalier_views_headers
  include/espalier/views.hpp
)

# espalier::llama: adds nlohmann-json and threads.
set(espalier_llama_headers
  include/espalier/backend/llama.hpp
  include/espalier/backend/llama/attention.hpp
  include/espalier/backend/llama/batch_check.hpp
  include/espalier/backend/llama/elementwise.hpp
  include/espalier/backend/llama/host_kv_store.hpp
  include/espalier/backend/llama/json_reader.hpp
  include/espalier/backend/llama/matrix_product.hpp
  include/espalier/backend/llama/model_config.hpp
  include/espalier/backend/llama/model_weights.hpp
  include/espalier/backend/llama/packed_matrix.hpp
  include/espalier/backend/llama/rotary_table.hpp
  include/espalier/backend/llama/safetensors_file.hpp
  include/espalier/backend/llama/simd.hpp
  include/espalier/backend/llama/tensor_reader.hpp
  include/espalier/backend/llama/thread_team.hpp
)
