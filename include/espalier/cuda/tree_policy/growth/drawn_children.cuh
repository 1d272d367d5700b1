// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/sequoia.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier::cuda::detail {

// Lists of the draws from each entry of a node list. The draws are made while the tree stays as it is; a step of
// grow_level appends them afterwards.
//
// Shapes      tokens and log_probs of children [places][entries][k]; last [places][entries]: number of an entry's last
//             draw, -1 before the first; before [k + 1]: -1, 0, 1, ..., the draw before each draw
struct drawn_children_view {
  child_lists children;
  std::int32_t* last;
  const std::int32_t* before;
  std::int32_t n_entries;

  // The lists of one text.
  __device__ drawn_children_view of(std::int32_t place) const {
    drawn_children_view own = *this;
    own.children.tokens += first_of(place);
    own.children.log_probs += first_of(place);
    own.last += static_cast<std::ptrdiff_t>(place) * n_entries;
    return own;
  }
  // Index in the lists at which the lists of a text begin.
  __device__ std::ptrdiff_t first_of(std::int32_t place) const {
    return static_cast<std::ptrdiff_t>(place) * n_entries * children.k;
  }

  __device__ std::int32_t n_draws(std::int32_t entry, node_id) const { return last[entry] + 1; }

  // Index in the lists at which the next draw of an entry is written.
  __device__ std::ptrdiff_t end(std::int32_t entry) const {
    return static_cast<std::ptrdiff_t>(entry) * children.k + last[entry] + 1;
  }

  // Adds a draw to an entry's list. Called by one thread. Pre: the entry has fewer than k draws
  __device__ void add(std::int32_t entry, const undrawn_draw& drawn) const {
    children.tokens[end(entry)] = drawn.token;
    children.log_probs[end(entry)] = espalier::detail::log_prob_of(drawn.probability);
    ++last[entry];
  }

  // Returns a tree in which the draws of this entry are the draws of the root, the last one first.
  __device__ tree_view tree_of(std::int32_t entry) const {
    tree_view view;
    view.token = children.tokens + static_cast<std::ptrdiff_t>(entry) * children.k;
    view.first_draw = last + entry;
    view.next_draw = before;
    view.drawn_node = before + 1;
    return view;
  }
};

// The memory of a drawn_children_view.
class drawn_children {
 public:
  drawn_children() = default;
  // Lists have room for k draws from a node.
  explicit drawn_children(std::int32_t k) : k_(k) {
    std::vector<std::int32_t> before(static_cast<std::size_t>(k) + 1);
    std::iota(before.begin(), before.end(), -1);
    before_ = device_array<std::int32_t>(std::span<const std::int32_t>(before));
  }

  // Allocates lists for n_entries entries of each text.
  void reserve(std::int32_t max_texts, std::int32_t n_entries) {
    last_ = device_array<std::int32_t>(static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(n_entries));
    tokens_ = device_array<token_id>(last_.size() * static_cast<std::size_t>(k_));
    log_probs_ = device_array<float>(tokens_.size());
  }

  drawn_children_view view(std::int32_t n_entries) const {
    return {
        {.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = k_}, last_.data(), before_.data(), n_entries};
  }

 private:
  std::int32_t k_ = 0;
  device_array<std::int32_t> before_;  // [k + 1]
  device_array<std::int32_t> last_;    // [texts][entries]
  device_array<token_id> tokens_;      // [texts][entries][k]
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda::detail
