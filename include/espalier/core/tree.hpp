// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"

namespace espalier {

//! Capacity of a tree whose size is chosen when it is built.
inline constexpr int dynamic_capacity = -1;

//! The draft tree of one round; owns what tree_view shows.
//!
//! The capacity is a number of draws: a token that is drawn twice at one node counts twice, and the root does not
//! count. With a capacity that is known when the program is compiled, the storage is inside the object (no heap);
//! otherwise the constructor takes it, once.
//!
//! Law         parent(u) < u; depth(u) = depth(parent(u)) + 1; draws keep the order they were made in
//! Errors      option_error for a capacity below 0 or above 2^24; input_error from append and draw for a parent that is
//!             no node, and from append for a token that a child of the parent has already. If the tree is full, they
//!             return no_node instead
template <int Capacity = dynamic_capacity>
class tree {
  static constexpr bool is_static = Capacity != dynamic_capacity;
  template <class T, int Extra>
  using storage = typename std::conditional_t<
      is_static, std::type_identity<std::array<T, static_cast<std::size_t>(is_static ? Capacity + Extra : 0)>>,
      std::type_identity<detail::list<T>>>::type;

 public:
  tree() requires is_static { reset(0); }

  explicit tree(int capacity) requires(!is_static) : capacity_(capacity) {
    require_option("tree capacity", capacity, 0, 1 << 24);
    const auto nodes = static_cast<std::size_t>(capacity) + 1;
    const auto draws = static_cast<std::size_t>(capacity);
    token_.resize(nodes), parent_.resize(nodes), depth_.resize(nodes);
    log_prob_.resize(nodes), path_log_prob_.resize(nodes);
    first_draw_.resize(nodes), last_draw_.resize(nodes);
    next_draw_.resize(draws), drawn_node_.resize(draws);
    reset(0);
  }

  //! Number of bytes that the constructor takes of an arena.
  static constexpr std::size_t bytes(std::int32_t capacity) {
    const auto draws = static_cast<std::size_t>(capacity);
    return 7 * arena::bytes_of<std::int32_t>(draws + 1) + 2 * arena::bytes_of<std::int32_t>(draws);
  }

  //! Starts a new round: the tree is the root alone, and takes at most `limit` draws until the next reset(); at most
  //! the capacity if that is less, and none if `limit` is negative.
  void reset(token_id root_token, int limit = 1 << 30) {
    writer().reset(root_token, limit < 0 ? 0 : (limit < capacity() ? limit : capacity()));
  }

  //! Adds a child that its parent does not have yet, as tree_writer::append does.
  //!
  //! Complexity  O(draws made at the parent)
  node_id append(node_id parent, token_id token, float log_prob) {
    require_parent(parent);
    if (!full() && view().find_child(parent, token) != no_node) {
      raise<input_error>("token ", token, " is appended to node ", parent,
                         ", which has it as a child: append() is for a token that the node does not have yet, draw() "
                         "for one that may have been drawn there before.");
    }
    return writer().append(parent, token, log_prob);
  }
  //! Records one draw from the parent's distribution, as tree_writer::draw does.
  node_id draw(node_id parent, token_id token, float log_prob) {
    require_parent(parent);
    return writer().draw(parent, token, log_prob);
  }

  //! Number of draws that the tree can ever hold.
  std::int32_t capacity() const {
    if constexpr (is_static) return Capacity;
    return capacity_;
  }
  //! Number of draws that the tree may hold this round.
  std::int32_t limit() const { return size_.limit; }
  bool full() const { return size_.n_draws >= size_.limit; }
  //! Number of draws that the tree still has room for, if it may hold `most` in all.
  std::int32_t left(std::int32_t most = INT32_MAX) const { return size_.left(most); }
  //! Number of nodes, root included.
  std::int32_t size() const { return size_.n_nodes; }

  //! A view of the nodes that are there now, not of later ones; valid until the next reset() or the end of the tree's
  //! life.
  tree_view view() const {
    return {size_.n_nodes,    size_.n_draws,         token_.data(),      parent_.data(),    depth_.data(),
            log_prob_.data(), path_log_prob_.data(), first_draw_.data(), next_draw_.data(), drawn_node_.data()};
  }
  operator tree_view() const { return view(); }

 private:
  // Checks that u is a node, unless the tree is full: append has then returned no_node, which may be the next parent.
  void require_parent(node_id u) const {
    if ((u < 0 || u >= size()) && !full()) {
      raise<input_error>("a child is appended to node ", u, ", but the tree has the nodes 0 to ", size() - 1, ".");
    }
  }

  tree_writer writer() {
    return {token_.data(),      parent_.data(),    depth_.data(),     log_prob_.data(),   path_log_prob_.data(),
            first_draw_.data(), last_draw_.data(), next_draw_.data(), drawn_node_.data(), &size_};
  }

  std::int32_t capacity_ = is_static ? Capacity : 0;
  tree_size size_;
  storage<token_id, 1> token_{};
  storage<node_id, 1> parent_{};
  storage<std::int32_t, 1> depth_{};
  storage<float, 1> log_prob_{};
  storage<float, 1> path_log_prob_{};
  storage<std::int32_t, 1> first_draw_{};
  storage<std::int32_t, 1> last_draw_{};
  storage<std::int32_t, 0> next_draw_{};
  storage<node_id, 0> drawn_node_{};
};

explicit tree(int)->tree<dynamic_capacity>;

}  // namespace espalier
