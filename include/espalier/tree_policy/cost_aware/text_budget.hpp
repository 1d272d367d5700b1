// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/concepts/round_start.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/tree_policy/cost_aware/round_budget.hpp"

namespace espalier {

//! One text's part in the budget of its rounds: its own budget, or for a round one that it shares with other texts, and
//! what it has asked for in this round.
//!
//! Complexity  as round_budget's; no allocation after construction
//! Law         a copy that is taken between two rounds shares nothing
class text_budget {
 public:
  //! Budget in drafted tokens a round, asked about in so many levels at most.
  text_budget(cost_model costs, std::int32_t budget, std::int32_t levels) : own_(std::move(costs), budget) {
    nodes_.reserve(static_cast<std::size_t>(levels) + 1);
  }

  const round_budget& own() const { return own_; }
  //! That of this round.
  round_budget& now() { return shared_ == nullptr ? own_ : *shared_; }
  const round_budget& now() const { return shared_ == nullptr ? own_ : *shared_; }

  //! Another text begins.
  void reset() {
    own_.reset();
    unread_ = 0;
  }

  //! What a round leaves to the next.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    own_.serialize(archive);
    archive(unread_);
    archive.require(unread_ >= 0);
  }

  //! Where a round stands, and whose budget it shares.
  void open(const round_start& start) {
    context_ = start.length - 1;
    shared_ = nullptr;
  }
  void join(round_budget& budget) { shared_ = &budget; }

  //! A round begins, of at most `limit` drafted tokens; 0: nobody can be asked.
  void begin(std::int32_t limit) {
    if (shared_ == nullptr) own_.begin(1, context_);
    nodes_.clear();
    can_ask_ = limit > 0;
  }

  //! The next level is asked about, n nodes. The first one reads what was written since the draft was last asked.
  void ask(std::int32_t n) {
    const std::int32_t unread = nodes_.empty() ? unread_ : 0;
    now().add_nodes(nodes_.size(), n, unread);
    nodes_.push_back(n + unread);
  }

  //! The round is over, which has drafted and written so many tokens. What it has gained over plain decoding, in
  //! tokens.
  double end(std::int32_t n_drafted, std::int32_t n_written) {
    const double gain = now().gain(n_written, now().seconds_of(nodes_, n_drafted));
    if (can_ask_) unread_ = nodes_.empty() ? unread_ + n_written : 0;
    now().add_tokens(n_written);
    if (shared_ == nullptr) own_.end();
    shared_ = nullptr;
    return gain;
  }

 private:
  round_budget own_;
  round_budget* shared_ = nullptr;   // in this round
  std::vector<std::int32_t> nodes_;  // asked about in this round, by level, with what the draft had to read
  std::int32_t unread_ = 0;          // tokens written since the draft was asked
  std::int32_t context_ = 0;
  bool can_ask_ = false;
};

}  // namespace espalier
