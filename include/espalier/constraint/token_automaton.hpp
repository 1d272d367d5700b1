// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/automaton/automaton_limits.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

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

  // The state at the beginning of a state's chain of copies; itself if it is no copy.
  std::int32_t first(std::int32_t s) const { return first_[at(s)]; }

  // A number n such that from both states the automaton can read the same texts of fewer than n bytes, and accepts the
  // same ones of these texts.
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

  std::vector<std::int32_t> next_, first_;  // by state: its next copy or -1; the beginning of its chain
  std::vector<std::int32_t> distance_;      // by state: bytes to a point where it and its next copy part
};

// The deterministic automaton of a byte_nfa. Each of its states stands for a set of states of the byte_nfa, and is made
// when it is first reached.
//
// Complexity  next: one look-up if the next state is known, else O(states of the set)
// Errors      next: input_error if a further state would take more bytes than the limits allow, steps_error if it would
//             take more steps than allow_steps() said; the known states stay
class byte_dfa {
 public:
  static constexpr std::int32_t dead = -1;

  // Makes the automaton that accepts the texts that lead from the part's begin to its end.
  byte_dfa(byte_nfa nfa, nfa_part all, std::size_t max_bytes = automaton_limits().bytes)
      : nfa_(std::move(nfa)), end_(all.end), max_bytes_(max_bytes), repetitions_(nfa_, all.end) {
    mark_.resize(static_cast<std::size_t>(nfa_.size()));
    begin_set();
    close(all.begin);
    start_ = number_of_set();
  }

  std::int32_t start() const { return start_; }
  bool accepts(std::int32_t state) const { return state != dead && states_[static_cast<std::size_t>(state)].accepts; }
  std::int32_t size() const { return static_cast<std::int32_t>(states_.size()); }
  // Bytes that it takes, about.
  std::size_t bytes() const {
    return bytes_ + static_cast<std::size_t>(nfa_.size()) * (sizeof(byte_nfa::state) + 4 * sizeof(std::int32_t));
  }
  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }
  // Sets the number of steps that the calls of next() from now on may take together.
  void allow_steps(std::int64_t n) { steps_left_ = n_allowed_ = n; }
  // The steps that they have taken.
  std::int64_t steps() const { return n_allowed_ - steps_left_; }

  // The byte that must follow; -1 if there is a choice, if the text may end here, and in the state `dead`.
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

  // A number n such that from both states the automaton can read the same texts of fewer than n bytes, and accepts the
  // same ones of these texts.
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
    spend(1);
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

  void spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ >= 0) return;
    raise<steps_error>("what may be written next takes more than ", n_allowed_,
                       " steps to find out. Lower the pattern's numbers of repetitions, or write fewer parts that may "
                       "be left out.");
  }

  std::int32_t make(std::int32_t state, std::uint8_t byte) {
    begin_set();
    spend(states_[static_cast<std::size_t>(state)].of.size());
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

  // Adds to the set every state that takes a byte and can be reached without one, and notes whether the end can be.
  void close(std::int32_t from) {
    open_.assign(1, from);
    while (!open_.empty()) {
      const std::int32_t s = open_.back();
      open_.pop_back();
      spend(1);
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
    if (bytes_ + bytes > max_bytes_) {
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
  std::int64_t steps_left_ = (std::numeric_limits<std::int64_t>::max)(), n_allowed_ = steps_left_;
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

}  // namespace detail

//! The Constraint of an automaton over bytes. A token is allowed if the automaton can read its bytes. A token that ends
//! the text is allowed if the bytes so far are accepted. regular_expression() and json_schema() make such constraints.
//! Copies share the states and masks that they have found, so only one thread at a time may use them.
//!
//! Complexity  allowed: one look-up for a state that was asked about before, else a walk over the vocabulary's prefixes
//!             as far as the state allows them. A string of bounded length has a new state at each character. If a
//!             state differs from one whose mask is known in counts of repetitions alone, the walk is only over the
//!             prefixes of tokens that may be too long for one of the two. At most max_masks masks are kept, of vocab /
//!             8 bytes each, and of 16 MiB in all; when there are that many, all are dropped before the next is made.
//!             advance: O(bytes of the token). prescribed: that of vocabulary_trie::longest
//! Errors      advance, allowed, prescribed: input_error if the states that were reached so far, by all copies
//!             together, take more bytes than the limits say; steps_error if the call would take more steps
//! Law         that of Constraint. Every allowed token can be continued to an accepted text, if each byte is a token
class token_automaton {
 public:
  using state_type = std::int32_t;
  static constexpr std::size_t max_masks = 4096, max_mask_bytes = std::size_t{16} << 20;

  token_automaton(detail::byte_nfa nfa, detail::nfa_part all, vocabulary_trie vocabulary)
      : shared_(std::make_shared<shared>(detail::byte_dfa(std::move(nfa), all), std::move(vocabulary))) {}

  //! Sets the limits of all copies. The automaton may take more bytes already: then it can go on with states that
  //! were reached before.
  void set_limits(const automaton_limits& limits) {
    shared_->steps = limits.steps;
    shared_->dfa.set_max_bytes(limits.bytes);
  }
  //! Steps that the last call took that had to look further than at what was known.
  std::int64_t steps() const { return shared_->dfa.steps(); }
  //! Bytes that all copies take together, about, without the vocabulary.
  std::size_t bytes() const {
    return shared_->dfa.bytes() + shared_->masks.size() * (bytes_of_mask() + 2 * sizeof(void*)) +
           shared_->last_of.size() * 8 * sizeof(void*);
  }

  state_type start() const { return shared_->dfa.start(); }

  state_type advance(state_type state, token_id token) const {
    const vocabulary_trie& vocabulary = shared_->vocabulary;
    if (token < 0 || token >= vocabulary.size() || vocabulary.piece(token).empty()) return detail::byte_dfa::dead;
    shared_->dfa.allow_steps(shared_->steps);
    for (const char c : vocabulary.piece(token))
      state = shared_->dfa.next(state, static_cast<std::uint8_t>(c));
    return state;
  }

  //! True if the text that led to this state is complete.
  bool accepts(state_type state) const { return shared_->dfa.accepts(state); }

  //! The longest token within the bytes that must follow, up to the next point at which there is a choice; no value if
  //! no token lies within them.
  std::optional<token_id> prescribed(state_type state) const {
    detail::byte_dfa& dfa = shared_->dfa;
    dfa.allow_steps(shared_->steps);
    return shared_->vocabulary.longest([&, state]() mutable {
      const std::int32_t byte = dfa.only_byte(state);
      if (byte >= 0) state = dfa.next(state, static_cast<std::uint8_t>(byte));
      return byte;
    });
  }

  std::span<const std::uint32_t> allowed(state_type state) const {
    auto& masks = shared_->masks;
    const auto known = masks.find(state);
    if (known != masks.end()) return known->second;
    shared_->dfa.allow_steps(shared_->steps);
    if (masks.size() >= max_masks || masks.size() * bytes_of_mask() >= max_mask_bytes) {
      masks.clear();
      shared_->last_of.clear();
    }
    // Of the states that differ in counts of repetitions alone, the last one asked about is the most alike.
    const auto [last, is_new] = shared_->last_of.try_emplace(shared_->dfa.kind(state), detail::byte_dfa::dead);
    // If most tokens are too long to behave alike after both states, walking through one state is quicker than through
    // two.
    const bool is_like = !is_new && shared_->dfa.same_until(state, last->second) >= 8;
    const auto like = is_like ? masks.find(last->second) : masks.end();
    std::vector<std::uint32_t> mask =
        like == masks.end() ? mask_of(state) : mask_like(state, like->first, like->second);
    last->second = state;
    return masks[state] = std::move(mask);
  }

 private:
  // Two states, and the result of same_until() for them.
  struct both_states {
    state_type state, other;
    std::int32_t same_until;
  };

  struct shared {
    shared(detail::byte_dfa d, vocabulary_trie v)
        : dfa(std::move(d)), vocabulary(std::move(v)), path(static_cast<std::size_t>(vocabulary.max_depth()) + 1) {}

    detail::byte_dfa dfa;
    vocabulary_trie vocabulary;
    std::int64_t steps = automaton_limits().steps;  // of a call
    std::unordered_map<state_type, std::vector<std::uint32_t>> masks;
    std::map<std::vector<std::int32_t>, state_type> last_of;  // by kind of state: the state whose mask was made last
    std::vector<both_states> path;                            // by length of a prefix: the states after its bytes
  };

  std::size_t bytes_of_mask() const { return words_of_mask() * sizeof(std::uint32_t); }
  std::size_t words_of_mask() const { return (static_cast<std::size_t>(shared_->vocabulary.size()) + 31) / 32; }

  std::vector<std::uint32_t> mask_of(state_type state) const {
    return mask_like(state, detail::byte_dfa::dead, std::vector<std::uint32_t>(words_of_mask(), 0));
  }

  // The mask of `state`, made from the mask of `other`: walks only over prefixes that may be allowed after one of the
  // two states and not after the other.
  std::vector<std::uint32_t> mask_like(state_type state, state_type other, std::vector<std::uint32_t> mask) const {
    const vocabulary_trie& vocabulary = shared_->vocabulary;
    detail::byte_dfa& dfa = shared_->dfa;
    const auto allow = [&](token_id t, bool allowed) {
      const std::uint32_t bit = 1U << t % 32;
      std::uint32_t& word = mask[static_cast<std::size_t>(t) / 32];
      word = allowed ? word | bit : word & ~bit;
    };
    const auto nodes = vocabulary.nodes();
    const auto tokens = vocabulary.tokens();
    const auto allow_from = [&](std::size_t first, std::size_t last, bool allowed) {
      for (std::int32_t t = nodes[first].first_token; t < nodes[last].first_token; ++t)
        allow(tokens[static_cast<std::size_t>(t)], allowed);
    };
    std::vector<both_states>& path = shared_->path;
    path[0] = {state, other, dfa.same_until(state, other)};
    for (std::size_t i = 0; i + 1 < nodes.size();) {
      const vocabulary_trie::node& n = nodes[i];
      const auto after = static_cast<std::size_t>(n.skip);
      const both_states& before = path[n.depth];
      if (before.same_until == detail::repetitions::always ||
          (n.reach != vocabulary_trie::node::farthest && n.reach < before.same_until)) {
        i = after;
        continue;
      }
      both_states& now = path[n.depth + 1U];
      now.state = dfa.next(before.state, n.byte);
      now.other = dfa.next(before.other, n.byte);
      if (now.state == detail::byte_dfa::dead) {
        if (now.other != detail::byte_dfa::dead) allow_from(i, after, false);
        i = after;
        continue;
      }
      allow_from(i, i + 1, true);
      if (after > i + 1) now.same_until = dfa.same_until(now.state, now.other);
      ++i;
    }
    for (const token_id t : vocabulary.ends())
      allow(t, accepts(state));
    return mask;
  }

  std::shared_ptr<shared> shared_;
};

static_assert(Constraint<token_automaton> && PrescribingConstraint<token_automaton>);

}  // namespace espalier
