// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/shared_rows.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"

//! How the host gets the values that were learnt of texts, and gives them back to the device: first the policy's values
//! (those of each policy of a cascade, one after the other), then the rounds' values.
namespace espalier::cuda::detail {

// Values that one part of the rounds has learnt of the texts. Shapes: from [places][n]
struct learnt_part {
  const std::int32_t* from = nullptr;
  std::int32_t n = 0;
};

// The learnt values of the texts on the device, part by part, and the memory from which they are copied to the host.
template <std::size_t N>
struct learnt_words {
  learnt_part parts[N];
  std::int32_t* kept;  // [places][n]
  std::int32_t n;      // number of words of all parts
};

// Copies what was learnt of each text to `kept`; one block works for a lane.
template <class WordsT>
ESPALIER_KERNEL void keep_learnt(text_batch texts, WordsT learnt) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  std::int32_t* to = learnt.kept + static_cast<std::ptrdiff_t>(here.place) * learnt.n;
  for (const learnt_part& part : learnt.parts) {
    const std::int32_t* const from = part.from + static_cast<std::ptrdiff_t>(here.place) * part.n;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < part.n; i += static_cast<std::int32_t>(blockDim.x))
      to[i] = from[i];
    to += part.n;
  }
}

// Copies bytes to the device, in the stream's order. They are in pageable memory of the host, which is not needed after
// the call.
inline void put_bytes(void* to, std::span<const std::byte> from, cudaStream_t stream) {
  if (from.empty()) return;
  require(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

// Returns the number of 32-bit words that a policy learns of a text.
template <class PolicyT>
std::int32_t learnt_words_of(const PolicyT& policy) {
  std::size_t n = 0;
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) n += one.learnt_bytes();
  });
  return static_cast<std::int32_t>(n / sizeof(std::int32_t));
}

// Gives the policy, for the text in this place, values that were learnt elsewhere. Pre: `learnt` has as many bytes as
// the policy learns of a text
template <class PolicyT>
void put_learnt(const PolicyT& policy, std::int32_t place, std::span<const std::byte> learnt, cudaStream_t stream) {
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) {
      const std::size_t n = one.learnt_bytes();
      put_bytes(one.learnt() + static_cast<std::size_t>(place) * n, learnt.first(n), stream);
      learnt = learnt.subspan(n);
    }
  });
}

// Copies what policy and rounds have learnt to `kept`. Shapes: gains [places][gains.n], kept [places][all words]
template <class PolicyT>
void keep_learnt_of(const text_batch& texts, const PolicyT& policy, learnt_part gains, std::int32_t* kept,
                    cudaStream_t stream) {
  using words = learnt_words<n_parts<PolicyT> + 1>;
  words all{{}, kept, learnt_words_of(policy) + gains.n};
  learnt_part* next = all.parts;
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) {
      *next++ = {reinterpret_cast<const std::int32_t*>(one.learnt()),
                 static_cast<std::int32_t>(one.learnt_bytes() / sizeof(std::int32_t))};
    }
  });
  *next = gains;
  launch("keep_learnt", keep_learnt<words>, {.grid = texts.lanes(), .threads = 64}, stream, texts, all);
}

}  // namespace espalier::cuda::detail
