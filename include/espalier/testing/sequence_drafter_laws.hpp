// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/random_tree.hpp"

namespace espalier::testing {

namespace detail {

template <class MakeT, class ExpectedT>
class sequence_drafter_laws {
 public:
  sequence_drafter_laws(MakeT make, ExpectedT expected) : make_(std::move(make)), expected_(std::move(expected)) {}

  void check() {
    for (std::uint32_t seed = 0; seed < 30; ++seed)
      follows_texts(seed);
    require_law(n_runs_ > 0, "the drafter proposes nothing after any of the texts.");
  }

 private:
  using text_type = std::vector<token_id>;

  // Checks the runs that the drafter proposes. Returns the match of the last run.
  template <class DrafterT>
  std::int32_t require_run(DrafterT& drafter, const text_type& text, const char* when) {
    std::int32_t match = 0;
    for (const std::int32_t n : {7, 0, 1, 30}) {
      const token_run run = drafter.propose_run(n);
      const text_type expected = expected_(text, n);
      require_law(text_type(run.tokens.begin(), run.tokens.end()) == expected, "propose_run(", n, ") ", when,
                  ", a text of ", text.size(), " tokens, is not what it should be: it has ", run.tokens.size(),
                  " tokens, and should have ", expected.size(), ".");
      require_law(run.match >= 0, "propose_run(", n, ") ", when, " tells of a match of ", run.match,
                  " tokens; it must be 0 or more.");
      match = run.match;
      if (n == 30 && !expected.empty()) ++n_runs_;
    }
    return match;
  }

  void follows_texts(std::uint32_t seed) {
    std::mt19937 random(seed);
    const unsigned vocab = 1 + seed % 5;
    const auto some = [&](unsigned most) {
      text_type tokens(random() % (most + 1));
      for (token_id& t : tokens)
        t = static_cast<token_id>(random() % vocab);
      return tokens;
    };
    auto drafter = make_();
    drafter.reserve(40);
    text_type text{0};
    for (int i = 0; i < 8; ++i) {
      // Makes another text, which begins with a part of the last one or with all of it; or keeps the same text.
      if (random() % 4 != 0) {
        text.resize(random() % 2 == 0 ? text.size() : 1 + random() % text.size());
        const text_type more = some(40);
        text.insert(text.end(), more.begin(), more.end());
      }
      drafter.begin(text);
      std::int32_t match = require_run(drafter, text, "after begin()");
      for (int round = 0; round < 6; ++round) {
        if (random() % 3 == 0) require_run(drafter, text, "in a round that is given up");
        const tree<> t = random_tree(static_cast<std::int32_t>(1 + random() % 9),
                                     seed * 100 + static_cast<std::uint32_t>(i * 10 + round),
                                     static_cast<std::int32_t>(vocab + 9), 0.7);
        const auto accepted = static_cast<node_id>(random() % static_cast<unsigned>(t.size()));
        const auto token = static_cast<token_id>(random() % vocab);
        drafter.commit(t, {accepted, token});
        for (const node_id u : path_to(t, accepted)) {
          if (u != root_node) text.push_back(t.view().token[u]);
        }
        text.push_back(token);
        match = require_run(drafter, text, "after commit()");
      }
      auto fresh = make_();
      fresh.reserve(40);
      fresh.begin(text);
      const std::int32_t expected = require_run(fresh, text, "of a fresh drafter");
      require_law(match == expected, "propose_run(30) after commit(), a text of ", text.size(),
                  " tokens, tells of a match of ", match, " tokens, and a fresh drafter of one of ", expected, ".");
    }
  }

  MakeT make_;
  ExpectedT expected_;
  int n_runs_ = 0;
};

}  // namespace detail

//! Checks the laws of Drafter and SequenceDrafter on texts of few different tokens, so that n-grams repeat: after
//! commits the drafter proposes the same runs as a fresh one, and rounds given up leave no trace.
//!
//! Pre         make() returns a fresh drafter; expected(text, n) returns the run of at most n tokens that it should
//!             propose after a text, computed in another way
//! Errors      law_error with what is wrong
template <class MakeT, class ExpectedT>
void check_sequence_drafter(MakeT make, ExpectedT expected) {
  detail::sequence_drafter_laws(std::move(make), std::move(expected)).check();
}

}  // namespace espalier::testing
