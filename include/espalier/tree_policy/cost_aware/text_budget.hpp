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

//! The budget of the rounds of one text: a round_budget of its own, or, in a round in which join() is called, a
//! round_budget that it shares with other texts. The object also keeps how many nodes of the text the draft was asked
//! about in this round.
//!
//! Complexity  as round_budget; no allocation after construction
//! Law         a copy that is taken between the end of one round and the beginning of the next shares nothing
class text_budget {
 public:
  //! Makes the budget of a text that drafts up to `budget` tokens in a round, and asks about up to `levels` levels.
  text_budget(cost_model costs, std::int32_t budget, std::int32_t levels) : own_(std::move(costs), budget) {
    nodes_.reserve(static_cast<std::size_t>(levels) + 1);
  }

  const round_budget& own() const { return own_; }
  //! The budget that this round uses.
  round_budget& now() { return shared_ == nullptr ? own_ : *shared_; }
  const round_budget& now() const { return shared_ == nullptr ? own_ : *shared_; }

  //! Begins another text.
  void reset() {
    own_.reset();
    unread_ = 0;
  }

  //! Saves or loads the state that a round leaves to the next.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    own_.serialize(archive);
    archive(unread_);
    archive.require(unread_ >= 0);
  }

  //! Opens a round: notes the length of the text. The round uses the text's own budget, unless join() follows.
  void open(const round_start& start) {
    context_ = start.length - 1;
    shared_ = nullptr;
  }
  //! Lets the open round use a budget that is shared with other texts. The budget must live until the round has ended.
  void join(round_budget& budget) { shared_ = &budget; }

  //! Begins a round of at most `limit` drafted tokens. If `limit` is 0, no drafter is asked in it.
  void begin(std::int32_t limit) {
    if (shared_ == nullptr) own_.begin(1, context_);
    nodes_.clear();
    can_ask_ = limit > 0;
  }

  //! Notes that the draft is asked about n nodes of the next level. At the first level the text is also charged with
  //! the tokens that were written, since the last round that asked the draft, in rounds of a limit above 0.
  void ask(std::int32_t n) {
    const std::int32_t unread = nodes_.empty() ? unread_ : 0;
    now().add_nodes(nodes_.size(), n, unread);
    nodes_.push_back(n + unread);
  }

  //! Ends the round, in which n_drafted tokens were drafted and n_written tokens were written. Returns how many tokens
  //! the round has gained over plain decoding; below 0 if it has lost some. A shared budget is not ended here.
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
  round_budget* shared_ = nullptr;  // the budget shared in this round, or null
  // by level of this round: number of nodes asked about, plus number of tokens that the draft had to read
  std::vector<std::int32_t> nodes_;
  // tokens that the first ask() of a round charges: those written, since the last round that asked, in rounds of a
  // limit above 0
  std::int32_t unread_ = 0;
  std::int32_t context_ = 0;
  bool can_ask_ = false;
};

}  // namespace espalier
