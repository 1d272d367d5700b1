// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/decoder/ahead/drafting_ahead.hpp"

namespace espalier {

//! Returns the given drafter so that it drafts a round while the target's pass over the round before is under way: for
//! a draft model on a device of its own, or cores that the target leaves idle. The decoder grows the tree of the
//! likeliest verdict on a second thread. If the verdict is that one, the tree is there when the round begins; if not,
//! it is thrown away, and the round drafts as it would have done.
//!
//!     auto drafter = ahead(autoregressive(draft, draft_kv));
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!
//! Only `decoder` does so, and only where nothing but tokens goes from the target to the next tree: not with a
//! processor, a policy that reads states, or a window over the target's cache, not in a step with a chance of the
//! caller's, and not in programs without exceptions. There, and in `batch_decoder`, it is the drafter that it was.
//!
//! Complexity  a round's time is that of the longer of both passes where the verdict was guessed; else the pass of the
//!             draft under way is waited for, and rows of the accepted path that its cache has lost join the next pass
//! Law         texts, trees and random numbers are those of the drafter alone, bit for bit where its model is
//!             batch-invariant. A draft that fails beside the target has not been; what fails for good fails in its own
//!             round
//! Pre         draft and target share no model object, store or team of threads; the drafter is asked by this decoder
//!             alone. The C++ library has threads
template <StepDrafter DrafterT>
class ahead : public DrafterT {
 public:
  explicit ahead(DrafterT drafter) : DrafterT(std::move(drafter)) {}

  //! Type that the decoder drafts with, for this policy.
  template <class PolicyT>
  using drafting_type = detail::drafting_ahead<ahead, PolicyT>;
};

}  // namespace espalier
