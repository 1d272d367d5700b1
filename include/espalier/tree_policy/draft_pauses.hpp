// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

//! When the draft is asked: as long as it gains. A text begins with the credit of two plain rounds, so that finding out
//! that a draft is useless costs about that much, and bad luck in the first rounds seldom counts as it; each round that asks
//! adds what it has gained, or lost, beside plain decoding, and what came before fades. Once the credit is used up the draft
//! pauses, and then is tried: if a token is accepted it is asked again, on the credit of one plain round; if none is, a
//! pause follows that is four times as long, up to the longest. Pauses are short again once the draft has gained what a text
//! begins with. Most of what trials cost is that the draft must read what was written meanwhile; a text that ends in
//! a pause spares that.
//!
//! Complexity  O(1)
class draft_pauses {
 public:
  static constexpr std::int32_t shortest = 4;  //!< rounds of the first pause
  static constexpr std::int32_t longest = 128;

  //! A new text: the draft is asked.
  void reset() { *this = {}; }

  //! Once a round: whether the draft is to be asked.
  bool asks() {
    if (left_ > 0) {
      --left_;
      return false;
    }
    if (paused_ || credit_ > 0) return true;
    paused_ = true;
    left_ = length_ - 1;
    return false;
  }

  //! Whether a round that asks is a trial, after a pause.
  bool paused() const { return paused_; }

  //! A round that asked is over: whether one of its tokens was accepted, and the tokens that it has gained.
  void observe(bool accepted, double gain) {
    credit_ = kept * credit_ + gain;
    if (paused_ && accepted) {
      paused_ = false;
      credit_ = of_trial;
    } else if (paused_) {
      length_ = (std::min)(4 * length_, longest);
      left_ = length_;
    } else if (credit_ > of_text) {
      length_ = shortest;
    }
  }

 private:
  static constexpr double kept = 0.96;   // of the credit, at each round that asks
  static constexpr double of_text = 2;   // tokens of credit at the beginning
  static constexpr double of_trial = 1;  // after a trial that succeeded

  bool paused_ = false;
  double credit_ = of_text;
  std::int32_t length_ = shortest;
  std::int32_t left_ = 0;  // rounds of the pause
};

}  // namespace espalier
