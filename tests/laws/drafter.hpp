// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/core/tree.hpp"
#include "random_tree.hpp"

// For drafters that read hidden states: those of a text are its tokens.
struct token_states {
  std::vector<float> tokens;
  std::span<const float> hidden(int, int row) const {
    return std::span<const float>(tokens).subspan(static_cast<std::size_t>(row), 1);
  }
};

// Shows a drafter the states of all tokens of the text that it has not read, if it reads any.
template <class DrafterT>
void show_states(DrafterT& drafter, const std::vector<espalier::token_id>& text) {
  if constexpr (espalier::FeatureDrafter<DrafterT, token_states>) {
    const token_states states{{text.begin(), text.end()}};
    std::vector<std::int32_t> rows;
    for (std::int32_t i = drafter.n_read(); i < static_cast<std::int32_t>(text.size()); ++i)
      rows.push_back(i);
    drafter.read(states, rows);
  }
}

// The laws of Drafter and StepDrafter, and of FeatureDrafter and StateDrafter where it is one. make() gives a fresh drafter; expected(path) the
// row that its model has after a text; or expected(text, path), where the path is not a part of the text.
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
  using text_type = std::vector<espalier::token_id>;

  // One round as a policy would ask: the root, then random nodes whose parents were asked, in several calls, some never.
  template <class DrafterT>
  espalier::tree<> round(DrafterT& drafter, const text_type& text, std::mt19937& random) {
    espalier::tree<> t(max_nodes);
    t.reset(text.back());
    show_states(drafter, {text.begin(), text.end() - 1});
    std::vector<espalier::node_id> asked{espalier::root_node};
    require_rows(drafter, drafter.propose(t, asked), t, text, asked);
    require_states(drafter, t, text);
    while (!t.full()) {
      const std::int32_t old = t.size();
      for (unsigned n = 1 + random() % 4; n > 0 && !t.full(); --n)
        t.draw(asked[random() % asked.size()], static_cast<espalier::token_id>(random() % vocab(drafter)), 0);
      std::vector<espalier::node_id> now;
      for (espalier::node_id u = old; u < t.size(); ++u) {
        if (random() % 4 != 0) now.push_back(u);
      }
      std::shuffle(now.begin(), now.end(), random);
      if (now.empty()) continue;
      require_rows(drafter, drafter.propose(t, now), t, text, now);
      asked.insert(asked.end(), now.begin(), now.end());
    }
    // All rows of the round are still there, by node.
    const auto rows = drafter.rows();
    for (espalier::node_id u = 0; u < t.size(); ++u) {
      const bool was_asked = std::find(asked.begin(), asked.end(), u) != asked.end();
      REQUIRE(rows.has(u) == was_asked);
      if (was_asked) REQUIRE(equal(rows.row(u), expected(t, text, u)));
    }
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

  auto expected(espalier::tree_view tree, const text_type& text, espalier::node_id u) {
    if constexpr (std::is_invocable_v<ExpectedT&, text_type, text_type>) {
      return expected_(text, along(tree, {}, u));
    } else {
      return expected_(along(tree, text, u));
    }
  }

  static text_type along(espalier::tree_view tree, text_type text, espalier::node_id u) {
    for (const espalier::node_id a : path_to(tree, u)) {
      if (a != espalier::root_node) text.push_back(tree.token[a]);
    }
    return text;
  }

  template <class DrafterT, class RowsT>
  void require_rows(DrafterT& drafter, const RowsT& rows, espalier::tree_view tree, const text_type& text,
                    const std::vector<espalier::node_id>& nodes) {
    REQUIRE(rows.n_rows == static_cast<std::int32_t>(nodes.size()));
    REQUIRE(rows.vocab == drafter.vocab_size());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      REQUIRE(equal(rows.row(static_cast<std::int32_t>(i)), expected(tree, text, nodes[i])));
  }

  // What it says at the end of the text is what its model says there.
  template <class DrafterT>
  void require_states(const DrafterT& drafter, espalier::tree_view tree, const text_type& text) {
    if constexpr (espalier::StateDrafter<DrafterT>) {
      REQUIRE(equal(drafter.root_state().row, expected(tree, text, espalier::root_node)));
      const auto before = drafter.previous_state().row;
      REQUIRE(before.empty() == (text.size() < 2));
      if constexpr (std::is_invocable_v<ExpectedT&, text_type>) {
        if (!before.empty()) REQUIRE(equal(before, expected_(text_type(text.begin(), text.end() - 1))));
      }
    }
  }

  auto made() {
    auto drafter = make_();
    if constexpr (espalier::StateDrafter<decltype(drafter)>) drafter.keep_states();
    drafter.reserve(max_nodes);
    return drafter;
  }

  void follows_the_text(std::uint32_t seed) {
    std::mt19937 random(seed);
    auto drafter = made();
    text_type text{1, 0, 2, 1};
    drafter.begin(text);
    for (int i = 0; i < 6; ++i) {
      if (random() % 2 == 0) round(drafter, text, random);  // given up midway: leaves no trace
      const espalier::tree<> t = round(drafter, text, random);
      const auto accepted = static_cast<espalier::node_id>(random() % static_cast<unsigned>(t.size()));
      const auto token = static_cast<espalier::token_id>(random() % vocab(drafter));
      if (random() % 4 != 0) show_states(drafter, along(t, text, accepted));
      drafter.commit(t, {accepted, token});
      text = along(t, text, accepted);
      text.push_back(token);
      if (random() % 3 == 0) {
        // A round that asks nothing: its token is the target's alone.
        espalier::tree<> root(0);
        root.reset(text.back());
        const auto next = static_cast<espalier::token_id>(random() % vocab(drafter));
        drafter.commit(root, {espalier::root_node, next});
        text.push_back(next);
      }
    }
    // Equal to a fresh one, given the same text and asked the same.
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
