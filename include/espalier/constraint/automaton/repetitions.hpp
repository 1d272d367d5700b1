// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "espalier/constraint/automaton/byte_nfa.hpp"

namespace espalier::detail {

// Tells for how many bytes two states of a byte_nfa that differ only in the number of repetitions behave alike. In
// [a-z]{0,200}, the texts after 30 letters and after 40 letters can go on alike for the next 159 bytes.
//
// This follows from the automaton alone: a state and its copy are alike for fewer bytes than the shortest way to a
// state whose successors are neither copies of each other nor the same.
//
// Complexity  construction: O(states). same_until: O(copies between the two)
class repetitions {
 public:
  static constexpr std::int32_t always = (std::numeric_limits<std::int32_t>::max)();

  repetitions(const byte_nfa& nfa, std::int32_t end)
      : next_(static_cast<std::size_t>(nfa.size())), first_(next_.size(), -1), distance_(next_.size(), always) {
    for (std::int32_t s = 0; s < nfa.size(); ++s)
      next_[at(s)] = nfa[s].next_copy;
    // A copy always has a greater number than its original.
    for (std::int32_t s = 0; s < nfa.size(); ++s) {
      if (first_[at(s)] < 0) first_[at(s)] = s;
      if (next_[at(s)] >= 0) first_[at(next_[at(s)])] = first_[at(s)];
    }
    measure(nfa, end);
  }

  // The first copy of a state.
  std::int32_t first(std::int32_t s) const { return first_[at(s)]; }

  // A number n: two states take the same texts of fewer than n bytes, and the same of these texts may end.
  std::int32_t same_until(std::int32_t a, std::int32_t b) const {
    if (a > b) std::swap(a, b);
    std::int32_t least = always;
    for (; a != b; a = next_[at(a)]) {
      if (a < 0 || a > b) return 0;
      least = (std::min)(least, distance_[at(a)]);
    }
    return least;
  }

 private:
  static std::size_t at(std::int32_t s) { return static_cast<std::size_t>(s); }

  // True if a state and its next copy lead to the same state, or to a state and its next copy. In the second case
  // `through` becomes that state.
  bool go_on_alike(std::int32_t to, std::int32_t copy_to, std::int32_t& through) const {
    if (to == copy_to) return true;
    if (to < 0 || copy_to < 0 || next_[at(to)] != copy_to) return false;
    through = to;
    return true;
  }

  // Fills distance_ by a search, breadth first and backwards, from the states that part from their copies. An edge
  // costs one byte, or none.
  void measure(const byte_nfa& nfa, std::int32_t end) {
    struct edge {
      std::int32_t from, next;
    };
    std::vector<std::int32_t> into(next_.size(), -1);  // by state: the first edge of its list of incoming edges
    std::vector<edge> edges;
    std::deque<std::pair<std::int32_t, std::int32_t>> open;  // states and their distances
    for (std::int32_t s = 0; s < nfa.size(); ++s) {
      if (next_[at(s)] < 0) continue;
      const byte_nfa::state &one = nfa[s], &copy = nfa[next_[at(s)]];
      const bool same = one.takes_byte == copy.takes_byte && one.low == copy.low && one.high == copy.high;
      std::array<std::int32_t, 2> through{-1, -1};
      if (!same || s == end || next_[at(s)] == end) {
        open.emplace_front(s, 0);
      } else if (!go_on_alike(one.to, copy.to, through[0]) || !go_on_alike(one.other, copy.other, through[1])) {
        // States at distance 0 are put before those at distance 1.
        if (one.takes_byte) {
          open.emplace_back(s, 1);
        } else {
          open.emplace_front(s, 0);
        }
      }
      for (const std::int32_t t : through) {
        if (t < 0) continue;
        edges.push_back({s, into[at(t)]});
        into[at(t)] = static_cast<std::int32_t>(edges.size()) - 1;
      }
    }
    while (!open.empty()) {
      const auto [s, distance] = open.front();
      open.pop_front();
      if (distance_[at(s)] <= distance) continue;
      distance_[at(s)] = distance;
      for (std::int32_t e = into[at(s)]; e >= 0; e = edges[at(e)].next) {
        const std::int32_t from = edges[at(e)].from;
        if (nfa[from].takes_byte) {
          open.emplace_back(from, distance + 1);
        } else {
          open.emplace_front(from, distance);
        }
      }
    }
  }

  std::vector<std::int32_t> next_, first_;  // by state: its next copy or -1; its first copy
  std::vector<std::int32_t> distance_;      // by state: bytes to a point where it and its next copy part
};

}  // namespace espalier::detail
