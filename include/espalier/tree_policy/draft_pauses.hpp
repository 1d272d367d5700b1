// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

//! When a draft that does not pay is tried again: after pauses each of which is four times as long as the one before, until a
//! trial succeeds. A text on which the draft is useless is thus written at nearly the pace of plain decoding: most of what trials
//! cost is that the draft must read what was written meanwhile, and a text that ends in a pause spares that.
//!
//! Complexity  O(1)
class draft_pauses {
 public:
  static constexpr std::int32_t shortest = 8;  //!< rounds from one trial to the next
  static constexpr std::int32_t longest = 128;

  //! A new text: the draft is asked.
  void reset() { *this = {}; }

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

  //! Whether the last round in which the draft was asked accepted a token: it may then go on against expectation.
  bool succeeded() const { return succeeded_; }

  //! A round in which the draft was asked is over: one of its tokens was accepted, or none.
  void observe(bool accepted) {
    if (accepted) reset();
    succeeded_ = accepted;
    if (paused_) {
      length_ = (std::min)(4 * length_, longest);
      left_ = length_ - 1;
    }
  }

 private:
  bool paused_ = false;
  bool succeeded_ = false;
  std::int32_t length_ = shortest;
  std::int32_t left_ = 0;  // rounds of the pause
};

}  // namespace espalier
