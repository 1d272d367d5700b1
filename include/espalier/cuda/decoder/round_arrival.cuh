// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"

namespace espalier::cuda::detail {

// What comes over from a round: by lane, and the trees by place.
struct round_arrival {
  std::span<const round_outcome> outcomes;
  std::int32_t* trees;
  std::int32_t capacity;
  std::span<const std::int32_t> learnt{};
  std::int32_t learnt_words = 0;    // of a place
  std::exception_ptr failure{};     // of a model of the host, where any text has a fault
  std::exception_ptr processing{};  // of a processor, likewise

  tree_view tree(std::int32_t place) const {
    return tree::at(trees + static_cast<std::size_t>(place) * tree::n_words(capacity), capacity).view();
  }
  // Number of nodes that the tree was allowed to have, or was cut to.
  std::int32_t limit(std::int32_t place) const {
    return tree::at(trees + static_cast<std::size_t>(place) * tree::n_words(capacity), capacity).limit();
  }
  // What is known of the text in this place after the round.
  std::span<const std::byte> learnt_at(std::int32_t place) const {
    const auto n = static_cast<std::size_t>(learnt_words);
    return std::as_bytes(learnt.subspan(static_cast<std::size_t>(place) * n, n));
  }

  // Throws what the round has found in a text. What a model or a processor of the host has thrown says more than the
  // logits that it left.
  void raise_fault(std::size_t lane) const {
    const fault& found = outcomes[lane].found;
    if (found.what != fault::kind::none && failure) std::rethrow_exception(failure);
    if (found.what != fault::kind::none && processing) std::rethrow_exception(processing);
    cuda::raise_fault(found);
  }
};

}  // namespace espalier::cuda::detail
