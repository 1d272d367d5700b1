// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace nde {

//! The way in which traces are collected.
struct collection {
  int tokens = 128;  //!< tokens written after each prompt
  int spacing = 16;  //!< tokens from one root to the next, and from the prompt to the first root
  int roots = 0;     //!< roots of a text at most; 0: as many as fit
  int samples = 4;   //!< trees drawn for each action at each root
};

}  // namespace nde
