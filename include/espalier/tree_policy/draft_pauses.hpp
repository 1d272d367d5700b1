// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

//! When the draft is asked: as long as it gains. A text begins with the credit of two plain rounds, so that finding out that a
//! draft is useless costs about that much, and bad luck in the first rounds seldom counts as it; each round that asks adds what it has gained, or lost, beside plain decoding, and
//! what came before fades. Once the credit is used up the draft pauses, and is tried again after pauses each of which is
//! four times as long as the one before, until a trial succeeds: most of what trials cost is that the draft must read what was
//! written meanwhile, and a text that ends in a pause spares that.
//!
//! Complexity  O(1)
class draft_pauses {
 public:
  static constexpr std::int32_t shortest = 4;  //!< rounds from one trial to the next
  static constexpr std::int32_t longest = 128;

  //! A new text: the draft is asked.
  void reset() { *this = {}; }

  //! Whether what drafting has gained, and the credit of a new text, is used up.
  bool exhausted() const { return credit_ <= 0; }

  //! The draft does not pay: this round is the first of a pause.
  void begin() {
    paused_ = true;
    left_ = length_ - 1;
  }

  //! Asked once a round: whether it belongs to a pause. The round after a pause, in which paused() still holds, is a trial.
  bool holds() {
    if (left_ == 0) return false;
    --left_;
    return true;
  }

  bool paused() const { return paused_; }

  //! A round in which the draft was asked is over: whether one of its tokens was accepted, and the tokens that it has gained.
  void observe(bool accepted, double gain) {
    credit_ = kept * credit_ + gain;
    if (accepted && paused_) reset();
    if (paused_) {
      length_ = (std::min)(4 * length_, longest);
      left_ = length_ - 1;
    }
  }

 private:
  static constexpr double kept = 0.96;  // of the credit, at each round that asks

  bool paused_ = false;
  double credit_ = 2;  // tokens
  std::int32_t length_ = shortest;
  std::int32_t left_ = 0;  // rounds of the pause
};

}  // namespace espalier
