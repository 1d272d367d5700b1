// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/automaton/automaton_limits.hpp"
#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The Constraint of an automaton over bytes. A token is allowed if the automaton can read its bytes. A token that ends
//! the text is allowed if the bytes so far are accepted. regular_expression() and json_schema() make such constraints.
//! Copies share the states and masks that they have found, so only one thread at a time may use them.
//!
//! Complexity  allowed: one look-up if the mask of the state is kept. Two states share a mask if they differ only in
//!             how often something was repeated, and no single token can reach the limit of the repetition. Else a
//!             walk over the vocabulary's prefixes as far as the state allows them; where free text of JSON may
//!             follow, only over the prefixes of tokens that are not text. A mask takes vocab / 8 bytes. Once
//!             max_masks masks are kept, or max_mask_bytes bytes of them, all are dropped before the next is made.
//!             advance: O(bytes of the token). prescribed: as vocabulary_trie::longest
//! Errors      advance, allowed, prescribed: input_error if the states that were reached so far, by all copies
//!             together, take more bytes than the limits say; steps_error if the call would take more steps
//! Law         that of Constraint. Every allowed token can be continued to an accepted text, if each byte is a token
class token_automaton {
 public:
  using state_type = std::int32_t;
  static constexpr std::size_t max_masks = 1024, max_mask_bytes = std::size_t{16} << 20;

  token_automaton(detail::byte_nfa nfa, detail::nfa_part all, vocabulary_trie vocabulary)
      : shared_(std::make_shared<shared>(
            detail::byte_dfa(std::move(nfa), all, automaton_limits().bytes, vocabulary.max_depth()), vocabulary)) {}

  //! Sets the limits of all copies. If the automaton already takes more than limits.bytes, it goes on only with states
  //! that were reached before.
  void set_limits(const automaton_limits& limits) {
    shared_->steps = limits.steps;
    shared_->dfa.set_max_bytes(limits.bytes);
  }
  //! Number of steps that the last call of advance(), allowed() or prescribed() on any of the copies took.
  std::int64_t steps() const { return shared_->dfa.steps(); }
  //! Bytes that all copies take together, about, without the vocabulary.
  std::size_t bytes() const {
    return shared_->dfa.bytes() + shared_->masks.size() * (bytes_of_mask() + 4 * sizeof(void*));
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

  //! The longest token with which the prescribed bytes begin: the bytes that must follow, up to the next point at which
  //! there is a choice. No value if they begin with no token.
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
    shared_->dfa.allow_steps(shared_->steps);
    state = shared_->dfa.canonical(state);
    const auto known = masks.find(state);
    if (known != masks.end()) return known->second;
    if (masks.size() >= max_masks || masks.size() * bytes_of_mask() >= max_mask_bytes) masks.clear();
    std::vector<std::uint32_t> mask = mask_of(state);
    return masks[state] = std::move(mask);
  }

 private:
  // The state after a prefix, the state's room for free text, and the number of characters of the prefix.
  struct step {
    state_type state;
    std::int32_t room, characters;
  };

  struct shared {
    shared(detail::byte_dfa d, vocabulary_trie v)
        : dfa(std::move(d)), vocabulary(std::move(v)), path(static_cast<std::size_t>(vocabulary.max_depth()) + 1) {}

    detail::byte_dfa dfa;
    vocabulary_trie vocabulary;
    std::int64_t steps = automaton_limits().steps;                     // most steps of a call
    std::unordered_map<state_type, std::vector<std::uint32_t>> masks;  // by canonical state
    std::vector<step> path;                                            // in mask_of(): by length of the prefix
  };

  std::size_t bytes_of_mask() const { return shared_->vocabulary.text().size() * sizeof(std::uint32_t); }

  std::vector<std::uint32_t> mask_of(state_type state) const {
    const vocabulary_trie& vocabulary = shared_->vocabulary;
    detail::byte_dfa& dfa = shared_->dfa;
    std::vector<std::uint32_t> mask(vocabulary.text().size(), 0);
    const auto nodes = vocabulary.nodes();
    const auto tokens = vocabulary.tokens();
    const auto allow = [&](token_id t) { mask[static_cast<std::size_t>(t) / 32] |= 1U << t % 32; };
    // Allows, of the tokens from index `first` to last - 1, those that are text and that fit the room after a prefix.
    const auto allow_text = [&](std::int32_t first, std::int32_t last, const step& after) {
      for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
        const std::int32_t n = vocabulary.characters()[i];
        if (n > 0 && n - after.characters <= after.room) allow(tokens[i]);
      }
    };
    std::vector<step>& path = shared_->path;
    path[0] = {state, dfa.room(state), 0};
    if (path[0].room >= vocabulary.max_characters())
      mask.assign(vocabulary.text().begin(), vocabulary.text().end());
    else if (path[0].room > 0)
      allow_text(0, nodes.back().first_token, path[0]);
    for (std::size_t i = 0; i + 1 < nodes.size();) {
      const vocabulary_trie::node& n = nodes[i];
      const auto after = static_cast<std::size_t>(n.skip);
      const step& before = path[n.depth];
      if (before.room > 0 && !n.is_mixed) {
        i = after;
        continue;
      }
      step& now = path[n.depth + 1U];
      now.state = dfa.next(before.state, n.byte);
      if (now.state == detail::byte_dfa::dead) {
        i = after;
        continue;
      }
      for (std::int32_t t = n.first_token; t < nodes[i + 1].first_token; ++t)
        allow(tokens[static_cast<std::size_t>(t)]);
      now.room = dfa.room(now.state);
      now.characters = before.characters + ((n.byte & 0xC0) != 0x80 ? 1 : 0);
      if (before.room == 0 && now.room > 0) allow_text(nodes[i + 1].first_token, nodes[after].first_token, now);
      ++i;
    }
    if (dfa.accepts(state)) std::for_each(vocabulary.ends().begin(), vocabulary.ends().end(), allow);
    return mask;
  }

  std::shared_ptr<shared> shared_;
};

static_assert(Constraint<token_automaton> && PrescribingConstraint<token_automaton>);

}  // namespace espalier
