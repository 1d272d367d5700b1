// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

struct penalty_options {
  double repetition = 1;  //!< r, a factor for tokens that stand in the prompt or the written text; 1: no penalty
  double presence = 0;    //!< p, a penalty for tokens that stand in the written text; 0: none
  double frequency = 0;   //!< f, a penalty for each time that a token stands in the written text; 0: none

  static constexpr void describe(auto see) {
    using self = penalty_options;
    see(option{"repetition", &self::repetition, "for tokens of prompt and text; 1: none", 0.01, 100});
    see(option{"presence", &self::presence, "for tokens of the text", -100, 100});
    see(option{"frequency", &self::frequency, "for each time that a token stands in the text", -100, 100});
  }
};

//! Makes tokens that have occurred before less probable; or more probable, if p or f is below 0, or r below 1.
//!
//!     z'(t) = R(z(t)) - f n(t) - (p if n(t) > 0)     n(t): how often t occurs in the written text, path included
//!     R(z)  = z / r if z > 0, else z r               if t occurs in the prompt or the written text; else z
//!
//! Complexity  process: O(different tokens of prompt and text + path); commit: O(tokens). Memory is taken when prompt,
//!             text and path have more different tokens than ever before, or a token with a higher number
//! Law         as Processor
//! Errors      option_error for options out of range
//! Source      r: Keskar et al., CTRL, section 4.1; negative logits are multiplied by r and the prompt counts, as in
//!             the library transformers (RepetitionPenaltyLogitsProcessor). p, f: the OpenAI API, where the prompt does
//!             not count; r comes first, as in vLLM
class penalties {
 public:
  explicit penalties(penalty_options options = {}) : options_(require_options(options)) {}

  const penalty_options& options() const { return options_; }
  bool idle() const { return options_.repetition == 1 && options_.presence == 0 && options_.frequency == 0; }

  void begin(std::span<const token_id> tokens) {
    for (const entry& e : seen_)
      place_[static_cast<std::size_t>(e.token)] = -1;
    seen_.clear();
    if (idle()) return;
    for (const token_id t : tokens)
      find(t).in_prompt = true;
  }

  void commit(std::span<const token_id> tokens) {
    if (idle()) return;
    for (const token_id t : tokens)
      ++find(t).times;
  }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    each_seen(path, [&](const entry& e) {
      if (static_cast<std::size_t>(e.token) >= logits.size()) return;
      NumberT& z = logits[static_cast<std::size_t>(e.token)];
      const double x = static_cast<double>(z);
      const double repeated = x > 0 ? x / options_.repetition : x * options_.repetition;
      z = static_cast<NumberT>(repeated - frequency(e) - presence(e));
    });
  }

  //! True for every token.
  bool allows(std::span<const token_id>, token_id) { return true; }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id> path, ChangesT& list) {
    each_seen(path, [&](const entry& e) { list.penalise(e.token, options_.repetition, frequency(e), presence(e)); });
  }

 private:
  struct entry {
    token_id token;
    std::int32_t times = 0;  // occurrences in the written text, path included while it is processed
    bool in_prompt = false;
  };

  double frequency(const entry& e) const { return options_.frequency * static_cast<double>(e.times); }
  double presence(const entry& e) const { return e.times > 0 ? options_.presence : 0; }

  // Calls f for each different token of prompt, text and path.
  template <class FunctionT>
  void each_seen(std::span<const token_id> path, const FunctionT& f) {
    const std::size_t n_of_text = seen_.size();
    commit(path);
    for (const entry& e : seen_)
      f(e);
    for (const token_id t : path)
      --find(t).times;
    for (; seen_.size() > n_of_text; seen_.pop_back())
      place_[static_cast<std::size_t>(seen_.back().token)] = -1;
  }

  entry& find(token_id token) {
    const auto t = static_cast<std::size_t>(token);
    if (t >= place_.size()) place_.resize(t + 1, -1);
    if (place_[t] < 0) {
      place_[t] = static_cast<std::int32_t>(seen_.size());
      seen_.push_back({token});
    }
    return seen_[static_cast<std::size_t>(place_[t])];
  }

  penalty_options options_;
  std::vector<entry> seen_;
  std::vector<std::int32_t> place_;  // by token: index of its entry, or -1
};

static_assert(Processor<penalties> && detail::HasIdle<penalties> && detail::HasAllows<penalties>);

}  // namespace espalier
