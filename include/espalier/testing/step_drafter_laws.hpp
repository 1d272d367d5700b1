// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/random_tree.hpp"

namespace espalier::testing {

//! Hidden states for drafters that read them: the state of each token of a text is one number, the token itself.
struct token_states {
  std::vector<float> tokens;
  std::span<const float> hidden(int, int row) const {
    return std::span<const float>(tokens).subspan(static_cast<std::size_t>(row), 1);
  }
};

//! Gives a drafter that reads hidden states the states of all tokens of the text that it has not read.
template <class DrafterT>
void show_states(DrafterT& drafter, const std::vector<token_id>& text) {
  if constexpr (FeatureDrafter<DrafterT, token_states>) {
    const token_states states{{text.begin(), text.end()}};
    std::vector<std::int32_t> rows;
    for (std::int32_t i = drafter.n_read(); i < static_cast<std::int32_t>(text.size()); ++i)
      rows.push_back(i);
    drafter.read(states, rows);
  }
}

namespace detail {

// Grows a tree as a policy would: asks the drafter about the root, then, in several calls, about random nodes whose
// parents were asked about. Some nodes are never asked about. Calls check(nodes) after each call with the nodes of that
// call, and returns all nodes that were asked about.
template <class DrafterT, class CheckT>
std::vector<node_id> ask_at_random(DrafterT& drafter, tree<>& t, std::mt19937& random, const CheckT& check) {
  std::vector<node_id> asked{root_node};
  drafter.propose(t, asked);
  check(asked);
  while (!t.full()) {
    const std::int32_t old = t.size();
    for (unsigned n = 1 + random() % 4; n > 0 && !t.full(); --n) {
      const node_id parent = asked[random() % asked.size()];
      t.draw(parent, static_cast<token_id>(random() % static_cast<unsigned>(drafter.vocab_size())), 0);
    }
    std::vector<node_id> now;
    for (node_id u = old; u < t.size(); ++u) {
      if (random() % 4 != 0) now.push_back(u);
    }
    std::shuffle(now.begin(), now.end(), random);
    if (now.empty()) continue;
    drafter.propose(t, now);
    check(now);
    asked.insert(asked.end(), now.begin(), now.end());
  }
  return asked;
}

template <class MakeT, class ExpectedT>
class step_drafter_laws {
 public:
  step_drafter_laws(MakeT make, ExpectedT expected) : make_(std::move(make)), expected_(std::move(expected)) {}

  void check() {
    for (std::uint32_t seed = 0; seed < 6; ++seed)
      follows_the_text(seed);
    begins_anew();
  }

 private:
  using text_type = std::vector<token_id>;

  // Runs one round as a policy would, and returns its tree.
  template <class DrafterT>
  tree<> round(DrafterT& drafter, const text_type& text, std::mt19937& random) {
    tree<> t(max_nodes);
    t.reset(text.back());
    show_states(drafter, {text.begin(), text.end() - 1});
    const std::vector<node_id> asked = ask_at_random(drafter, t, random, [&](const std::vector<node_id>& nodes) {
      require_rows(drafter, t, text, nodes);
      if (nodes.front() == root_node) require_states(drafter, t, text);
    });
    // All rows of the round are still there, found by node.
    const auto rows = drafter.rows();
    for (node_id u = 0; u < t.size(); ++u) {
      const bool was_asked = std::find(asked.begin(), asked.end(), u) != asked.end();
      require_law(rows.has(u) == was_asked, "rows().has(", u, ") is ", rows.has(u), ", but the node was ",
                  was_asked ? "" : "not ", "asked about.");
    }
    require_rows(drafter, t, text, asked);
    return t;
  }

  template <class DrafterT>
  static unsigned vocab(const DrafterT& drafter) {
    return static_cast<unsigned>(drafter.vocab_size());
  }

  template <class RowT, class VectorT>
  static bool equal(const RowT& row, const VectorT& expected) {
    return std::equal(row.begin(), row.end(), expected.begin(), expected.end());
  }

  auto expected(tree_view tree, const text_type& text, node_id u) {
    if constexpr (std::is_invocable_v<ExpectedT&, text_type, text_type>) {
      return expected_(text, along(tree, {}, u));
    } else {
      return expected_(along(tree, text, u));
    }
  }

  static text_type along(tree_view tree, text_type text, node_id u) {
    for (const node_id a : path_to(tree, u)) {
      if (a != root_node) text.push_back(tree.token[a]);
    }
    return text;
  }

  template <class DrafterT>
  void require_rows(DrafterT& drafter, tree_view tree, const text_type& text, const std::vector<node_id>& nodes) {
    const auto rows = drafter.rows();
    require_law(rows.rows.vocab == drafter.vocab_size(), "rows() has rows of ", rows.rows.vocab,
                " tokens, but vocab_size() is ", drafter.vocab_size(), ".");
    for (const node_id u : nodes) {
      require_law(rows.has(u) && equal(rows.row(u), expected(tree, text, u)), "the row of node ", u, " of ",
                  tree.n_nodes, ", depth ", tree.depth[u], ", after a text of ", text.size(),
                  " tokens is not what it should be.");
    }
  }

  // Checks that the drafter's states at the end of the text, and one token before it, are the expected ones.
  template <class DrafterT>
  void require_states(const DrafterT& drafter, tree_view tree, const text_type& text) {
    if constexpr (espalier::detail::KeepsStates<DrafterT>) {
      require_law(equal(drafter.root_state().row, expected(tree, text, root_node)),
                  "root_state() is not that of the text's end.");
      const auto before = drafter.previous_state().row;
      require_law(before.empty() || text.size() > 1, "previous_state() is not empty after a text of one token.");
      if constexpr (std::is_invocable_v<ExpectedT&, text_type>) {
        require_law(before.empty() || equal(before, expected_(text_type(text.begin(), text.end() - 1))),
                    "previous_state() is not that before the text's last token.");
      }
    }
  }

  auto made() {
    auto drafter = make_();
    if constexpr (espalier::detail::KeepsStates<decltype(drafter)>) drafter.keep_states();
    drafter.reserve(max_nodes);
    return drafter;
  }

  void follows_the_text(std::uint32_t seed) {
    std::mt19937 random(seed);
    auto drafter = made();
    text_type text{1, 0, 2, 1};
    drafter.begin(text);
    for (int i = 0; i < 6; ++i) {
      if (random() % 2 == 0) round(drafter, text, random);  // not committed: must leave no trace
      const tree<> t = round(drafter, text, random);
      const auto accepted = static_cast<node_id>(random() % static_cast<unsigned>(t.size()));
      const auto token = static_cast<token_id>(random() % vocab(drafter));
      if (random() % 4 != 0) show_states(drafter, along(t, text, accepted));
      drafter.commit(t, {accepted, token});
      text = along(t, text, accepted);
      text.push_back(token);
      if (random() % 3 == 0) {
        // A round that asks nothing: its token comes from the target alone.
        tree<> root(0);
        root.reset(text.back());
        const auto next = static_cast<token_id>(random() % vocab(drafter));
        drafter.commit(root, {root_node, next});
        text.push_back(next);
      }
    }
    // The drafter must give the same rows as a fresh one that is given the same text and asked about the same nodes.
    auto fresh = made();
    fresh.begin(text);
    std::mt19937 same_a(seed), same_b(seed);
    round(drafter, text, same_a);
    round(fresh, text, same_b);
  }

  void begins_anew() {
    std::mt19937 random(8);
    auto drafter = made();
    for (const text_type& text : {text_type{1, 2, 0, 1, 2}, text_type{1, 2, 0}, text_type{1, 2, 0, 1, 2, 2},
                                  text_type{0}, text_type{1, 2, 0, 1, 2, 2}}) {
      drafter.begin(text);
      round(drafter, text, random);
    }
  }

  static constexpr std::int32_t max_nodes = 12;
  MakeT make_;
  ExpectedT expected_;
};

}  // namespace detail

//! Checks the laws of Drafter and StepDrafter, of FeatureDrafter if the drafter is one, and of the states that it
//! keeps, bit for bit: the row of each node is the expected one after its path, after commits, rounds given up and new
//! texts. A BlockDrafter is checked as the StepDrafter that factorised makes of it.
//!
//! Pre         make() returns a fresh drafter of a vocabulary of 3 tokens or more; expected(text) returns the row after
//!             a text; or expected(text, path) returns the row after a text and the drafted path that follows it
//! Errors      law_error with what is wrong
template <class MakeT, class ExpectedT>
void check_step_drafter(MakeT make, ExpectedT expected) {
  detail::step_drafter_laws(std::move(make), std::move(expected)).check();
}

}  // namespace espalier::testing
