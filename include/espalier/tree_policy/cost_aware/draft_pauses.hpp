// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

//! Decides in which rounds of a text the draft is asked: as long as asking gains tokens over plain decoding.
//!
//! A text begins with a credit of two tokens, which is two plain rounds. That is about the cost of finding out that a
//! draft is useless, and it is enough to survive some bad luck in the first rounds. Each round that asks adds its gain
//! to the credit, or subtracts its loss; earlier gains lose weight. Once the credit is used up, the draft is not asked
//! for some rounds, and then is tried once:
//!   - If one of its tokens is accepted, it is asked again, on a credit of one token.
//!   - If none is, the next pause is four times as long, up to the longest.
//! Pauses are short again once the credit exceeds the one that a text begins with. The cost of a trial is mostly the
//! reading of the tokens written since the draft was last asked; a text that ends in a pause never pays it.
//!
//! Complexity  O(1)
class draft_pauses {
 public:
  static constexpr std::int32_t shortest = 4;   //!< rounds of the first pause
  static constexpr std::int32_t longest = 128;  //!< rounds of a pause at most

  //! Begins a new text: the draft is asked.
  void reset() { *this = {}; }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(paused_, credit_, length_, left_);
    archive.require(length_ >= 1 && length_ <= longest && left_ >= 0 && left_ <= length_ && credit_ == credit_);
  }

  //! True if the draft is to be asked in this round. Call it at most once in a round: in a pause, each call counts one
  //! round of the pause.
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

  //! True if a round that asks now is a trial after a pause.
  bool paused() const { return paused_; }

  //! Learns the result of a round that asked. `accepted`: whether one of its drafted tokens was accepted; `gain`: how
  //! many more tokens it wrote than plain decoding would have written in the same time.
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
  static constexpr double kept = 0.96;   // share of the credit that remains at each round that asks
  static constexpr double of_text = 2;   // tokens of credit at the beginning of a text
  static constexpr double of_trial = 1;  // tokens of credit after a successful trial

  bool paused_ = false;
  double credit_ = of_text;
  std::int32_t length_ = shortest;
  std::int32_t left_ = 0;  // rounds of the pause that are left
};

}  // namespace espalier
