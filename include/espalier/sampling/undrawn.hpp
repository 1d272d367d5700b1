// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/tree_view.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

//! A row without the tokens that were drawn from it: what the next draw without replacement comes from. Never stored, and not
//! normalised. A view of row and tree: it sees the draws that are there when it is asked.
//!
//! Shapes      row [vocab]; the draws are those of node u
//! Complexity  a weight: O(draws of u); the mass of a stretch: one pass over it, and O(draws of u) for each drawn token in it
template <class NumberT>
class undrawn {
 public:
  undrawn(tree_view tree, node_id u, std::span<const NumberT> row) : tree_(tree), u_(u), row_(row) {}

  std::size_t size() const { return row_.size(); }
  NumberT operator[](std::size_t i) const { return drawn_from(i, i + 1) == i ? NumberT{0} : row_[i]; }

  //! The sum of the weights from `begin` to before `end`: of what is left, never what there was minus what is gone.
  double mass(std::size_t begin, std::size_t end) const {
    double total = 0;
    while (begin < end) {
      const std::size_t next = drawn_from(begin, end);
      total += detail::sum_of(next - begin, [&](std::size_t i) { return row_[begin + i]; });
      begin = next + 1;
    }
    return total;
  }

 private:
  // The first token in [begin, end) that was drawn; end if none.
  std::size_t drawn_from(std::size_t begin, std::size_t end) const {
    for (const node_id child : tree_.draws(u_)) {
      const auto t = static_cast<std::size_t>(tree_.token[child]);
      if (t >= begin && t < end) end = t;
    }
    return end;
  }

  tree_view tree_;
  node_id u_;
  std::span<const NumberT> row_;
};

}  // namespace espalier
