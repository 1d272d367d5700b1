// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/tree.cuh"

// Trees of the device beside the host's.
namespace espalier_test {

template <class TokenT>
__global__ void reset_tree(espalier::tree_writer tree, TokenT root, std::int32_t limit) {
  tree.reset(root, limit);
}

//! The tree in a place.
inline espalier::tree_writer writer_of(const espalier::cuda::tree& trees, std::int32_t place) {
  const std::size_t words = espalier::cuda::tree::n_words(trees.capacity());
  return espalier::cuda::tree::at(trees.words().data() + static_cast<std::size_t>(place) * words, trees.capacity());
}

//! A new round: what the last one left is overwritten, then the root alone.
inline void start_round(const espalier::cuda::tree& tree, espalier::token_id root, std::int32_t limit,
                        cudaStream_t stream = nullptr, std::int32_t place = 0) {
  const espalier::tree_writer w = writer_of(tree, place);
  const auto nodes = static_cast<std::size_t>(tree.capacity()) + 1;
  for (void* array : {static_cast<void*>(w.token), static_cast<void*>(w.parent), static_cast<void*>(w.depth),
                      static_cast<void*>(w.first_draw), static_cast<void*>(w.last_draw), static_cast<void*>(w.log_prob),
                      static_cast<void*>(w.path_log_prob)})
    espalier::cuda::require(cudaMemsetAsync(array, 0xA5, nodes * 4, stream), "cudaMemsetAsync");
  if (nodes > 1) {
    espalier::cuda::require(cudaMemsetAsync(w.next_draw, 0xA5, (nodes - 1) * 4, stream), "cudaMemsetAsync");
    espalier::cuda::require(cudaMemsetAsync(w.drawn_node, 0xA5, (nodes - 1) * 4, stream), "cudaMemsetAsync");
  }
  espalier::cuda::launch("reset_tree", reset_tree<espalier::token_id>, {}, stream, w, root,
                         limit < tree.capacity() ? limit : tree.capacity());
}

//! Names the first place in which a tree of the device differs from the host's; empty where none does.
inline std::string difference(const espalier::cuda::tree& device, const espalier::tree<>& grown,
                              std::int32_t place = 0) {
  const espalier::tree_writer w = writer_of(device, place);
  const espalier::tree_view host = grown;
  const espalier::tree_size size = to_host(w.size, 1)[0];
  if (size.n_nodes != host.n_nodes)
    return "n_nodes is " + std::to_string(size.n_nodes) + " for " + std::to_string(host.n_nodes);
  if (size.n_draws != host.n_draws)
    return "n_draws is " + std::to_string(size.n_draws) + " for " + std::to_string(host.n_draws);
  if (size.limit != grown.limit()) return "limit is " + std::to_string(size.limit);
  std::vector<std::int32_t> last_draw;
  for (espalier::node_id u = 0; u < host.n_nodes; ++u) {
    last_draw.push_back(host.first_draw[u]);
    while (last_draw.back() >= 0 && host.next_draw[last_draw.back()] >= 0)
      last_draw.back() = host.next_draw[last_draw.back()];
  }
  std::string found;
  const auto compare = [&](const char* name, const auto* on_device, const auto* on_host, std::int32_t n) {
    const auto copy = to_host(on_device, static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n && found.empty(); ++i) {
      const auto here = copy[static_cast<std::size_t>(i)];
      if (!(here == on_host[i]))
        found = std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(here) + " for " +
                std::to_string(on_host[i]);
    }
  };
  compare("parent", w.parent, host.parent, size.n_nodes);
  compare("token", w.token, host.token, size.n_nodes);
  compare("depth", w.depth, host.depth, size.n_nodes);
  compare("log_prob", w.log_prob, host.log_prob, size.n_nodes);
  compare("path_log_prob", w.path_log_prob, host.path_log_prob, size.n_nodes);
  compare("first_draw", w.first_draw, host.first_draw, size.n_nodes);
  compare("last_draw", w.last_draw, last_draw.data(), size.n_nodes);
  compare("next_draw", w.next_draw, host.next_draw, size.n_draws);
  compare("drawn_node", w.drawn_node, host.drawn_node, size.n_draws);
  return found;
}

}  // namespace espalier_test
