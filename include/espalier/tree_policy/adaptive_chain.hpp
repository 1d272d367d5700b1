// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/tree_policy/chain.hpp"

namespace espalier {

struct adaptive_chain_options {
  std::int32_t length = 20;      //!< drafted tokens of the first round
  std::int32_t max_length = 64;  //!< drafted tokens of a round at most
  double confidence = 0.4;       //!< the draft stops after a token less probable than this

  static constexpr void describe(auto see) {
    using self = adaptive_chain_options;
    see(option{"max_length", &self::max_length, "drafted tokens a round at most", 1, 1024});
    see(option{"length", &self::length, "drafted tokens of the first round", 1, &self::max_length});
    see(option{"confidence", &self::confidence, "a less probable token is the last one drafted", 0, 1});
  }

  //! Returns the greatest number of drafted tokens of the next round. `now` is the greatest number of this round;
  //! `all_accepted` tells whether all drafted tokens of this round were accepted.
  ESPALIER_HOST_DEVICE std::int32_t next_length(std::int32_t now, bool all_accepted) const {
    if (all_accepted) return now + 2 < max_length ? now + 2 : max_length;
    return now > 1 ? now - 1 : 1;
  }
};

//! Drafts the most probable tokens, one after the other, until the draft is unsure or the round has its greatest
//! length. That length is two more than in the round before if all tokens drafted there were accepted, otherwise one
//! less; it is at least one and at most max_length. A round that drafted nothing does not change it. A
//! SequenceDrafter's run is drafted up to that length, each token with a log-probability of 0.
//!
//! Complexity  a draft pass of one row for each drafted token; from a SequenceDrafter one call
//! Errors      option_error for options out of range
//! Source      assisted generation of Hugging Face transformers: the schedule "heuristic_transient" of
//!             num_assistant_tokens, with the stop of assistant_confidence_threshold. The defaults are those of version
//!             4.46 and later, whose schedule is "constant". max_length is ours
class adaptive_chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit adaptive_chain(adaptive_chain_options options = {})
      : options_(require_options(options)), length_(options.length) {}

  std::int32_t max_nodes() const { return options_.max_length; }

  //! The greatest number of drafted tokens in the next round.
  std::int32_t length() const { return length_; }

  void reset() { length_ = options_.length; }
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(length_);
    archive.require(length_ >= 1 && length_ <= options_.max_length);
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    u_ = root_node;
    drafted_ = 0;
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    const wide_number probability = detail::append_best(tree, rows, u_);
    if (!(probability > 0)) return {};
    ++drafted_;
    return probability < static_cast<wide_number>(options_.confidence) ? std::span<const node_id>() : wanted(tree);
  }

  template <class TreeT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, token_run run, ChanceT&) {
    for (const token_id token : run.tokens) {
      if (drafted_ == length_ || tree.full()) break;
      u_ = tree.append(u_, token, 0.0F);
      ++drafted_;
    }
    return {};
  }

  void observe(tree_view tree, verdict v) {
    if (drafted_ == 0) return;
    length_ = options_.next_length(length_, tree.depth[v.accepted] >= drafted_);
  }

 private:
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) const {
    return drafted_ < length_ && !tree.full() ? std::span(&u_, 1) : std::span<const node_id>();
  }

  adaptive_chain_options options_;
  std::int32_t length_;
  std::int32_t drafted_ = 0;  // drafted tokens of this round
  node_id u_ = root_node;     // the node drafted last
};

}  // namespace espalier
