// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "../../../examples/c/device_verifiers.cuh"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/verifier/verify.cuh"

// A verifier on the device that is chosen by its name at run time. A test of all pairs thus compiles one decoder for
// each policy, and the kernels of the verifiers once, in examples/c/device_verifiers.cu.
namespace espalier_test {

// The registry's verifier of a name, which must be lossless for trees of this regime. Texts with greedy are sampled at
// temperature 0, which is not checked.
template <espalier::regime Sampling>
struct named_verifier {
  static constexpr espalier::regime lossless = Sampling;
  std::string_view name;
};

}  // namespace espalier_test

template <espalier::regime Sampling>
class espalier::cuda::verification<espalier_test::named_verifier<Sampling>, float> {
 public:
  verification(espalier_test::named_verifier<Sampling> verifier, std::int32_t max_nodes, std::int32_t vocab,
               std::int32_t max_texts)
      : held_(parts_on_device::make_verifier(verifier.name)->prepare(max_nodes, vocab, max_texts)) {}

  void sample(std::int32_t place, const sampling_options& sampling, cudaStream_t stream) {
    held_->sample(place, sampling, stream);
  }
  void run(const text_batch& texts, const text_rows& draft, const vocab_rows<float>& logits,
           const std::int32_t* row_of_node, std::int32_t n_rows, fault* found, cudaStream_t stream,
           const batch_sequence* lanes) {
    held_->run(texts, draft, logits, row_of_node, n_rows, found, stream, lanes);
  }
  const verdict* decisions() const { return held_->decisions(); }

 private:
  std::unique_ptr<parts_on_device::verification> held_;
};
