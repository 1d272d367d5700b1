// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string_view>

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
// each policy, and the kernels of the verifiers once, in named_verifier.cu.
namespace espalier_test {

// The verification of trees over logits that are floats, with the functions of espalier::cuda::verification.
struct verification_by_name {
  virtual ~verification_by_name() = default;
  virtual void sample(std::int32_t place, espalier::sampling_options sampling, cudaStream_t stream) = 0;
  virtual void run(const espalier::cuda::text_batch& texts, const espalier::cuda::text_rows& draft,
                   const espalier::vocab_rows<float>& logits, const std::int32_t* row_of_node, std::int32_t n_rows,
                   espalier::cuda::fault* found, cudaStream_t stream, const espalier::batch_sequence* lanes) = 0;
  virtual const espalier::verdict* decisions() const = 0;
};

// Makes the verification by the registry's verifier of this name.
std::unique_ptr<verification_by_name> make_verification(std::string_view name, std::int32_t max_nodes,
                                                        std::int32_t vocab, std::int32_t max_texts);

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
      : held_(espalier_test::make_verification(verifier.name, max_nodes, vocab, max_texts)) {}

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
  std::unique_ptr<espalier_test::verification_by_name> held_;
};
