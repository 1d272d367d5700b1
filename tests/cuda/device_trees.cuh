// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/core/tree.cuh"

namespace espalier_test {

//! A host tree and how long its text is, in the memory of the device.
class device_sequence {
 public:
  explicit device_sequence(espalier::tree_view tree, std::int32_t text_size, std::int32_t capacity = 0)
      : tree_(capacity > 0 ? capacity : (tree.n_draws > 0 ? tree.n_draws : 1)), state_(1) {
    set(tree, text_size);
  }

  void set(espalier::tree_view from, std::int32_t text_size) {
    const espalier::tree_writer to = tree_.writer();
    copy(to.token, from.token, from.n_nodes);
    copy(to.parent, from.parent, from.n_nodes);
    copy(to.depth, from.depth, from.n_nodes);
    copy(to.log_prob, from.log_prob, from.n_nodes);
    copy(to.path_log_prob, from.path_log_prob, from.n_nodes);
    copy(to.first_draw, from.first_draw, from.n_nodes);
    copy(to.next_draw, from.next_draw, from.n_draws);
    copy(to.drawn_node, from.drawn_node, from.n_draws);
    const espalier::tree_size size{from.n_nodes, from.n_draws, tree_.capacity()};
    copy(to.size, &size, 1);
    espalier::cuda::text_state state{};
    state.size = text_size;
    copy(state_.data(), &state, 1);
  }

  espalier::tree_writer writer() const { return tree_.writer(); }
  espalier::cuda::text_view text() const { return {nullptr, state_.data(), 1 << 20}; }

 private:
  template <class ElementT>
  static void copy(ElementT* to, const ElementT* from, std::int32_t n) {
    espalier::cuda::require(
        cudaMemcpy(to, from, static_cast<std::size_t>(n) * sizeof(ElementT), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  espalier::cuda::tree tree_;
  espalier::cuda::device_array<espalier::cuda::text_state> state_;
};

}  // namespace espalier_test
