// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "../models/model_set.hpp"
#include "espalier/core/token.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/selector/selector_features.hpp"

namespace nde {

//! Writes the logits after the last token of a text, which is forwarded again if the cache holds it, to `row`: minus
//! infinity for tokens that a draft never proposes. Returns the number that this token has in the last pass.
//!
//! Shapes      row [vocabulary]
inline int row_after(espalier::llama_backend& model, espalier::recurrent_kv& kv, espalier::prefill& prefill,
                     std::span<const espalier::token_id> text, std::vector<float>& row) {
  kv.truncate(0, std::min(kv.size(0), static_cast<int>(text.size()) - 1));
  int last = 0;
  const auto logits = prefill.run(model, kv, 0, text, 1, [&](std::int32_t, std::int32_t n) { last = n - 1; }).row(0);
  if (model.tokens().empty()) {
    row.assign(logits.begin(), logits.end());
    return last;
  }
  row.assign(static_cast<std::size_t>(model.vocab_size()), -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < logits.size(); ++i)
    row[static_cast<std::size_t>(model.tokens()[i])] = logits[i];
  return last;
}

//! The states of both models at the end of a text, as a selector reads them.
class root_states {
 public:
  explicit root_states(models::model_set& models)
      : models_(models), draft_kv_(models.make_cache(models.draft_model())) {}

  //! Begins a new text, which both models sample by `sampling`.
  void begin(const espalier::sampling_options& sampling) {
    sampling_ = sampling;
    draft_kv_.truncate(0, 0);
  }

  //! Brings the target's cache up to the text without its last token, which is pending, and returns the features there.
  //! The text may only grow from call to call.
  //!
  //! Errors      option_error if a model keeps no state of its last layer
  espalier::selector_features read(espalier::recurrent_kv& target_kv, std::span<const espalier::token_id> text) {
    const auto before = text.first(text.size() - 1);
    forward(models_.target, target_kv, before);
    p_.resize(row_.size());
    espalier::untruncated_row(row_, sampling_.temperature, p_);
    target_hidden_ = hidden_;
    espalier::sampler<float> sampler(sampling_);
    const auto draft_row = [&](std::span<const espalier::token_id> upto, std::vector<float>& q,
                               std::vector<float>& hidden) {
      forward(models_.draft_model(), draft_kv_, upto);
      q.resize(row_.size());
      sampler.probabilities(row_, q, 0);
      hidden = hidden_;
    };
    draft_row(before, q_prev_, draft_hidden_prev_);
    draft_row(text, q_root_, draft_hidden_root_);
    espalier::selector_features features{target_hidden_, draft_hidden_prev_, draft_hidden_root_};
    features.set_divergences(std::span<const float>(p_), std::span<const float>(q_prev_),
                             std::span<const float>(q_root_));
    features.set_text(static_cast<std::int32_t>(text.size()), sampling_);
    return features;
  }

 private:
  // Computes the logits and the last hidden state after the last token.
  void forward(espalier::llama_backend& model, espalier::recurrent_kv& kv, std::span<const espalier::token_id> text) {
    const auto hidden = model.hidden_state(row_after(model, kv, prefill_, text, row_));
    hidden_.assign(hidden.begin(), hidden.end());
  }

  models::model_set& models_;
  espalier::recurrent_kv draft_kv_;
  espalier::sampling_options sampling_{};
  espalier::prefill prefill_;
  std::vector<float> row_, hidden_, p_, q_prev_, q_root_, target_hidden_, draft_hidden_prev_, draft_hidden_root_;
};

}  // namespace nde
