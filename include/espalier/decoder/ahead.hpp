// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"
#include "espalier/decoder/ahead/drafting_ahead.hpp"

namespace espalier {

//! A drafter that drafts a round while the target's pass over the round before is under way. In all else it is the
//! given drafter. It is for a draft model on a device of its own, or on cores that the target leaves idle. The decoder
//! guesses verdicts, and grows the tree after each guess on a second thread. If the verdict is one of them, the tree is
//! there when the round begins; if not, the trees are thrown away, and the round drafts as it does without `ahead`.
//!
//!     auto drafter = ahead(autoregressive(draft, draft_kv));
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!
//! `rows` is the number of rows that the draft model computes in about the time of one row. So many verdicts are
//! guessed: those that are the most probable if the target's probabilities are the draft's. Their trees grow in the
//! same passes. If a pass would have more rows, the less probable guesses are dropped. The best guess never is, so with
//! rows = 1 there is one guess.
//!
//! Only `decoder` drafts ahead, and only where nothing but tokens goes from the target to the next tree: not while a
//! processor changes rows, not with a policy that reads states, a time budget, or a window over the target's cache, not
//! in a step with a chance of the caller's, and not in programs without exceptions. In these cases, and in
//! `batch_decoder`, it drafts as the given drafter.
//!
//! Complexity  if the verdict was guessed, a round takes as long as the longer of drafting and the target's pass; if
//!             not, the draft pass under way is waited for. The drafter reserves rows for
//!             policy.max_asked() + 2 rows (policy.max_nodes() + 1) nodes, or for as many as a pass takes if that is
//!             less; near the end of its cache it drafts for fewer guesses, or for none
//! Law         texts, trees and random numbers are those of the given drafter, bit for bit where its model is
//!             batch-invariant. If drafting ahead fails, the round drafts when it begins; only an error there is raised
//! Errors      constructor: option_error for rows out of range
//! Pre         draft and target share no model object, store or team of threads; no one but this decoder asks the
//!             drafter. The C++ library has threads
template <StepDrafter DrafterT>
class ahead : public DrafterT {
  static_assert(!detail::OutsideDrafter<DrafterT>,
                "an engine makes the passes of this drafter: nothing can be drafted ahead beside them");
  static_assert(detail::FollowsPath<DrafterT>,
                "this drafter's rows depend on more than the tokens of their path: a tree cannot go on below a verdict "
                "that is only guessed. An autoregressive drafter over a store without a window drafts ahead, and "
                "translated over one");

 public:
  explicit ahead(DrafterT drafter, std::int32_t rows = 4) : DrafterT(std::move(drafter)), rows_(rows) {
    require_option("rows", rows, 1, 1024);
  }

  //! Number of rows that the draft model computes in about the time of one.
  std::int32_t spare_rows() const { return rows_; }

  //! The type with which the decoder drafts ahead under this policy.
  template <class PolicyT>
  using drafting_type = detail::drafting_ahead<ahead, PolicyT>;

 private:
  std::int32_t rows_;
};

}  // namespace espalier
