// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "device_text.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "inputs.hpp"

namespace bench {

//! A tree of so many drafted tokens on the device, as best_first grows it from 15 marginals; a root alone for 0 tokens.
class grown_tree {
 public:
  explicit grown_tree(std::int32_t budget, std::size_t vocab = 20000) : tree_(budget) {
    constexpr std::int32_t n_rows = 15;
    reset_tree(tree_.writer(), budget, nullptr);
    espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (budget == 0) return;
    const token_lists lists(n_rows, static_cast<std::size_t>(budget), vocab, 11);
    const espalier::cuda::device_array<espalier::token_id> tokens{std::span<const espalier::token_id>(lists.tokens)};
    const espalier::cuda::device_array<float> log_probs{std::span<const float>(lists.log_probs)};
    const espalier::cuda::best_first policy({.budget = budget});
    policy.take_best(espalier::cuda::text_batch::of(tree_.writer(), {}),
                     {.tokens = tokens.data(), .log_probs = log_probs.data(), .n_rows = n_rows, .n_ranks = budget},
                     nullptr);
    espalier::cuda::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  espalier::tree_writer writer() const { return tree_.writer(); }

 private:
  espalier::cuda::tree tree_;
};

}  // namespace bench
