// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! A prefix that was taken, as a node of the tree: its last token by its rank in the row of its depth.
struct marginal_node {
  node_id parent;
  std::int32_t rank;       //!< among the row's most probable tokens, from 0
  std::int32_t depth;      //!< the root's is 0; row depth - 1 gave the token
  float path_log_prob;     //!< left-to-right sum in float
  std::int32_t next_rank;  //!< of the node's first child that is not taken
};

//! Chooses the most probable prefixes from marginals, best first: a merge of the nodes' lists of children by a heap that
//! holds one entry a list. Works in memory of the caller, on host and device alike; trivially copyable.
//!
//! Shapes      entries [budget + 1], nodes [budget + 1]
//! Complexity  take: O(budget * log(budget)); the comparison of equal prefixes O(depth)
//! Law         nodes are numbered in falling order of path_log_prob, among equals in lexicographic order of their ranks; parents
//!             come before children
//! Source      Ringel and Romano, DDTree, Algorithm 1; a prefix enters the heap when its parent or its elder sibling leaves it
class marginal_heap {
 public:
  ESPALIER_HOST_DEVICE marginal_heap(std::uint64_t* entries, marginal_node* nodes) : entries_(entries), nodes_(nodes) {}

  //! Takes the `budget` best prefixes, or all that have a probability.
  //!
  //! Shapes      log_prob [n_rows][n_ranks], each row falling; -inf: no such token
  //! Pre         log_prob <= 0
  //! Post        the number of prefixes taken: nodes 1 to that number; node 0 is the root
  ESPALIER_HOST_DEVICE std::int32_t take(const float* log_prob, std::int32_t n_rows, std::int32_t n_ranks,
                                         std::int32_t budget) {
    nodes_[0] = {no_node, 0, 0, 0.0F, 0};
    n_entries_ = 0;
    if (n_rows <= 0 || n_ranks <= 0 || budget <= 0) return 0;
    if (is_possible(log_prob[0])) entries_[n_entries_++] = entry(log_prob[0], root_node);
    std::int32_t n = 0;
    while (n_entries_ > 0) {
      const auto u = static_cast<node_id>(entries_[0] & 0xFFFFFFFFU);
      marginal_node& parent = nodes_[u];
      const float* row = log_prob + static_cast<std::ptrdiff_t>(parent.depth) * n_ranks;
      const std::int32_t rank = parent.next_rank++;
      const marginal_node child = {u, rank, parent.depth + 1, parent.path_log_prob + row[rank], 0};
      nodes_[++n] = child;
      if (n == budget) break;
      const bool has_sibling = rank + 1 < n_ranks && is_possible(row[rank + 1]);
      const bool has_child = child.depth < n_rows && is_possible(row[n_ranks]);
      if (has_sibling) {
        replace_top(entry(parent.path_log_prob + row[rank + 1], u));
        if (has_child) push(entry(child.path_log_prob + row[n_ranks], n));
      } else if (has_child) {
        replace_top(entry(child.path_log_prob + row[n_ranks], n));
      } else if (--n_entries_ > 0) {
        replace_top(entries_[n_entries_]);
      }
    }
    return n;
  }

 private:
  static constexpr std::int32_t arity = 4;

  ESPALIER_HOST_DEVICE static bool is_possible(float log_prob) {
    constexpr float impossible = -std::numeric_limits<float>::infinity();
    return log_prob > impossible;
  }

  // The next child of a node: smaller is better. The magnitude of a sum that is not positive, read as an integer.
  ESPALIER_HOST_DEVICE static std::uint64_t entry(float path_log_prob, node_id parent) {
    std::uint32_t bits;
    std::memcpy(&bits, &path_log_prob, sizeof bits);
    return static_cast<std::uint64_t>(bits & 0x7FFFFFFFU) << 32 | static_cast<std::uint32_t>(parent);
  }

  ESPALIER_HOST_DEVICE bool is_before(std::uint64_t a, std::uint64_t b) const {
    if ((a ^ b) >> 32 == 0)
      return precedes(static_cast<node_id>(a & 0xFFFFFFFFU), static_cast<node_id>(b & 0xFFFFFFFFU));
    return a < b;
  }

  // Whether the next child of a is lexicographically before that of b. Neither is a prefix of the other: it was not taken yet.
  ESPALIER_HOST_DEVICE bool precedes(node_id a, node_id b) const {
    std::int32_t rank_a = nodes_[a].next_rank, rank_b = nodes_[b].next_rank;
    while (a != b) {
      if (nodes_[a].depth >= nodes_[b].depth) {
        const bool both = nodes_[a].depth == nodes_[b].depth;
        rank_a = nodes_[a].rank, a = nodes_[a].parent;
        if (!both) continue;
      }
      rank_b = nodes_[b].rank, b = nodes_[b].parent;
    }
    return rank_a < rank_b;
  }

  ESPALIER_HOST_DEVICE void push(std::uint64_t e) {
    std::int32_t i = n_entries_++;
    while (i > 0) {
      const std::int32_t above = (i - 1) / arity;
      if (!is_before(e, entries_[above])) break;
      entries_[i] = entries_[above];
      i = above;
    }
    entries_[i] = e;
  }

  ESPALIER_HOST_DEVICE void replace_top(std::uint64_t e) {
    std::int32_t i = 0;
    for (;;) {
      const std::int32_t first = arity * i + 1;
      if (first >= n_entries_) break;
      const std::int32_t end = first + arity < n_entries_ ? first + arity : n_entries_;
      std::int32_t best = first;
      for (std::int32_t j = first + 1; j < end; ++j)
        best = is_before(entries_[j], entries_[best]) ? j : best;
      if (!is_before(entries_[best], e)) break;
      entries_[i] = entries_[best];
      i = best;
    }
    entries_[i] = e;
  }

  std::uint64_t* entries_;
  marginal_node* nodes_;
  std::int32_t n_entries_ = 0;
};

}  // namespace espalier
