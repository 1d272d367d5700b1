// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Part of an automaton. It accepts the texts that lead from state `begin` to state `end`. No link leads away from `end`
// yet.
struct nfa_part {
  std::int32_t begin, end;
};

// A nondeterministic automaton over bytes with a stack, made of parts. The stack has a frame for each rule that is
// being read, and one for each counted repetition that is being read, with the number of times read so far. So a
// repetition has the same few states whatever its numbers are, and rules may contain themselves.
//
// Errors      input_error for more than max_states states
class byte_nfa {
 public:
  static constexpr std::int32_t max_states = 1 << 18;

  enum class kind : std::uint8_t {
    join,   // leads to `to` and `other` without a byte
    byte,   // leads to `to` by a byte in [low, high]; a state with low > high takes none
    call,   // leads into the rule that begins at `to`; after it, to `other`
    leave,  // ends a rule
    push,   // leads to `to`, a join of `more` and `pop`, with a new frame, whose number is 0
    more,   // leads to `to` if the number in the frame is below `most`, or if `most` is `many`
    count,  // leads to `to` with a number that is greater by one
    pop     // if the number in the frame is at least `least`: removes the frame and leads to `to`
  };

  // Purpose of a byte state, if it is more than to read a byte.
  //   free_text      a character of a JSON string begins here; any number of characters may follow
  //   counted_text   as free_text, but only as many characters may follow as the frame on the stack still allows
  //   closing        a state of a group, with a rank in the group: if several states of one group, with the same stack,
  //                  could read the next byte, only the states of the lowest rank read it
  //   stop           the end of one of several parts that are read side by side
  enum class role : std::uint8_t { none, free_text, counted_text, closing, stop };

  // One state; -1 stands for no state.
  struct state {
    kind what = kind::join;
    role is = role::none;
    std::uint8_t low = 0, high = 0;
    std::int32_t to = -1, other = -1;
    // The bounds of a repetition. In a closing state, `least` is the number of the group and `most` the rank in it.
    std::int32_t least = 0, most = many;
  };
  static constexpr std::int32_t many = -1;

  const state& operator[](std::int32_t s) const { return states_[static_cast<std::size_t>(s)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(states_.size()); }

  // The part that accepts the empty text alone.
  nfa_part nothing() {
    const std::int32_t s = add({});
    return {s, s};
  }

  // The part that accepts no text.
  nfa_part never() { return {add({kind::byte, role::none, 1, 0}), add({})}; }

  // The part that accepts one byte in [low, high].
  nfa_part byte(std::uint8_t low, std::uint8_t high, role is = role::none) {
    const std::int32_t s = add({kind::byte, is, low, high, size() + 1});
    return {s, add({})};
  }

  // The part that accepts `mark`, which closes a text, by a closing state with this group and rank: see role. A state
  // of rank 0 may lead nowhere: it still keeps the other states of its group from reading the mark.
  nfa_part closing(char mark, std::int32_t group, std::int32_t rank) {
    const auto byte = static_cast<std::uint8_t>(mark);
    const std::int32_t s = add({kind::byte, role::closing, byte, byte, size() + 1, -1, group, rank});
    return {s, add({})};
  }

  // Returns a state that ends one of several parts that are read side by side. It takes no byte.
  std::int32_t stop() { return add({kind::byte, role::stop, 1, 0}); }

  // The part that accepts this text alone.
  nfa_part bytes(std::string_view text) {
    nfa_part all = nothing();
    for (const char c : text)
      all = then(all, byte(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c)));
    return all;
  }

  // The part that accepts a text of `a` and then a text of `b`.
  nfa_part then(nfa_part a, nfa_part b) {
    link(a.end, b.begin);
    return {a.begin, b.end};
  }

  // The part that accepts every text that at least one of these parts accepts.
  nfa_part any_of(const std::vector<nfa_part>& parts) {
    if (parts.empty()) return never();
    std::int32_t begin = parts[0].begin;
    const std::int32_t e = add({});
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) begin = add({.to = begin, .other = parts[i].begin});
      link(parts[i].end, e);
    }
    return {begin, e};
  }

  // The part that accepts every text that `a` or `b` accepts.
  nfa_part either(nfa_part a, nfa_part b) {
    const std::int32_t s = add({.to = a.begin, .other = b.begin}), e = add({});
    link(a.end, e);
    link(b.end, e);
    return {s, e};
  }

  // The part that accepts the empty text or one text of `a`; if `repeats`, any number of texts of `a` in a row.
  nfa_part optional(nfa_part a, bool repeats) {
    const std::int32_t s = add({.to = a.begin}), e = add({});
    link(s, e);
    link(a.end, repeats ? s : e);
    return {s, e};
  }

  // The part that accepts `least` to `most` texts of `a` in a row; if most < 0, any number from `least` on.
  nfa_part times(nfa_part a, std::int32_t least, std::int32_t most) {
    if (most == 0) return nothing();
    if (least > 0 && (least > 1 || most != 1) && accepts_nothing(a)) least = 0;
    if (most == 1) return least == 1 ? a : optional(a, false);
    if (most < 0 && least == 0) return optional(a, true);
    if (most < 0 && least == 1) {
      const std::int32_t again = add({.to = a.begin}), e = add({});
      link(again, e);
      link(a.end, again);
      return {a.begin, e};
    }
    const std::int32_t fork = add({}), e = add({});
    const std::int32_t begin = add({.what = kind::push, .to = fork, .least = least, .most = most});
    link(fork, add({.what = kind::more, .to = a.begin, .least = least, .most = most}));
    link(fork, add({.what = kind::pop, .to = e, .least = least, .most = most}));
    link(a.end, add({.what = kind::count, .to = fork, .least = least, .most = most}));
    return {begin, e};
  }

  // Makes a rule that has no content yet. The caller links the begin of the rule to the begin of the content, and the
  // end of the content to the end of the rule.
  nfa_part rule() { return {add({}), add({.what = kind::leave})}; }

  // The part that calls a rule: it accepts the texts of the rule.
  nfa_part call(nfa_part rule) {
    const std::int32_t e = add({});
    return {add({.what = kind::call, .to = rule.begin, .other = e}), e};
  }

  // Lets one state lead to another without a byte. A state has room for two such links, including the links that it was
  // made with.
  void link(std::int32_t from, std::int32_t to) {
    state& s = states_[static_cast<std::size_t>(from)];
    (s.to < 0 ? s.to : s.other) = to;
  }

  // Returns for each state whether it lives. A state in a rule or in a counted repetition lives if some text leads from
  // it to the `leave` of the rule or the `count` of the repetition; a state outside of these, if some text leads from
  // it to the state `end`. A state also lives if some text leads from it to a state of role stop or to a closing state
  // of rank 0.
  //
  // Complexity  O(states)
  std::vector<char> live(std::int32_t end) const {
    // Returns the state whose two links decide whether state s lives: the join after a push, else s itself.
    const auto decider = [&](std::int32_t s) -> const state& {
      const state& one = (*this)[s];
      return one.what == kind::push ? (*this)[one.to] : one;
    };
    // For each state t, the list of the links that lead to t: last_link[t], then link_before of that link, and so on.
    // Link 2s is `to` of the decider of s, link 2s + 1 is its `other`.
    std::vector<std::int32_t> last_link(states_.size(), -1), link_before(2 * states_.size(), -1);
    std::vector<char> all(states_.size(), 0);
    std::vector<std::int32_t> open;
    const auto is = [&](std::int32_t s) { return s >= 0 && all[static_cast<std::size_t>(s)] != 0; };
    const auto note = [&](std::int32_t s, bool lives) {
      if (!lives || is(s)) return;
      all[static_cast<std::size_t>(s)] = 1;
      open.push_back(s);
    };
    for (std::int32_t s = 0; s < size(); ++s) {
      const state& one = (*this)[s];
      std::int32_t link = 2 * s;
      for (const std::int32_t to : {decider(s).to, decider(s).other}) {
        if (to >= 0) {
          link_before[static_cast<std::size_t>(link)] = last_link[static_cast<std::size_t>(to)];
          last_link[static_cast<std::size_t>(to)] = link;
        }
        ++link;
      }
      note(s, s == end || one.what == kind::leave || one.what == kind::count || one.is == role::stop ||
                  (one.is == role::closing && one.most == 0));
    }
    while (!open.empty()) {
      const std::int32_t reached = open.back();
      open.pop_back();
      for (std::int32_t link = last_link[static_cast<std::size_t>(reached)]; link >= 0;
           link = link_before[static_cast<std::size_t>(link)]) {
        const std::int32_t s = link / 2;
        const state &one = (*this)[s], &by = decider(s);
        if (one.what == kind::call)
          note(s, is(by.to) && is(by.other));
        else if (one.what == kind::push)
          note(s, is(by.other) && (one.least == 0 || is(by.to)));
        else
          note(s, true);
      }
    }
    return all;
  }

 private:
  // True if a part accepts the empty text without a call of a rule. Then times() sets the least number of a repetition
  // to 0, which accepts the same texts.
  bool accepts_nothing(nfa_part a) const {
    std::set<std::int32_t> seen;
    for (std::vector<std::int32_t> open{a.begin}; !open.empty();) {
      const std::int32_t s = open.back();
      open.pop_back();
      if (s < 0 || !seen.insert(s).second) continue;
      if (s == a.end) return true;
      const state& one = (*this)[s];
      if (one.what == kind::byte || one.what == kind::call || (one.what == kind::pop && one.least > 0)) continue;
      open.push_back(one.to);
      open.push_back(one.other);
    }
    return false;
  }

  std::int32_t add(const state& s) {
    if (size() >= max_states) {
      raise<input_error>("the pattern is too large: its automaton has more than ", max_states,
                         " states. Lower its numbers of repetitions.");
    }
    states_.push_back(s);
    return size() - 1;
  }

  std::vector<state> states_;
};

}  // namespace espalier::detail
