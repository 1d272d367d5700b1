// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Part of an automaton. It accepts the texts that lead from state `begin` to state `end`, which leads nowhere yet. The
// states of the part have the numbers first to last - 1.
struct nfa_part {
  std::int32_t first, last;
  std::int32_t begin, end;
};

// A nondeterministic automaton over bytes, made of parts. From each state that a part's begin leads to, the part's end
// can be reached.
//
// Errors      input_error for more than max_states states
class byte_nfa {
 public:
  static constexpr std::int32_t max_states = 1 << 18;

  // One state. It leads to `to` by a byte in [low, high], or to `to` and `other` without a byte; -1 stands for no
  // state.
  struct state {
    bool takes_byte = false;
    std::uint8_t low = 0, high = 0;
    std::int32_t to = -1, other = -1;
    // in a repeated part: the state that stands for this one in the next repetition of the innermost such part; -1:
    // none
    std::int32_t next_copy = -1;
  };

  const state& operator[](std::int32_t s) const { return states_[static_cast<std::size_t>(s)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(states_.size()); }

  // The part that accepts the empty text alone.
  nfa_part nothing() {
    const std::int32_t s = add({});
    return {s, s + 1, s, s};
  }

  // The part that accepts one byte in [low, high].
  nfa_part byte(std::uint8_t low, std::uint8_t high) {
    const std::int32_t s = add({true, low, high, size() + 1, -1});
    add({});
    return {s, s + 2, s, s + 1};
  }

  // The part that accepts this text alone.
  nfa_part bytes(std::string_view text) {
    nfa_part all = nothing();
    for (const char c : text)
      all = then(all, byte(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c)));
    return all;
  }

  // The part that accepts a text of `a` and then a text of `b`. Its range covers the states of both, and those between
  // them; the two may have been made in either order.
  nfa_part then(nfa_part a, nfa_part b) {
    link(a.end, b.begin);
    return {(std::min)(a.first, b.first), (std::max)(a.last, b.last), a.begin, b.end};
  }

  // The part that accepts the texts of `a` and those of `b`.
  nfa_part either(nfa_part a, nfa_part b) {
    const std::int32_t s = add({false, 0, 0, a.begin, b.begin}), e = add({});
    link(a.end, e);
    link(b.end, e);
    return {(std::min)(a.first, b.first), size(), s, e};
  }

  // The part that accepts the empty text or one text of `a`; if `repeats`, any number of texts of `a` in a row.
  nfa_part optional(nfa_part a, bool repeats) {
    const std::int32_t s = add({false, 0, 0, a.begin, -1}), e = add({});
    link(s, e);
    link(a.end, repeats ? s : e);
    return {a.first, size(), s, e};
  }

  // Makes a second part like `a`, with states of its own.
  nfa_part copy(nfa_part a) {
    const std::int32_t moved = size() - a.first;
    for (std::int32_t s = a.first; s < a.last; ++s) {
      state one = (*this)[s];
      for (std::int32_t* to : {&one.to, &one.other, &one.next_copy})
        *to += *to < 0 || *to < a.first || *to >= a.last ? 0 : moved;
      // The original's end may lead on by now, to states behind the part; the copy's end leads nowhere yet.
      if (s == a.end) one = {.next_copy = one.next_copy};
      add(one);
    }
    return {a.first + moved, a.last + moved, a.begin + moved, a.end + moved};
  }

  // True if there is room for the copies that times() would make.
  bool has_room(nfa_part a, std::int32_t least, std::int32_t most) const {
    const std::int64_t copies = std::int64_t{a.last - a.first + 2} * (most < 0 ? least + 1 : most);
    return size() + copies <= max_states;
  }

  // The part that accepts `least` to `most` texts of `a` in a row; if most < 0, any number from `least` on.
  nfa_part times(nfa_part a, std::int32_t least, std::int32_t most) {
    if (most == 0) return nothing_of(a);
    if (!has_room(a, least, most)) raise_too_large();
    const std::int32_t n = most < 0 ? (least > 0 ? least : 1) : most;
    if (n == 1 && least == 0) return optional(a, most < 0);
    if (n == 1 && most == 1) return a;
    // The copies are made first: linking would change the part that is copied.
    std::vector<nfa_part> parts{a};
    for (std::int32_t i = 1; i < n; ++i)
      parts.push_back(copy(a));
    nfa_part more = a;
    if (most < 0) more = optional(copy(a), true);
    for (std::int32_t i = 0; i + 1 < n; ++i)
      note_copies(parts[static_cast<std::size_t>(i)], parts[static_cast<std::size_t>(i + 1)].first);
    // Before each copy that may be left out stands a state that also leads to the end of the whole part.
    const std::int32_t end = add({});
    for (std::int32_t i = 0; i < n; ++i) {
      if (i < least) continue;
      const std::int32_t skip = add({false, 0, 0, parts[static_cast<std::size_t>(i)].begin, end});
      parts[static_cast<std::size_t>(i)].begin = skip;
      if (i > least) states_[static_cast<std::size_t>(skip - 1)].next_copy = skip;
    }
    for (std::int32_t i = 0; i + 1 < n; ++i)
      link(parts[static_cast<std::size_t>(i)].end, parts[static_cast<std::size_t>(i + 1)].begin);
    if (most < 0) {
      link(parts.back().end, more.begin);
      link(more.end, end);
    } else {
      link(parts.back().end, end);
    }
    return {a.first, size(), parts.front().begin, end};
  }

  // Lets one state lead to another without a byte. A state has room for two such links, those that it was made with
  // included.
  void link(std::int32_t from, std::int32_t to) {
    state& s = states_[static_cast<std::size_t>(from)];
    (s.to < 0 ? s.to : s.other) = to;
  }

 private:
  // Notes for the states of a part that their next copies have the numbers from `first` on. It leaves out states that
  // have, or are, copies within the part.
  void note_copies(nfa_part a, std::int32_t first) {
    std::vector<bool> is_copy(static_cast<std::size_t>(a.last - a.first), false);
    for (std::int32_t s = a.first; s < a.last; ++s) {
      const std::int32_t next = (*this)[s].next_copy;
      if (a.first <= next && next < a.last) is_copy[static_cast<std::size_t>(next - a.first)] = true;
    }
    for (std::int32_t s = a.first; s < a.last; ++s) {
      std::int32_t& next = states_[static_cast<std::size_t>(s)].next_copy;
      if (next < 0 && !is_copy[static_cast<std::size_t>(s - a.first)]) next = first + s - a.first;
    }
  }

  nfa_part nothing_of(nfa_part a) {
    const std::int32_t s = add({});
    return {a.first, s + 1, s, s};
  }

  std::int32_t add(const state& s) {
    if (size() >= max_states) raise_too_large();
    states_.push_back(s);
    return size() - 1;
  }

  [[noreturn]] static void raise_too_large() {
    raise<input_error>("the pattern is too large: its automaton has more than ", max_states,
                       " states. Lower its numbers of repetitions.");
  }

  std::vector<state> states_;
};

}  // namespace espalier::detail
