// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

namespace espalier {

//! What a policy changes in a round before it hears the verdict. If it never hears one, the next round begins as the
//! one before did: a round that failed leaves no trace.
template <class StateT>
class provisional {
 public:
  //! Takes back what a round without a verdict has changed.
  void begin_round() {
    take_back();
    before_ = now_;
    open_ = true;
  }

  //! The verdict has come.
  void keep() { open_ = false; }

  void reset() { *this = {}; }
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    take_back();
    now_.serialize(archive);
  }

  StateT* operator->() { return &now_; }
  const StateT* operator->() const { return &now_; }

 private:
  void take_back() {
    if (std::exchange(open_, false)) now_ = before_;
  }

  StateT now_{}, before_{};
  bool open_ = false;
};

}  // namespace espalier
