// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"

namespace espalier {

//! The result of one draw without replacement.
struct undrawn_draw {
  token_id token = -1;          //!< the token drawn; negative if the row has no probability left
  wide_number probability = 0;  //!< probability of the token in the whole row
};

//! A row without the tokens that were drawn from it at a node: the next draw without replacement is made from these
//! weights. They are never stored, and not normalised. A view of row and tree: it leaves out the tokens of all draws
//! that the tree has when the view is read.
//!
//! Shapes      row [vocab]; the draws are those made at node u
//! Complexity  with n draws made at u, a weight: O(n); the sum: one pass, and O(n) for each 1024 tokens
//! Law         the sum is added up from the weights that are left; nothing is ever subtracted from an earlier sum
template <class NumberT, class TeamT = detail::alone>
class undrawn {
 public:
  ESPALIER_HOST_DEVICE undrawn(tree_view tree, node_id u, row_view<NumberT, TeamT> row)
      : tree_(tree), u_(u), row_(row) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return row_.size(); }
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const { return any_drawn(i, i + 1) ? NumberT{0} : row_[i]; }
  ESPALIER_HOST_DEVICE TeamT team() const { return row_.team(); }

  //! Makes the next draw, which the caller then records in the tree. `at` is the key of its random number.
  //!
  //! Complexity  one pass
  template <class ChanceT>
  ESPALIER_HOST_DEVICE undrawn_draw draw(ChanceT&& chance, chance_key at) const {
    const token_id token = chance.pick(*this, at);
    if (token < 0) return {};
    return {token, static_cast<wide_number>(row_[static_cast<std::size_t>(token)])};
  }

  //! Returns the probability with which draw() gave this token.
  //!
  //! Complexity  one pass; O(1) if nothing was drawn before
  //! Pre         the draw is not recorded in the tree yet
  ESPALIER_HOST_DEVICE wide_number share(const undrawn_draw& drawn) const {
    const wide_number share = drawn.probability / (tree_.is_leaf(u_) ? wide_number{1} : detail::mass(*this));
    return share < 1 ? share : 1;
  }

  //! Calls use(w) with weights w that equal the weights of this view from index `begin` to end - 1: w is the row itself
  //! for most ranges; in the others, the drawn tokens are looked up once.
  //!
  //! Pre         end - begin <= mass_block
  template <class UseT>
  ESPALIER_HOST_DEVICE auto within(std::size_t begin, std::size_t end, const UseT& use) const {
    if (!any_drawn(begin, end)) return use(row_);
    stretch left{row_, begin, {}};
    for (const node_id child : tree_.draws(u_)) {
      const std::size_t i = static_cast<std::size_t>(tree_.token[child]) - begin;
      if (i < end - begin) left.drawn[i / 64] |= std::uint64_t{1} << i % 64;
    }
    return use(left);
  }

 private:
  struct stretch {
    row_view<NumberT, TeamT> row;
    std::size_t begin;
    std::uint64_t drawn[detail::mass_block / 64];

    ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const {
      const std::size_t at = i - begin;
      return (drawn[at / 64] >> at % 64 & 1) != 0 ? NumberT{0} : row[i];
    }
  };

  ESPALIER_HOST_DEVICE bool any_drawn(std::size_t begin, std::size_t end) const {
    for (const node_id child : tree_.draws(u_)) {
      if (static_cast<std::size_t>(tree_.token[child]) - begin < end - begin) return true;
    }
    return false;
  }

  tree_view tree_;
  node_id u_;
  row_view<NumberT, TeamT> row_;
};

template <class NumberT>
undrawn(tree_view, node_id, std::span<const NumberT>) -> undrawn<NumberT>;

}  // namespace espalier
