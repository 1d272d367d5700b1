// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/feature_steps.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/random_tree.hpp"

namespace espalier::testing {

//! Hidden states for drafters that read them: one number for each row of a pass.
struct number_states {
  std::vector<float> numbers;
  std::span<const float> hidden(int, int row) const {
    return std::span<const float>(numbers).subspan(static_cast<std::size_t>(row), 1);
  }
};

namespace detail {

template <class MakeT, class ExpectedT>
class feature_step_drafter_laws {
 public:
  feature_step_drafter_laws(MakeT make, ExpectedT expected) : make_(std::move(make)), expected_(std::move(expected)) {}

  void check() {
    for (std::uint32_t seed = 0; seed < 8; ++seed)
      follows_the_text(seed);
    begins_anew();
  }

 private:
  // A text, and the target's state of each of its tokens. The states of equal tokens mostly differ.
  struct text_type {
    std::vector<token_id> tokens;
    std::vector<float> states;

    void add(token_id token, std::mt19937& random) {
      tokens.push_back(token);
      states.push_back(static_cast<float>(random() % 61) / 4);
    }
  };

  auto made() {
    auto drafter = make_();
    static_assert(FeatureStepDrafter<decltype(drafter), number_states>);
    drafter.reserve(max_nodes);
    return drafter;
  }

  template <class DrafterT>
  static token_id any_token(const DrafterT& drafter, std::mt19937& random) {
    return static_cast<token_id>(random() % static_cast<unsigned>(drafter.vocab_size()));
  }

  // Gives the drafter those states of the text's first n tokens that it has not read, as rows of one pass, in a random
  // order.
  template <class DrafterT>
  static void show(DrafterT& drafter, const text_type& text, std::int32_t n, std::mt19937& random) {
    number_states pass;
    std::vector<std::int32_t> rows;
    for (std::int32_t i = drafter.n_read(); i < n; ++i)
      rows.push_back(i - drafter.n_read());
    std::shuffle(rows.begin(), rows.end(), random);
    pass.numbers.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      pass.numbers[static_cast<std::size_t>(rows[i])] = text.states[static_cast<std::size_t>(drafter.n_read()) + i];
    if (!rows.empty()) drafter.read(pass, rows);
    require_law(drafter.n_read() >= n, "n_read() is ", drafter.n_read(), " after the states of ", n,
                " tokens were read.");
  }

  template <class DrafterT>
  void require_row(DrafterT& drafter, tree_view tree, const text_type& text, node_id u) {
    std::vector<token_id> path;
    for (const node_id a : path_to(tree, u)) {
      if (a != root_node) path.push_back(tree.token[a]);
    }
    const std::span<const float> states(text.states.data(), text.states.size() - 1);
    const auto row = expected_(std::span<const token_id>(text.tokens), states, std::span<const token_id>(path));
    const auto rows = drafter.rows();
    require_law(rows.has(u) && std::equal(rows.row(u).begin(), rows.row(u).end(), row.begin(), row.end()),
                "the row of node ", u, ", depth ", tree.depth[u], ", after a text of ", text.tokens.size(),
                " tokens is not what the target's states up to the pending token, and the path, make it.");
  }

  // Runs one round as a policy would, and returns its tree.
  template <class DrafterT>
  tree<> round(DrafterT& drafter, const text_type& text, std::mt19937& random) {
    tree<> t(max_nodes);
    t.reset(text.tokens.back());
    show(drafter, text, static_cast<std::int32_t>(text.tokens.size()) - 1, random);
    const std::vector<node_id> asked = ask_at_random(drafter, t, random, [&](const std::vector<node_id>& nodes) {
      for (const node_id u : nodes)
        require_row(drafter, t, text, u);
    });
    for (const node_id u : asked)
      require_row(drafter, t, text, u);
    return t;
  }

  void follows_the_text(std::uint32_t seed) {
    std::mt19937 random(seed);
    auto drafter = made();
    text_type text;
    for (std::uint32_t i = 0; i <= seed % 4; ++i)
      text.add(any_token(drafter, random), random);
    drafter.begin(text.tokens);
    for (int i = 0; i < 8; ++i) {
      if (random() % 3 == 0) round(drafter, text, random);  // not committed: must leave no trace
      const tree<> t = round(drafter, text, random);
      const auto accepted = static_cast<node_id>(random() % static_cast<unsigned>(t.size()));
      const token_id token = any_token(drafter, random);
      for (const node_id a : path_to(t, accepted)) {
        if (a != root_node) text.add(t.view().token[a], random);
      }
      if (random() % 3 == 0) show(drafter, text, static_cast<std::int32_t>(text.tokens.size()), random);
      drafter.commit(t, {accepted, token});
      text.add(token, random);
    }
    round(drafter, text, random);
  }

  void begins_anew() {
    std::mt19937 random(9);
    auto drafter = made();
    text_type text;
    for (int i = 0; i < 8; ++i)
      text.add(any_token(drafter, random), random);
    drafter.begin(text.tokens);
    round(drafter, text, random);
    for (const std::size_t common : {6U, 8U, 1U, 3U, 1U}) {
      text.tokens.resize(common), text.states.resize(common);
      while (text.tokens.size() < common + random() % 3)
        text.add(any_token(drafter, random), random);
      drafter.begin(text.tokens);
      require_law(drafter.n_read() <= static_cast<std::int32_t>(text.tokens.size()), "n_read() is ", drafter.n_read(),
                  " of a text of ", text.tokens.size(), " tokens.");
      round(drafter, text, random);
      while (text.tokens.size() < 8)
        text.add(any_token(drafter, random), random);
      drafter.begin(text.tokens);
      round(drafter, text, random);
    }
  }

  static constexpr std::int32_t max_nodes = 12;
  MakeT make_;
  ExpectedT expected_;
};

}  // namespace detail

//! Checks the laws of FeatureStepDrafter, bit for bit: the row of a node depends on the target's states of the tokens
//! before the pending one, on the tokens, and on the path, and on nothing else; so states that were drafted in a round
//! do not outlive it, and states of a text that was given up are not used.
//!
//! Pre         make() returns a fresh drafter; expected(text, states, path) returns the row after the path below the
//!             text's last token, where states [text.size() - 1] are the target's states, one number each
//! Errors      law_error with what is wrong
template <class MakeT, class ExpectedT>
void check_feature_step_drafter(MakeT make, ExpectedT expected) {
  detail::feature_step_drafter_laws(std::move(make), std::move(expected)).check();
}

}  // namespace espalier::testing
