// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/halves.cpp
#pragma once

#include <cstdint>

#include "espalier/core/forward_batch_view.hpp"

namespace espalier {

//! A pass of a model that an engine makes outside a decoder, between two halves of a step: begin_step() and end_step()
//! return the pass that the step needs next. It converts to false if the step needs no further pass, and so is over.
struct outside_pass {
  forward_batch_view batch{};  //!< the rows to forward, over the target's cache or the draft's; valid until the logits
                               //!< are handed over, or the step is given up
  std::int32_t drafter = -1;  //!< which draft model makes the pass: 0, or the number of the drafter in a joint; -1: the
                              //!< target makes it

  explicit operator bool() const { return batch.n_rows() > 0; }
  bool is_draft() const { return drafter >= 0; }
};

}  // namespace espalier
