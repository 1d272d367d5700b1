// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

// True if the first of two prefixes comes before the second in lexicographic order of ranks; a prefix comes before
// longer ones that begin with it. A prefix is given by the node of all its tokens but the last (a, b) and by the rank
// of its last token (rank_a, rank_b). The two prefixes differ. ancestry(u) has members parent, rank and depth.
template <class AncestryT>
ESPALIER_HOST_DEVICE bool precedes(std::int32_t a, std::int32_t rank_a, std::int32_t b, std::int32_t rank_b,
                                   const AncestryT& ancestry) {
  const bool is_shorter = ancestry(a).depth < ancestry(b).depth;
  while (ancestry(a).depth > ancestry(b).depth)
    rank_a = ancestry(a).rank, a = ancestry(a).parent;
  while (ancestry(b).depth > ancestry(a).depth)
    rank_b = ancestry(b).rank, b = ancestry(b).parent;
  if (a == b && rank_a == rank_b) return is_shorter;
  while (a != b) {
    rank_a = ancestry(a).rank, a = ancestry(a).parent;
    rank_b = ancestry(b).rank, b = ancestry(b).parent;
  }
  return rank_a < rank_b;
}

}  // namespace detail

//! A node of the tree: a prefix that was taken. The node also describes its next child, the most probable one that was
//! not taken yet.
struct marginal_node {
  node_id parent;
  std::int32_t rank;       //!< rank of its last token among the most probable of its row, from 0
  std::int32_t depth;      //!< 0 for the root; the token is from row depth - 1
  float path_log_prob;     //!< float sum of the log-probabilities along the path, in order
  std::int32_t next_rank;  //!< rank of the next child
  float next_log_prob;     //!< log-probability of the path to the next child
  node_id next_in_bucket;  //!< another node whose next child has a similar path_log_prob, or no_node
};

//! Chooses the most probable prefixes from marginals, best first: a merge of the nodes' lists of children. Candidates
//! wait in buckets by probability; a heap orders only the candidates of the best bucket that still has any.
//! take() first finds a probability that at least `budget` prefixes reach (bound_of_rows), and drops candidates below
//! it. The class works in memory of the caller, on host and device alike.
//!
//! Shapes      entries, nodes: [budget + 1]; buckets [budget]
//! Complexity  take: O(budget * log(budget)), less if not all probabilities are alike; to compare two prefixes of equal
//!             path_log_prob: O(depth)
//! Law         nodes are numbered in falling order of path_log_prob, equal ones in lexicographic order of their ranks;
//!             parents come before children
//! Source      Ringel and Romano, DDTree, Algorithm 1: a prefix becomes a candidate when its parent, or its sibling of
//!             the rank before, is taken. The buckets are ours; the order in which prefixes are taken does not depend
//!             on them
class marginal_heap {
 public:
  ESPALIER_HOST_DEVICE marginal_heap(std::uint64_t* entries, marginal_node* nodes, node_id* buckets)
      : entries_(entries), nodes_(nodes), buckets_(buckets) {}

  //! Takes the `budget` best prefixes, or all that have a probability above 0, if they are fewer. Returns their number
  //! n: they are nodes 1 to n; node 0 is the root.
  //!
  //! Shapes      log_prob [n_rows][n_ranks], each row falling; -inf: no such token
  //! Pre         log_prob <= 0
  ESPALIER_HOST_DEVICE std::int32_t take(const float* log_prob, std::int32_t n_rows, std::int32_t n_ranks,
                                         std::int32_t budget) {
    nodes_[root_node] = {no_node, 0, 0, 0.0F, 0, 0.0F, no_node};
    if (n_rows <= 0 || n_ranks <= 0 || budget <= 0) return 0;
    least_ = bound(log_prob, n_rows, n_ranks, budget);
    best_ = log_prob[0];
    n_buckets_ = budget;
    scale_ = static_cast<float>(n_buckets_) / (best_ - least_);
    for (std::int32_t b = 0; b < n_buckets_; ++b)
      buckets_[b] = no_node;
    n_entries_ = 0;
    now_ = -1;
    add(best_, root_node);
    std::int32_t n = 0;
    while (n < budget && (n_entries_ > 0 || next_bucket())) {
      const node_id u = node_of(entries_[0]);
      marginal_node& parent = nodes_[u];
      const float* row = log_prob + static_cast<std::ptrdiff_t>(parent.depth) * n_ranks;
      const std::int32_t rank = parent.next_rank++;
      const std::int32_t depth = parent.depth + 1;
      const float path = parent.path_log_prob + row[rank];
      nodes_[++n] = {u, rank, depth, path, 0, 0.0F, no_node};
      if (--n_entries_ > 0) replace_top(entries_[n_entries_]);
      if (rank + 1 < n_ranks) add(parent.path_log_prob + row[rank + 1], u);
      if (depth < n_rows) add(path + row[n_ranks], n);
    }
    return n;
  }

  //! Appends nodes 1 to n, which were taken, to a tree that has only its root.
  //!
  //! Shapes      tokens, log_prob [n_rows][n_ranks]
  ESPALIER_EXEC_CHECK_DISABLE
  template <class TreeT>
  ESPALIER_HOST_DEVICE void append(TreeT& tree, const token_id* tokens, const float* log_prob, std::int32_t n_ranks,
                                   std::int32_t n) const {
    for (std::int32_t i = 1; i <= n; ++i) {
      const marginal_node& node = nodes_[i];
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(node.depth - 1) * n_ranks + node.rank;
      tree.append(node.parent, tokens[place], log_prob[place]);
    }
  }

  //! Returns a path_log_prob that at least `budget` prefixes reach: those that end in one of the n_rows rows, with one
  //! of its first budget / n_rows ranks (rounded up), after the most probable token of each row before it. Returns
  //! -FLT_MAX if the rows have fewer ranks than that.
  //!
  //! Complexity  O(n_rows)
  ESPALIER_HOST_DEVICE static float bound_of_rows(const float* log_prob, std::int32_t n_rows, std::int32_t n_ranks,
                                                  std::int32_t budget) {
    const std::int32_t m = (budget + n_rows - 1) / n_rows;
    if (m > n_ranks) return -FLT_MAX;
    float worst = 0, path = 0;
    for (std::int32_t d = 0; d < n_rows; ++d) {
      const float* row = log_prob + static_cast<std::ptrdiff_t>(d) * n_ranks;
      worst = path + row[m - 1] < worst ? path + row[m - 1] : worst;
      path += row[0];
    }
    return worst > -FLT_MAX ? worst : -FLT_MAX;
  }

 private:
  static constexpr std::int32_t arity = 4;

  ESPALIER_HOST_DEVICE static float bound(const float* log_prob, std::int32_t n_rows, std::int32_t n_ranks,
                                          std::int32_t budget) {
    float best = -FLT_MAX;
    for (std::int32_t j = 1; j <= n_rows; j *= 2) {
      const float worst = bound_of_rows(log_prob, j, n_ranks, budget);
      best = worst > best ? worst : best;
    }
    return best;
  }

  ESPALIER_HOST_DEVICE static node_id node_of(std::uint64_t entry) { return static_cast<node_id>(entry & 0xFFFFFFFFU); }

  // Makes the next child of u, which has this path_log_prob, a candidate, unless it is below the bound. Candidates with
  // equal path_log_prob are in the same bucket.
  ESPALIER_HOST_DEVICE void add(float path_log_prob, node_id u) {
    if (!(path_log_prob >= least_)) return;
    const float place = (best_ - path_log_prob) * scale_;
    const std::int32_t last = n_buckets_ - 1;
    const std::int32_t b = place < static_cast<float>(last) ? static_cast<std::int32_t>(place) : last;
    if (b <= now_) {
      push(entry(path_log_prob, u));
    } else {
      nodes_[u].next_log_prob = path_log_prob;
      nodes_[u].next_in_bucket = buckets_[b];
      buckets_[b] = u;
    }
  }

  // Moves the candidates of the next bucket into the heap. False if no bucket is left.
  //
  // Pre         the heap is empty
  ESPALIER_HOST_DEVICE bool next_bucket() {
    do {
      if (++now_ >= n_buckets_) return false;
    } while (buckets_[now_] == no_node);
    for (node_id u = buckets_[now_]; u != no_node; u = nodes_[u].next_in_bucket)
      push(entry(nodes_[u].next_log_prob, u));
    return true;
  }

  // A number for the next child of a node, smaller for better children. Its upper half is the magnitude of the child's
  // path_log_prob, which is never positive, read as an integer; its lower half is the node.
  ESPALIER_HOST_DEVICE static std::uint64_t entry(float path_log_prob, node_id parent) {
    std::uint32_t bits;
    std::memcpy(&bits, &path_log_prob, sizeof bits);
    return static_cast<std::uint64_t>(bits & 0x7FFFFFFFU) << 32 | static_cast<std::uint32_t>(parent);
  }

  ESPALIER_HOST_DEVICE bool is_before(std::uint64_t a, std::uint64_t b) const {
    if ((a ^ b) >> 32 != 0) return a < b;
    const node_id u = node_of(a), v = node_of(b);
    return detail::precedes(u, nodes_[u].next_rank, v, nodes_[v].next_rank,
                            [this](node_id w) -> const marginal_node& { return nodes_[w]; });
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
  node_id* buckets_;
  std::int32_t n_entries_ = 0;
  std::int32_t n_buckets_ = 0;
  std::int32_t now_ = 0;  // the bucket whose candidates are in the heap
  float best_ = 0;        // path_log_prob of the best prefix
  float least_ = 0;       // prefixes with a lower path_log_prob are not among the best
  float scale_ = 0;       // number of buckets for each unit of path_log_prob
};

}  // namespace espalier
