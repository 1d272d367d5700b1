// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/repetitions.hpp"
#include "espalier/core/error.hpp"

namespace espalier::detail {

// The deterministic automaton of a byte_nfa, whose states are made when they are first reached: each is a set of states
// of the byte_nfa.
//
// Complexity  next: one look-up if the next state is known, else O(states of the set)
// Errors      next: input_error if a further state would take more than max_bytes; the known states stay
class byte_dfa {
 public:
  static constexpr std::int32_t dead = -1;
  static constexpr std::size_t default_max_bytes = std::size_t{256} << 20;

  // Makes the automaton that accepts the texts that lead from the part's begin to its end.
  byte_dfa(byte_nfa nfa, nfa_part all, std::size_t max_bytes = default_max_bytes)
      : nfa_(std::move(nfa)), end_(all.end), max_bytes_(max_bytes), repetitions_(nfa_, all.end) {
    mark_.resize(static_cast<std::size_t>(nfa_.size()));
    begin_set();
    close(all.begin);
    start_ = number_of_set();
  }

  std::int32_t start() const { return start_; }
  bool accepts(std::int32_t state) const { return state != dead && states_[static_cast<std::size_t>(state)].accepts; }
  std::int32_t size() const { return static_cast<std::int32_t>(states_.size()); }

  // The only byte that may follow, if the text may not end here; -1 if there is a choice.
  //
  // Complexity  O(states of the set)
  std::int32_t only_byte(std::int32_t state) const {
    if (state == dead || accepts(state)) return -1;
    std::int32_t only = -1;
    for (const std::int32_t s : states_[static_cast<std::size_t>(state)].of) {
      if (nfa_[s].low != nfa_[s].high || (only >= 0 && nfa_[s].low != only)) return -1;
      only = nfa_[s].low;
    }
    return only;
  }

  // A number n: texts of fewer than n bytes lead on from both states or from neither, and are accepted after both or
  // after neither.
  //
  // Complexity  O(copies of states between the two)
  std::int32_t same_until(std::int32_t a, std::int32_t b) const {
    if (a == b) return repetitions::always;
    if (a == dead || b == dead) return 0;
    const dfa_state &one = states_[static_cast<std::size_t>(a)], &other = states_[static_cast<std::size_t>(b)];
    if (one.accepts != other.accepts || one.of.size() != other.of.size()) return 0;
    std::int32_t least = repetitions::always;
    for (std::size_t i = 0; i < one.of.size() && least > 0; ++i)
      least = (std::min)(least, repetitions_.same_until(one.of[i], other.of[i]));
    return least;
  }

  // A key that states share if they differ in counts of repetitions alone.
  std::vector<std::int32_t> kind(std::int32_t state) const {
    if (state == dead) return {};
    const dfa_state& s = states_[static_cast<std::size_t>(state)];
    std::vector<std::int32_t> firsts{s.accepts ? 1 : 0};
    for (const std::int32_t one : s.of)
      firsts.push_back(repetitions_.first(one));
    return firsts;
  }

  std::int32_t next(std::int32_t state, std::uint8_t byte) {
    if (state == dead) return dead;
    const std::int32_t known = states_[static_cast<std::size_t>(state)].next[byte];
    return known != unknown ? known : make(state, byte);
  }

 private:
  static constexpr std::int32_t unknown = -2;

  struct dfa_state {
    // states of the byte_nfa that take a byte; copies of one state stand next to each other
    std::vector<std::int32_t> of;
    bool accepts = false;
    std::array<std::int32_t, 256> next;
  };

  std::int32_t make(std::int32_t state, std::uint8_t byte) {
    begin_set();
    for (const std::int32_t s : states_[static_cast<std::size_t>(state)].of) {
      if (nfa_[s].low <= byte && byte <= nfa_[s].high) close(nfa_[s].to);
    }
    const std::int32_t to = number_of_set();
    states_[static_cast<std::size_t>(state)].next[byte] = to;
    return to;
  }

  void begin_set() {
    set_.clear();
    set_accepts_ = false;
    ++turn_;
  }

  // Adds to the set every state that can be reached without a byte.
  void close(std::int32_t from) {
    open_.assign(1, from);
    while (!open_.empty()) {
      const std::int32_t s = open_.back();
      open_.pop_back();
      if (s < 0 || std::exchange(mark_[static_cast<std::size_t>(s)], turn_) == turn_) continue;
      set_accepts_ = set_accepts_ || s == end_;
      if (nfa_[s].takes_byte) {
        set_.push_back(s);
      } else {
        open_.push_back(nfa_[s].to);
        open_.push_back(nfa_[s].other);
      }
    }
  }

  std::int32_t number_of_set() {
    if (set_.empty() && !set_accepts_) return dead;
    std::sort(set_.begin(), set_.end(), [&](std::int32_t a, std::int32_t b) {
      return std::pair(repetitions_.first(a), a) < std::pair(repetitions_.first(b), b);
    });
    set_.push_back(set_accepts_ ? 1 : 0);
    const auto known = number_of_.find(set_);
    if (known != number_of_.end()) return known->second;
    // The set is stored twice: in its state, and as the key to find the state by.
    const std::size_t bytes = sizeof(dfa_state) + sizeof(*number_of_.begin()) + 2 * sizeof(std::int32_t) * set_.size();
    if (bytes > max_bytes_ - bytes_) {
      raise<input_error>("the automaton of what may be written takes more than ", max_bytes_,
                         " bytes on the way of this text. Lower its numbers of repetitions.");
    }
    bytes_ += bytes;
    number_of_.emplace(set_, size());
    dfa_state& s = states_.emplace_back();
    s.of.assign(set_.begin(), set_.end() - 1);
    s.accepts = set_accepts_;
    s.next.fill(unknown);
    return size() - 1;
  }

  byte_nfa nfa_;
  std::int32_t end_;
  std::int32_t start_ = dead;
  std::size_t max_bytes_;
  repetitions repetitions_;
  std::size_t bytes_ = 0;  // bytes of all states so far
  std::vector<dfa_state> states_;
  std::map<std::vector<std::int32_t>, std::int32_t> number_of_;
  // The set that is being made, and the states that close() has yet to look at.
  std::vector<std::int32_t> set_, open_;
  std::vector<std::int32_t> mark_;  // by state: number of the last set that it was looked at for
  std::int32_t turn_ = 0;
  bool set_accepts_ = false;
};

}  // namespace espalier::detail
