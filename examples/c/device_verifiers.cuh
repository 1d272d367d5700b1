// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"

//! Verifiers on the device whose types are known at run time only. The kernels of each are compiled once, in
//! device_verifiers.cu.
namespace parts_on_device {

//! The verification of trees over logits of float, with the functions of espalier::cuda::verification.
class verification {
 public:
  virtual ~verification() = default;
  virtual void sample(std::int32_t place, espalier::sampling_options sampling, cudaStream_t stream) = 0;
  virtual void run(const espalier::cuda::text_batch& texts, const espalier::cuda::text_rows& draft,
                   const espalier::vocab_rows<float>& logits, const std::int32_t* row_of_node, std::int32_t n_rows,
                   espalier::cuda::fault* found, cudaStream_t stream, const espalier::batch_sequence* lanes) = 0;
  virtual const espalier::verdict* decisions() const = 0;
};

//! A verifier of the registry with its options, which needs no device before it is prepared.
class verifier {
 public:
  virtual ~verifier() = default;
  virtual bool argmax_only() const = 0;
  virtual bool target_alone() const = 0;
  //! Makes its verification on the present device, for trees of max_nodes nodes, root included.
  //!
  //! Errors      cuda_error where there is no memory
  virtual std::unique_ptr<verification> prepare(std::int32_t max_nodes, std::int32_t vocab,
                                                std::int32_t max_texts) const = 0;
};

//! Makes a verifier of the registry, as parts::make_verifier() does on the host.
//!
//! Errors      option_error for a name, an option or a value that is not known or out of range
std::unique_ptr<verifier> make_verifier(std::string_view name, std::string_view options = "");

}  // namespace parts_on_device
