// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/arrays.cu
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/device_array.cuh"

namespace espalier::cuda {

//! The draft trees of one round, one for each text, in the memory of the device. Kernels get a writer by value.
//!
//! Errors      option_error for a capacity outside 0 to 1048576; cuda_error if there is no memory
class tree {
 public:
  //! Makes n_trees trees with room for `capacity` draws each; the root is not counted. `more` words follow the trees,
  //! so that data that is copied together with them can lie there.
  explicit tree(std::int32_t capacity, std::int32_t n_trees = 1, std::size_t more = 0) : capacity_(capacity) {
    require_option("tree capacity", capacity, 0, 1 << 20);
    words_ = device_array<std::int32_t>(n_words(capacity) * static_cast<std::size_t>(n_trees) + more);
  }

  std::int32_t capacity() const { return capacity_; }
  //! The writer of the first tree, for use in kernels: its addresses are on the device. The next tree begins
  //! n_words(capacity()) words further.
  tree_writer writer() const { return at(words_.data(), capacity_); }
  //! The memory of all trees, which can be copied in one piece.
  const device_array<std::int32_t>& words() const { return words_; }

  //! Number of 32-bit words of a tree of this capacity.
  static std::size_t n_words(std::int32_t capacity) {
    return 7 * (static_cast<std::size_t>(capacity) + 1) + 2 * static_cast<std::size_t>(capacity) +
           sizeof(tree_size) / sizeof(std::int32_t);
  }

  //! The writer of the tree that lies at `words`, on the device or in a copy on the host.
  static tree_writer at(std::int32_t* words, std::int32_t capacity) {
    const auto next = [&words](std::size_t n) {
      std::int32_t* const first = words;
      words += n;
      return first;
    };
    const auto nodes = static_cast<std::size_t>(capacity) + 1;
    const auto draws = static_cast<std::size_t>(capacity);
    tree_writer w;
    w.size = reinterpret_cast<tree_size*>(next(sizeof(tree_size) / sizeof(std::int32_t)));
    w.token = next(nodes);
    w.parent = next(nodes);
    w.depth = next(nodes);
    w.first_draw = next(nodes);
    w.last_draw = next(nodes);
    w.log_prob = reinterpret_cast<float*>(next(nodes));
    w.path_log_prob = reinterpret_cast<float*>(next(nodes));
    w.next_draw = next(draws);
    w.drawn_node = next(draws);
    return w;
  }

 private:
  std::int32_t capacity_;
  device_array<std::int32_t> words_;
};

}  // namespace espalier::cuda
