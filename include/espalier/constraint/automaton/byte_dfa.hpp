// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/constraint/automaton/automaton_limits.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/core/error.hpp"

namespace espalier::detail {

// The deterministic automaton of a byte_nfa. Each of its states stands for a set of states of the byte_nfa with their
// stacks. A state is made when it is first reached. A set has only states that live: see byte_nfa::live().
//
// Complexity  construction: O(states of the byte_nfa). next: one look-up if the next state is known, else O(states of
//             the set)
// Errors      construction, next, canonical: input_error if all states together would take more than max_bytes, or if a
//             set would have more than max_configs states. next: steps_error if it would take more steps than
//             allow_steps() said. The known states stay
class byte_dfa {
 public:
  static constexpr std::int32_t dead = -1;
  static constexpr std::size_t max_configs = 1 << 14;
  static constexpr std::int32_t always = (std::numeric_limits<std::int32_t>::max)();

  // A state of the byte_nfa, and the id of its stack.
  struct config {
    std::int32_t s, stack;
    bool operator==(const config&) const = default;
  };

  // Makes the automaton of the texts that lead from the part's begin to its end. canonical() may merge states after
  // which the same continuations of up to `longest` bytes are allowed.
  byte_dfa(byte_nfa nfa, nfa_part all, std::size_t max_bytes = automaton_limits().bytes, std::int32_t longest = 0)
      : nfa_(std::move(nfa)), end_(all.end), max_bytes_(max_bytes), longest_(longest), live_(nfa_.live(all.end)) {
    std::array<bool, 257> cut{};
    for (std::int32_t s = 0; s < nfa_.size(); ++s)
      cut[nfa_[s].low] = cut[nfa_[s].high + std::size_t{1}] = true;
    for (std::size_t byte = 0; byte < 256; ++byte)
      class_of_[byte] = static_cast<std::uint8_t>(n_classes_ += byte > 0 && cut[byte] ? 1 : 0);
    ++n_classes_;
    mark_.resize(static_cast<std::size_t>(nfa_.size()), {0, 0});
    frames_.push_back({-1, 0, -1, 0});
    begin_set();
    close(all.begin, 0);
    start_ = number_of_set();
  }

  std::int32_t start() const { return start_; }
  bool accepts(std::int32_t state) const { return state != dead && at(state).accepts; }
  std::int32_t size() const { return static_cast<std::int32_t>(states_.size()); }
  // Returns the bytes of memory that the automaton takes, about.
  std::size_t bytes() const {
    return bytes_ + static_cast<std::size_t>(nfa_.size()) * (sizeof(nfa_[0]) + sizeof(mark));
  }
  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }
  // Sets the number of steps that the calls of next() from now on may take together.
  void allow_steps(std::int64_t n) { steps_left_ = n_allowed_ = n; }
  // Returns the steps that the calls of next() have taken since allow_steps().
  std::int64_t steps() const { return n_allowed_ - steps_left_; }

  // Returns the byte_nfa's states (with their stacks) in this state's set. All of them are of kind byte.
  std::span<const config> configs(std::int32_t state) const {
    return std::span(configs_).subspan(at(state).first, at(state).n);
  }
  const byte_nfa& nfa() const { return nfa_; }

  // The byte that must follow; -1 if there is a choice, if the text may end here, and in the state `dead`.
  //
  // Complexity  O(states of the set)
  std::int32_t only_byte(std::int32_t state) const {
    if (state == dead || accepts(state)) return -1;
    std::int32_t only = -1;
    for (const config& c : configs(state)) {
      const byte_nfa::state& s = nfa_[c.s];
      if (s.low != s.high || (only >= 0 && s.low != only)) return -1;
      only = s.low;
    }
    return only;
  }

  std::int32_t next(std::int32_t state, std::uint8_t byte) {
    if (state == dead) return dead;
    spend(1);
    const std::int32_t known = next_[static_cast<std::size_t>(state) * n_classes_ + class_of_[byte]];
    return known != unknown ? known : make(state, byte);
  }

  // Returns how many characters of free text (inside a JSON string) may follow; `always` if there is no bound. If this
  // number is at most `longest` and a byte may follow that is neither free text nor the closing quote, returns 0.
  std::int32_t room(std::int32_t state) const { return state == dead ? 0 : at(state).room; }

  // Returns the state that stands for this state and all others that differ from it only in repetition counts whose
  // limits cannot be reached within `longest` bytes. The same texts of up to `longest` bytes may follow all of them.
  //
  // Complexity  O(states of the set) the first time
  std::int32_t canonical(std::int32_t state) {
    if (state == dead) return dead;
    if (at(state).canonical == unknown) {
      begin_set();
      const std::vector<config> own(configs(state).begin(), configs(state).end());
      set_accepts_ = at(state).accepts;
      for (const config& c : own)
        set_.push_back({c.s, canonical_stack(c.stack)});
      const std::int32_t all = number_of_set();
      states_[static_cast<std::size_t>(state)].canonical = all;
      states_[static_cast<std::size_t>(all)].canonical = all;
    }
    return at(state).canonical;
  }

 private:
  using kind = byte_nfa::kind;
  using role = byte_nfa::role;
  static constexpr std::int32_t unknown = -2;

  struct dfa_state {
    std::size_t first;  // index in configs_ of the first state of its set
    std::uint32_t n;
    bool accepts;
    std::int32_t room, canonical;
  };

  // The top frame of a stack. For a repetition, `state` is its `push` state and `number` its count so far. For a call,
  // `state` is the state that follows the call, and `number` is 0. `below` is the id of the stack under the frame,
  // `canonical` the id of the canonical_stack(), or unknown.
  struct frame {
    std::int32_t state, number, below, canonical;
  };

  struct mark {
    std::int32_t turn, stack;
  };

  const dfa_state& at(std::int32_t state) const { return states_[static_cast<std::size_t>(state)]; }
  const frame& frame_of(std::int32_t stack) const { return frames_[static_cast<std::size_t>(stack)]; }

  void spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ >= 0) return;
    raise<steps_error>("what may be written next takes more than ", n_allowed_,
                       " steps to find out. Lower the pattern's numbers of repetitions, or write fewer parts that may "
                       "be left out.");
  }

  std::int32_t make(std::int32_t state, std::uint8_t byte) {
    begin_set();
    spend(configs(state).size());
    const auto takes = [&](const config& c) { return nfa_[c.s].low <= byte && byte <= nfa_[c.s].high; };
    const std::span<const config> own = configs(state);
    for (const config& c : own) {
      if (!takes(c)) continue;
      const byte_nfa::state& one = nfa_[c.s];
      const bool yields =
          one.is == role::closing && std::any_of(own.begin(), own.end(), [&](const config& d) {
            const byte_nfa::state& other = nfa_[d.s];
            return other.is == role::closing && other.least == one.least && other.most < one.most && d.stack == c.stack;
          });
      if (!yields) close(nfa_[c.s].to, c.stack);
    }
    const std::int32_t to = number_of_set();
    next_[static_cast<std::size_t>(state) * n_classes_ + class_of_[byte]] = to;
    return to;
  }

  void begin_set() {
    set_.clear();
    others_.clear();
    set_accepts_ = false;
    ++turn_;
  }

  bool was_seen(std::int32_t s, std::int32_t stack) const {
    const mark& m = mark_[static_cast<std::size_t>(s)];
    return m.turn == turn_ &&
           (m.stack == stack || std::find(others_.begin(), others_.end(), config{s, stack}) != others_.end());
  }

  // True if, since the last byte, the rule at `begin` was entered with this stack or one of the 63 below it. Entering
  // it again would add no text and could repeat without end.
  bool is_within(std::int32_t begin, std::int32_t stack) const {
    for (int i = 0; i < 64 && stack > 0; ++i, stack = frame_of(stack).below) {
      if (was_seen(begin, stack)) return true;
    }
    return false;
  }

  // Adds to the set every state of kind byte that can be reached from `from` without reading a byte, and notes whether
  // the end can be reached so.
  void close(std::int32_t from, std::int32_t from_stack) {
    open_.assign(1, {from, from_stack});
    while (!open_.empty()) {
      const auto [s, stack] = open_.back();
      open_.pop_back();
      spend(1 + others_.size() / 8);
      if (s < 0 || live_[static_cast<std::size_t>(s)] == 0 || was_seen(s, stack)) continue;
      mark& m = mark_[static_cast<std::size_t>(s)];
      if (m.turn == turn_)
        others_.push_back({s, stack});
      else
        m = {turn_, stack};
      set_accepts_ = set_accepts_ || (s == end_ && stack == 0);
      const byte_nfa::state& one = nfa_[s];
      const frame top = frame_of(stack);
      switch (one.what) {
        case kind::join:
          open_.push_back({one.to, stack});
          open_.push_back({one.other, stack});
          break;
        case kind::byte:
          set_.push_back({s, stack});
          if (set_.size() > max_configs)
            raise<input_error>("what may be written can be read in more than ", max_configs, " ways at once.");
          break;
        case kind::call:
          if (!is_within(one.to, stack)) open_.push_back({one.to, stack_of(one.other, 0, stack)});
          break;
        case kind::leave:
          open_.push_back({top.state, top.below});
          break;
        case kind::push:
          open_.push_back({one.to, stack_of(s, 0, stack)});
          break;
        case kind::more:
          if (one.most < 0 || top.number < one.most) open_.push_back({one.to, stack});
          break;
        case kind::count: {
          // Once `least` repetitions are read, one more that read no byte adds nothing.
          if (top.number >= one.least && was_seen(one.to, stack)) break;
          const std::int32_t n = one.most < 0 ? (std::min)(top.number + 1, one.least) : top.number + 1;
          open_.push_back({one.to, stack_of(top.state, n, top.below)});
          break;
        }
        case kind::pop:
          if (top.number >= one.least) open_.push_back({one.to, top.below});
          break;
      }
    }
  }

  // Returns the id of the stack with one more frame.
  std::int32_t stack_of(std::int32_t state, std::int32_t number, std::int32_t below) {
    std::uint64_t hash = static_cast<std::uint32_t>(state);
    for (const std::int32_t n : {number, below})
      hash = (hash ^ static_cast<std::uint32_t>(n)) * 0x9E3779B97F4A7C15U;
    for (auto [i, end] = number_of_stack_.equal_range(hash); i != end; ++i) {
      const frame& f = frame_of(i->second);
      if (f.state == state && f.number == number && f.below == below) return i->second;
    }
    take_memory(sizeof(frame) + 48);
    const auto id = static_cast<std::int32_t>(frames_.size());
    number_of_stack_.emplace(hash, id);
    frames_.push_back({state, number, below, unknown});
    return id;
  }

  std::int32_t canonical_stack(std::int32_t stack) {
    std::vector<std::int32_t> above;
    for (; frame_of(stack).canonical == unknown; stack = frame_of(stack).below)
      above.push_back(stack);
    std::int32_t all = frame_of(stack).canonical;
    for (; !above.empty(); above.pop_back()) {
      const frame f = frame_of(above.back());
      std::int32_t n = f.number;
      const byte_nfa::state& s = nfa_[f.state];
      if (s.what == kind::push && (s.most < 0 || s.most - n > longest_)) {
        if (n >= s.least)
          n = s.least;
        else if (s.least - n > longest_)
          n = 0;
      }
      all = stack_of(f.state, n, all);
      frames_[static_cast<std::size_t>(above.back())].canonical = all;
    }
    return all;
  }

  void take_memory(std::size_t bytes) {
    if (bytes_ + bytes > max_bytes_) {
      raise<input_error>("the automaton of what may be written takes more than ", max_bytes_,
                         " bytes on the way of this text. Lower its numbers of repetitions.");
    }
    bytes_ += bytes;
  }

  std::int32_t number_of_set() {
    if (set_.empty() && !set_accepts_) return dead;
    const auto key = [&](const config& c) {
      const frame& f = frame_of(c.stack);
      return std::tuple(c.s, f.state, f.below, f.number);
    };
    std::sort(set_.begin(), set_.end(), [&](const config& a, const config& b) { return key(a) < key(b); });
    // If two configurations differ only in the top repetition count, and the lower count has reached `least`, keeps
    // only the one with the lower count: it allows all that the other does, and perhaps more.
    const auto last = std::unique(set_.begin(), set_.end(), [&](const config& a, const config& b) {
      if (a == b) return true;
      const frame &f = frame_of(a.stack), &g = frame_of(b.stack);
      return a.s == b.s && f.state == g.state && f.below == g.below && f.state >= 0 &&
             nfa_[f.state].what == kind::push && f.number >= nfa_[f.state].least;
    });
    set_.erase(last, set_.end());
    std::uint64_t hash = set_accepts_ ? 1 : 0;
    for (const config& c : set_)
      hash = ((hash * 31 + static_cast<std::uint32_t>(c.s)) * 0x9E3779B97F4A7C15U ^ (hash >> 29)) +
             static_cast<std::uint32_t>(c.stack);
    for (auto [i, end] = number_of_.equal_range(hash); i != end; ++i) {
      const std::span<const config> other = configs(i->second);
      if (at(i->second).accepts == set_accepts_ && std::equal(set_.begin(), set_.end(), other.begin(), other.end()))
        return i->second;
    }
    take_memory(sizeof(dfa_state) + 48 + sizeof(config) * set_.size() + sizeof(std::int32_t) * n_classes_);
    number_of_.emplace(hash, size());
    states_.push_back({configs_.size(), static_cast<std::uint32_t>(set_.size()), set_accepts_, room_of_set(), unknown});
    configs_.insert(configs_.end(), set_.begin(), set_.end());
    next_.resize(next_.size() + n_classes_, unknown);
    return size() - 1;
  }

  std::int32_t room_of_set() const {
    std::int32_t room = 0;
    bool is_other = false;  // whether a byte may follow that is neither free text nor the closing quote
    for (const config& c : set_) {
      const byte_nfa::state& s = nfa_[c.s];
      const frame& top = frame_of(c.stack);
      if (s.is == role::free_text) {
        room = always;
      } else if (s.is == role::counted_text) {
        const std::int32_t most = nfa_[top.state].most;
        room = (std::max)(room, most < 0 ? always : most - top.number);
      } else {
        is_other = is_other || s.low != '"' || s.high != '"';
      }
    }
    return is_other && room <= longest_ ? 0 : room;
  }

  byte_nfa nfa_;
  std::int32_t end_;
  std::int32_t start_ = dead;
  std::size_t max_bytes_;
  std::int64_t steps_left_ = (std::numeric_limits<std::int64_t>::max)(), n_allowed_ = steps_left_;
  std::int32_t longest_;
  std::vector<char> live_;
  std::size_t n_classes_ = 0;
  std::array<std::uint8_t, 256> class_of_;
  std::size_t bytes_ = 0;  // bytes of all states and stacks so far
  std::vector<dfa_state> states_;
  std::vector<config> configs_;
  std::vector<std::int32_t> next_;  // the next state, by state and class of the next byte
  std::unordered_multimap<std::uint64_t, std::int32_t> number_of_, number_of_stack_;
  std::vector<frame> frames_;
  // set_: the set that is being made. open_: the configurations that close() has yet to look at. others_: those that it
  // has looked at, except the first configuration of each state, whose stack is in mark_.
  std::vector<config> set_, open_, others_;
  std::vector<mark> mark_;
  std::int32_t turn_ = 0;
  bool set_accepts_ = false;
};

}  // namespace espalier::detail
