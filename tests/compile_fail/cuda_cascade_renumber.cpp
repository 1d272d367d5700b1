// expect: each of its step drafters must have renumber
// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"

namespace device = espalier::cuda;

struct drafter {
  void reserve(std::int32_t, std::int32_t, device::fault*);
  void begin(std::int32_t, device::text_view, std::span<const espalier::token_id>, std::int32_t, cudaStream_t);
  void ensure(std::int32_t, std::int32_t, cudaStream_t);
  void commit(const device::text_batch&, device::path_view, cudaStream_t);
  std::int32_t capacity() const;
  std::int32_t vocab_size() const;
  void propose(const device::text_batch&, device::node_list, cudaStream_t);
  device::text_rows rows() const;
#ifdef ESPALIER_VALID
  void renumber(const device::text_batch&, device::moved_nodes, cudaStream_t);
#endif
};

void grow(device::cascade<device::chain>& policy, const device::text_batch& texts, device::joint<drafter>& drafters,
          cudaStream_t stream) {
  device::grow(policy, texts, drafters, stream);
}
