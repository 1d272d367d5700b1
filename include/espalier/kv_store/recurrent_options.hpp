// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/option.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

struct recurrent_options {
  //! Number of tokens after a state that a sequence has room for: those of two passes. The default is enough for two
  //! passes of 64 pending tokens and a tree of 64 nodes, which is every policy's default or more. The cache of a draft
  //! that is asked about more nodes, as best_first may ask about 256, needs twice as many; a part that needs more
  //! raises an error when it is built.
  int rows = 256;
  commit_mode commit = commit_mode::compact;

  static constexpr void describe(auto see) {
    see(option{"rows", &recurrent_options::rows, "tokens after a recurrent state, two passes of them", 2, 1 << 20});
    see(option{"commit", &recurrent_options::commit, "what is done with accepted cache rows"});
  }
};

}  // namespace espalier
