// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace bench {

//! A block drafter whose marginals are given, so that the draft's pass takes no time.
struct given_block {
  espalier::cuda::device_array<float> logits;  // [n_rows][vocab]
  std::int32_t n_rows = 0, vocab = 0;
  espalier::cuda::fault* faults = nullptr;

  void reserve(std::int32_t, std::int32_t, espalier::cuda::fault* found) { faults = found; }
  void begin(std::int32_t, espalier::cuda::text_view, std::span<const espalier::token_id>, std::int32_t,
             cudaStream_t) const {}
  void ensure(std::int32_t, std::int32_t, cudaStream_t) const {}
  void commit(const espalier::cuda::text_batch&, espalier::cuda::path_view, cudaStream_t) const {}
  std::int32_t capacity() const { return 1 << 30; }
  std::int32_t vocab_size() const { return vocab; }
  std::int32_t block_length() const { return n_rows; }
  espalier::vocab_rows<float> propose_block(const espalier::cuda::text_batch&, cudaStream_t) const {
    return {logits.data(), n_rows, vocab};
  }
  espalier::cuda::fault* found() const { return faults; }
};

//! The host's form of given_block, for the tree that its policy grows.
struct given_block_on_host {
  const std::vector<float>& logits;
  std::int32_t n_rows = 0, vocab = 0;

  void begin(std::span<const espalier::token_id>) {}
  void commit(espalier::tree_view, espalier::verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 30; }
  std::int32_t vocab_size() const { return vocab; }
  std::int32_t block_length() const { return n_rows; }
  espalier::vocab_rows<float> propose_block() { return {logits.data(), n_rows, vocab}; }
};

}  // namespace bench
