// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/decoder/ahead/drafting_ahead.hpp"

namespace espalier {

//! A drafter that drafts a round while the target's pass over the round before is under way. In all else it is the
//! given drafter. It is for a draft model on a device of its own, or on cores that the target leaves idle. The decoder
//! grows the tree of the likeliest verdict on a second thread. If the verdict is that one, the tree is there when the
//! round begins; if not, the tree is thrown away, and the round drafts as it does without `ahead`.
//!
//!     auto drafter = ahead(autoregressive(draft, draft_kv));
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!
//! Only `decoder` drafts ahead, and only where nothing but tokens goes from the target to the next tree: not while a
//! processor changes rows, not with a policy that reads states, a time budget, or a window over the target's cache, not
//! in a step with a chance of the caller's, and not in programs without exceptions. In these cases, and in
//! `batch_decoder`, it drafts as the given drafter.
//!
//! Complexity  if the verdict was guessed, a round takes as long as the longer of drafting and the target's pass; if
//!             not, the draft pass under way is waited for, and rows of the accepted path that the draft's cache has
//!             lost join the next pass
//! Law         texts, trees and random numbers are those of the given drafter, bit for bit where its model is
//!             batch-invariant. If drafting ahead fails, the round drafts when it begins; only an error there is raised
//! Pre         draft and target share no model object, store or team of threads; no one but this decoder asks the
//!             drafter. The C++ library has threads
template <StepDrafter DrafterT>
class ahead : public DrafterT {
  static_assert(!detail::OutsideDrafter<DrafterT>,
                "an engine makes the passes of this drafter: nothing can be drafted ahead beside them");

 public:
  explicit ahead(DrafterT drafter) : DrafterT(std::move(drafter)) {}

  //! The type with which the decoder drafts ahead under this policy.
  template <class PolicyT>
  using drafting_type = detail::drafting_ahead<ahead, PolicyT>;
};

}  // namespace espalier
