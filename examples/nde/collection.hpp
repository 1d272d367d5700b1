// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace nde {

//! How traces are collected.
struct collection {
  int tokens = 128;  //!< written after each prompt
  int spacing = 16;  //!< tokens from one root to the next; the first is so far behind the prompt
  int roots = 0;     //!< of a text at most; 0: as many as there are
  int samples = 4;   //!< trees drawn for each action at each root
};

}  // namespace nde
