// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier::cuda {

//! The number of rows that a forward pass of up to `rows` is launched with, so that a few captured graphs serve every
//! tree: 1, 9, 17, 33, 65, 129, 257, 513, 1025, ...: a tree of 8, 16, ... drafted nodes and its root.
constexpr int forward_bucket(int rows) {
  if (rows <= 1) return 1;
  int drafted = 8;
  while (drafted + 1 < rows)
    drafted *= 2;
  return drafted + 1;
}

}  // namespace espalier::cuda
