// SPDX-License-Identifier: BSL-1.0
// Tested by tests/tree_policy/cost_aware.cpp
#pragma once

#include <utility>

namespace espalier {

//! The state that a policy changes in a round before it knows the verdict. If no verdict comes, the next round begins
//! with the state from before the failed round, which so leaves no trace.
template <class StateT>
class provisional {
 public:
  //! Begins a round, after taking back the changes of a round without a verdict.
  void begin_round() {
    take_back();
    before_ = now_;
    open_ = true;
  }

  //! Keeps the changes: the verdict has come.
  void keep() { open_ = false; }

  //! Sets the state to StateT{}, and forgets the round that has begun.
  void reset() { *this = {}; }
  //! Saves or loads the state between two rounds; takes back the changes of a round without a verdict.
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
