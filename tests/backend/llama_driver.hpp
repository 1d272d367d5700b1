// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "espalier/backend/llama.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/kv_store/contiguous.hpp"

//! Ways to run a backend that tests compare with one another.
namespace llama_driver {

using row_type = std::vector<float>;

inline espalier::contiguous_kv cache_for(const espalier::llama_backend& backend, int capacity, int n_sequences = 1,
                                         espalier::commit_mode mode = espalier::commit_mode::compact) {
  return {backend.config().n_layers, backend.config().kv_size(), n_sequences, capacity, mode};
}

inline std::vector<row_type> rows_of(espalier::logits_view logits) {
  std::vector<row_type> rows;
  for (std::int32_t r = 0; r < logits.n_rows; ++r)
    rows.emplace_back(logits.row(r).begin(), logits.row(r).end());
  return rows;
}

inline void commit_first(espalier::contiguous_kv& kv, int sequence, int n) {
  std::vector<std::int32_t> kept(static_cast<std::size_t>(n));
  std::iota(kept.begin(), kept.end(), 0);
  kv.commit(sequence, kept);
}

//! Plain decoding: one token a pass; the logits after each.
inline std::vector<row_type> plainly(espalier::llama_backend& backend, espalier::contiguous_kv& kv,
                                     std::span<const espalier::token_id> tokens, int sequence = 0) {
  std::vector<row_type> rows;
  for (const espalier::token_id token : tokens) {
    espalier::forward_batch batch;
    const int position = kv.size(sequence);
    kv.append(sequence, 1);
    batch.begin_sequence(sequence, position, 1);
    batch.add_row(token, position, 0, true);
    rows.push_back(rows_of(backend.forward(kv, batch.view())).front());
    commit_first(kv, sequence, 1);
  }
  return rows;
}

//! Adds a chain in which every row asks for logits.
inline void add_whole_chain(espalier::forward_batch& batch, std::span<const espalier::token_id> tokens, int position) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto column = static_cast<std::int32_t>(i);
    batch.add_row(tokens[i], position + column, column, true).include_first(column);
  }
}

struct tree {
  std::vector<espalier::token_id> tokens;
  std::vector<int> parents;  //!< -1 for the root; parents come first

  std::vector<int> path_to(int node) const {
    std::vector<int> path;
    for (; node >= 0; node = parents[static_cast<std::size_t>(node)])
      path.insert(path.begin(), node);
    return path;
  }
  std::vector<espalier::token_id> tokens_to(int node) const {
    std::vector<espalier::token_id> found;
    for (const int u : path_to(node))
      found.push_back(tokens[static_cast<std::size_t>(u)]);
    return found;
  }
};

inline tree random_tree(std::mt19937& random, int n_nodes, int vocab) {
  tree t;
  for (int u = 0; u < n_nodes; ++u) {
    t.tokens.push_back(static_cast<int>(random() % static_cast<unsigned>(vocab)));
    t.parents.push_back(u == 0 ? -1 : static_cast<int>(random() % static_cast<unsigned>(u)));
  }
  return t;
}

//! Adds the nodes of a tree in scratch slots 0, 1, ...
inline void add_tree(espalier::forward_batch& batch, const tree& t, int position) {
  for (int u = 0; u < static_cast<int>(t.tokens.size()); ++u) {
    const std::vector<int> path = t.path_to(u);
    const espalier::mask_row mask =
        batch.add_row(t.tokens[static_cast<std::size_t>(u)], position + static_cast<int>(path.size()) - 1, u, true);
    for (const int ancestor : path)
      mask.set(ancestor);
  }
}

inline std::vector<espalier::token_id> random_tokens(std::mt19937& random, int n, int vocab) {
  std::vector<espalier::token_id> tokens(static_cast<std::size_t>(n));
  for (espalier::token_id& token : tokens)
    token = static_cast<int>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

}  // namespace llama_driver
