// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

#include "espalier/config.hpp"

//! The shares of the pairs of tokens inside the window of a stage of Khisti's tournament.
namespace espalier::detail {

// Khisti's truncated linear program as a maximum flow. Every pair of tokens has a mass, which at first belongs to its
// better token. A token that has more mass than the target wants gives mass of its pairs to tokens that have less,
// directly or through others, until no more can be moved: then as much of the target is covered as can be. The amount
// covered is unique, the shares are not: these are the shares that Edmonds and Karp's method finds with tokens in rank
// order.
class window_flow {
 public:
  static constexpr std::size_t max_size = 15;

  ESPALIER_HOST_DEVICE void resize(std::size_t size) {
    size_ = size;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j)
        share_[i][j] = 0;
    }
  }
  ESPALIER_HOST_DEVICE std::size_t size() const { return size_; }
  // The mass of the pair {i, j}, all of which belongs to i at first.
  ESPALIER_HOST_DEVICE void set_pair(std::size_t i, std::size_t j, double mass) { share_[i][j] = mass; }
  // The mass that token i has at first, its pairs included, and the mass that the target wants.
  ESPALIER_HOST_DEVICE void set_mass(std::size_t i, double mass, double wanted) {
    surplus_[i] = mass - wanted;
    wanted_[i] = wanted;
  }

  // The mass of the pair {i, j} that belongs to i.
  ESPALIER_HOST_DEVICE double share(std::size_t i, std::size_t j) const { return share_[i][j]; }
  // The mass that token i has now, its pairs included.
  ESPALIER_HOST_DEVICE double mass(std::size_t i) const { return surplus_[i] + wanted_[i]; }

  // Moves all mass that can be moved, each time along a shortest path.
  ESPALIER_HOST_DEVICE void balance() {
    while (find_path())
      move_along_path();
  }

 private:
  static constexpr std::size_t unseen = max_size;
  static constexpr std::size_t source = max_size + 1;

  ESPALIER_HOST_DEVICE static double least(double x, double y) { return y < x ? y : x; }

  // Finds a shortest path from a token with a surplus to one that wants more, breadth first. False if there is none.
  ESPALIER_HOST_DEVICE bool find_path() {
    std::size_t queue[max_size];
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

  ESPALIER_HOST_DEVICE void move_along_path() {
    double moved = -surplus_[goal_];
    std::size_t first = goal_;
    for (; from_[first] != source; first = from_[first])
      moved = least(moved, share_[from_[first]][first]);
    moved = least(moved, surplus_[first]);
    for (std::size_t j = goal_; j != first; j = from_[j]) {
      share_[from_[j]][j] -= moved;
      share_[j][from_[j]] += moved;
    }
    surplus_[first] -= moved;
    surplus_[goal_] += moved;
  }

  std::size_t size_;
  double share_[max_size][max_size];
  double surplus_[max_size];
  double wanted_[max_size];
  std::size_t from_[max_size];
  std::size_t goal_;
};

}  // namespace espalier::detail
