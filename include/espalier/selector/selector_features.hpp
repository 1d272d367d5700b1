// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "espalier/core/sampling_options.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/selector/row_divergence.hpp"

namespace espalier {

//! The features that a selector chooses by: all that is known at the root of a round before anything is drafted.
//!
//! "Previous" is the position that the pending token was drawn from. The target has not read the pending token yet, so
//! its row and state are of the previous position alone. The draft has read it, and has rows and states of both.
//!
//! Source      Delayed tree expansion, appendix E. It does not say whether the target's row is taken before truncation,
//!             nor what the logarithm of 0 is. Here the row is taken before truncation, and logarithms are floored at
//!             that of 1e-10
struct selector_features {
  static constexpr std::size_t n_scalars = 11;
  static constexpr std::array<const char*, n_scalars> scalar_names = {
      "target_entropy", "draft_entropy", "root_entropy", "target_to_draft", "draft_to_target", "distance",
      "length",         "temperature",   "top_p",        "draft_seconds",   "target_seconds"};

  std::span<const float> target_hidden;      //!< [target hidden] the target's last state, previous position
  std::span<const float> draft_hidden_prev;  //!< [draft hidden] the draft's state, previous position
  std::span<const float> draft_hidden_root;  //!< [draft hidden] the draft's state, pending token
  std::array<float, n_scalars> scalars{};    //!< in the order of scalar_names, as they are: not standardised

  //! Sets the first six scalars: entropies (nats) of target and draft at the previous position, and of the draft's row
  //! after the pending token; then both Kullback-Leibler divergences (nats) and the L1 distance at the previous
  //! position.
  //!
  //! Shapes      p, q, q_root [vocab]: the target's row of untruncated_row(), and the rows that the draft draws from
  //! Complexity  two passes, of which the first reads two rows
  //! Errors      input_error for rows of different lengths
  template <class TargetT, class DraftT>
  void set_divergences(std::span<const TargetT> p, std::span<const DraftT> q, std::span<const DraftT> q_root) {
    const row_divergence previous = row_divergence::of(p, q);
    set(0, {previous.target_entropy, previous.draft_entropy, row_entropy(q_root), previous.target_to_draft,
            previous.draft_to_target, previous.distance});
  }

  //! Sets the next three scalars: the number of tokens of the text, the pending one included, and how the target
  //! samples.
  void set_text(std::int32_t length, const sampling_options& sampling) {
    set(6,
        {static_cast<double>(length), static_cast<double>(sampling.temperature), static_cast<double>(sampling.top_p)});
  }

  //! Sets the last two scalars: seconds of a draft pass and of a target pass of one row at this length.
  void set_seconds(double draft, double target) { set(9, {draft, target}); }

 private:
  void set(std::size_t first, std::initializer_list<double> values) {
    for (const double value : values)
      scalars[first++] = static_cast<float>(value);
  }
};

//! Writes the target's distribution before top-k, top-p and min-p: probabilities at its temperature; at temperature 0,
//! all on the largest logit.
//!
//! Shapes      logits, out [vocab]
//! Complexity  as softmax
//! Errors      as softmax
inline void untruncated_row(std::span<const float> logits, float temperature, std::span<float> out) {
  if (temperature > 0) return softmax(logits, temperature, out, 0);
  const token_id best = argmax(logits, 0);
  std::fill(out.begin(), out.end(), 0.0F);
  out[static_cast<std::size_t>(best)] = 1;
}

}  // namespace espalier
