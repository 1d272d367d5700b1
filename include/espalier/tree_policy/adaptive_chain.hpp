// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/chain.hpp"

namespace espalier {

struct adaptive_chain_options {
  std::int32_t length = 20;      //!< drafted tokens of the first round
  std::int32_t max_length = 64;  //!< drafted tokens a round at most
  double confidence = 0.4;       //!< a token less probable than that is the last one drafted
};

//! Drafts the most probable tokens, one after the other, until the draft is unsure: two more at most once all that was drafted
//! has been accepted, one fewer, but at least one, once it has not.
//!
//! Complexity  a draft pass of one row for each drafted token
//! Errors      option_error for a length outside 1 to max_length, a max_length outside 1 to 1024, a confidence outside 0 to 1
//! Source      assisted generation of Hugging Face transformers: the schedule "heuristic_transient" of
//!             num_assistant_tokens, with the stop of assistant_confidence_threshold; defaults as there since version 4.46,
//!             where the schedule is "constant". The greatest length is ours. A round that drafted nothing teaches nothing
class adaptive_chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit adaptive_chain(adaptive_chain_options options = {}) : options_(options), length_(options.length) {
    require_option("max_length", options.max_length, 1, 1024);
    require_option("length", options.length, 1, options.max_length);
    require_option("confidence", options.confidence, 0.0, 1.0);
  }

  std::int32_t max_nodes() const { return options_.max_length; }

  //! Drafted tokens of the next round at most.
  std::int32_t length() const { return length_; }

  void reset() { length_ = options_.length; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    drafted_ = 0;
    node_id u = root_node;
    for (std::int32_t i = 0; i < length_ && !tree.full(); ++i) {
      const double probability = detail::append_best(tree, drafter, u);
      if (!(probability > 0)) return;
      ++drafted_;
      if (probability < options_.confidence) return;
    }
  }

  void observe(tree_view tree, verdict v) {
    if (drafted_ == 0) return;
    const bool all = tree.depth[v.accepted] >= drafted_;
    length_ = all ? (std::min)(length_ + 2, options_.max_length) : (std::max)(length_ - 1, 1);
  }

 private:
  adaptive_chain_options options_;
  std::int32_t length_;
  std::int32_t drafted_ = 0;  // in this round
};

}  // namespace espalier
