// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/round.hpp"

namespace espalier {

//! Keeps a copy of one round's tree, so that a picture of it can be made after the round: the tree of a given round, or
//! of the first round with the deepest accepted path. It is an observer: call it with each round's record.
class tree_recorder {
 public:
  //! Records the round with the deepest accepted path.
  tree_recorder() = default;
  //! Records the round with this index in its text.
  explicit tree_recorder(std::int32_t round) : wanted_(round) {}

  void operator()(const round_record& r) {
    const bool better = wanted_ >= 0 ? r.index == wanted_ : r.accepted() > accepted_;
    if (!better) return;
    accepted_ = r.accepted();
    round_ = r.index;
    decision_ = r.decision;
    const tree_view& t = r.tree;
    keep(token_, t.token, t.n_nodes);
    keep(parent_, t.parent, t.n_nodes);
    keep(depth_, t.depth, t.n_nodes);
    keep(log_prob_, t.log_prob, t.n_nodes);
    keep(path_log_prob_, t.path_log_prob, t.n_nodes);
    keep(first_draw_, t.first_draw, t.n_nodes);
    keep(next_draw_, t.next_draw, t.n_draws);
    keep(drawn_node_, t.drawn_node, t.n_draws);
  }

  //! True if a tree was recorded.
  bool found() const { return round_ >= 0; }
  std::int32_t round() const { return round_; }
  verdict decision() const { return decision_; }

  //! The recorded tree; valid until the next round is recorded.
  //!
  //! Pre         found()
  tree_view tree() const {
    return {static_cast<std::int32_t>(token_.size()),
            static_cast<std::int32_t>(drawn_node_.size()),
            token_.data(),
            parent_.data(),
            depth_.data(),
            log_prob_.data(),
            path_log_prob_.data(),
            first_draw_.data(),
            next_draw_.data(),
            drawn_node_.data()};
  }

 private:
  template <class T>
  static void keep(std::vector<T>& to, const T* from, std::int32_t n) {
    to.assign(from, from + n);
  }

  std::int32_t wanted_ = -1;
  std::int32_t accepted_ = -1;
  std::int32_t round_ = -1;
  verdict decision_;
  std::vector<token_id> token_;
  std::vector<node_id> parent_;
  std::vector<std::int32_t> depth_;
  std::vector<float> log_prob_, path_log_prob_;
  std::vector<std::int32_t> first_draw_, next_draw_;
  std::vector<node_id> drawn_node_;
};

}  // namespace espalier
