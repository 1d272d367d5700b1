// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

//! Who gets the mass of a pair in the window of a stage of Khisti's tournament.
namespace espalier::detail {

// The truncated program of Khisti as a flow: tokens with more mass than the target wants give to those with less, along pairs
// whose mass they hold, which covers as much of the target as any shares could. The maximum is unique, the shares are not:
// these are what Edmonds and Karp's method gives, tokens in rank order, when every pair begins with its better token.
class window_flow {
 public:
  static constexpr std::size_t max_size = 15;

  void resize(std::size_t size) {
    size_ = size;
    share_ = {};
  }
  // All mass of the pair goes to i, to begin with.
  void set_pair(std::size_t i, std::size_t j, double mass) { share_[i][j] = mass; }
  // The mass of i, its pairs and all else, to begin with, and what the target wants.
  void set_law(std::size_t i, double law, double wanted) {
    surplus_[i] = law - wanted;
    wanted_[i] = wanted;
  }

  // The mass of the pair {i, j} that goes to i.
  double share(std::size_t i, std::size_t j) const { return share_[i][j]; }
  double law(std::size_t i) const { return surplus_[i] + wanted_[i]; }

  // Moves what can be moved, along a shortest path each time.
  void balance() {
    while (find_path())
      move_along_path();
  }

 private:
  static constexpr std::size_t unseen = max_size;
  static constexpr std::size_t source = max_size + 1;

  // From any token with a surplus to one that wants more, breadth first.
  bool find_path() {
    std::array<std::size_t, max_size> queue;
    std::size_t end = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      from_[i] = surplus_[i] > 0 ? source : unseen;
      if (surplus_[i] > 0) queue[end++] = i;
    }
    for (std::size_t begin = 0; begin < end; ++begin) {
      const std::size_t i = queue[begin];
      for (std::size_t j = 0; j < size_; ++j) {
        if (from_[j] != unseen || !(share_[i][j] > 0)) continue;
        from_[j] = i;
        queue[end++] = j;
        if (surplus_[j] < 0) {
          goal_ = j;
          return true;
        }
      }
    }
    return false;
  }

  void move_along_path() {
    double moved = -surplus_[goal_];
    std::size_t first = goal_;
    for (; from_[first] != source; first = from_[first])
      moved = (std::min)(moved, share_[from_[first]][first]);
    moved = (std::min)(moved, surplus_[first]);
    for (std::size_t j = goal_; j != first; j = from_[j]) {
      share_[from_[j]][j] -= moved;
      share_[j][from_[j]] += moved;
    }
    surplus_[first] -= moved;
    surplus_[goal_] += moved;
  }

  std::size_t size_ = 0;
  std::array<std::array<double, max_size>, max_size> share_{};
  std::array<double, max_size> surplus_{};
  std::array<double, max_size> wanted_{};
  std::array<std::size_t, max_size> from_{};
  std::size_t goal_ = 0;
};

}  // namespace espalier::detail
