// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"

namespace espalier_test {

//! Host trees and how long their texts are, in the memory of the device.
class device_sequences {
 public:
  explicit device_sequences(std::int32_t n, std::int32_t capacity)
      : trees_(capacity, n), states_(static_cast<std::size_t>(n)) {}

  void set(std::int32_t i, espalier::tree_view from, std::int32_t text_size) {
    const std::size_t words = espalier::cuda::tree::n_words(trees_.capacity());
    const espalier::tree_writer to =
        espalier::cuda::tree::at(trees_.words().data() + static_cast<std::size_t>(i) * words, trees_.capacity());
    copy(to.token, from.token, from.n_nodes);
    copy(to.parent, from.parent, from.n_nodes);
    copy(to.depth, from.depth, from.n_nodes);
    copy(to.log_prob, from.log_prob, from.n_nodes);
    copy(to.path_log_prob, from.path_log_prob, from.n_nodes);
    copy(to.first_draw, from.first_draw, from.n_nodes);
    copy(to.next_draw, from.next_draw, from.n_draws);
    copy(to.drawn_node, from.drawn_node, from.n_draws);
    const espalier::tree_size size{from.n_nodes, from.n_draws, trees_.capacity()};
    copy(to.size, &size, 1);
    espalier::cuda::text_state state{};
    state.size = text_size;
    copy(states_.data() + i, &state, 1);
  }

  //! All of them, for launches that are made for max_context tokens; text i has sequence first_sequence + i.
  espalier::cuda::text_batch texts(std::int32_t max_context = 0, std::int32_t first_sequence = 0) const {
    auto batch = espalier::cuda::text_batch::of(trees_.writer(), {nullptr, states_.data(), 1 << 20}, max_context,
                                                first_sequence);
    batch.n = static_cast<std::int32_t>(states_.size());
    batch.tree_words = static_cast<std::ptrdiff_t>(espalier::cuda::tree::n_words(trees_.capacity()));
    return batch;
  }

 private:
  template <class ElementT>
  static void copy(ElementT* to, const ElementT* from, std::int32_t n) {
    espalier::cuda::require(
        cudaMemcpy(to, from, static_cast<std::size_t>(n) * sizeof(ElementT), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  espalier::cuda::tree trees_;
  espalier::cuda::device_array<espalier::cuda::text_state> states_;
};

//! One of them.
class device_sequence : public device_sequences {
 public:
  explicit device_sequence(espalier::tree_view tree, std::int32_t text_size, std::int32_t capacity = 0)
      : device_sequences(1, capacity > 0 ? capacity : (tree.n_draws > 0 ? tree.n_draws : 1)) {
    set(tree, text_size);
  }

  void set(espalier::tree_view from, std::int32_t text_size) { device_sequences::set(0, from, text_size); }
};

}  // namespace espalier_test
