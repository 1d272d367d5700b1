// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/option.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

struct recurrent_options {
  int rows = 640;  //!< tokens after a state that a sequence has room for: those of two passes
  commit_mode commit = commit_mode::compact;

  static constexpr void describe(auto see) {
    see(option{"rows", &recurrent_options::rows, "tokens after a recurrent state, two passes of them", 2, 1 << 20});
    see(option{"commit", &recurrent_options::commit, "what is done with accepted cache rows"});
  }
};

}  // namespace espalier
