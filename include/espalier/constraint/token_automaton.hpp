// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/repetitions.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The Constraint of an automaton over bytes. A token is allowed if the automaton can read its bytes; a token that ends
//! the text, if the bytes so far are accepted. regular_expression() and json_schema() make it. Copies share the states
//! and masks that they have found, so only one thread at a time may use them.
//!
//! Complexity  allowed: one look-up for a state that was asked about before, else a walk over the vocabulary's prefixes
//!             as far as the state allows them. A string of bounded length has a new state at each character: where
//!             states differ in such counts alone, the walk is over the prefixes of tokens that are too long for one
//!             of the two. A mask of vocab / 8 bytes is kept for each of up to max_masks states.
//!             advance: O(bytes of the token). prescribed: that of vocabulary_trie::longest
//! Errors      advance, allowed: input_error if the automaton takes more than 256 MiB on the way of a text
//! Law         Constraint's. Every allowed token can be continued to an accepted text, if each byte is a token
class token_automaton {
 public:
  using state_type = std::int32_t;
  static constexpr std::size_t max_masks = 4096;

  token_automaton(detail::byte_nfa nfa, detail::nfa_part all, vocabulary_trie vocabulary)
      : shared_(std::make_shared<shared>(detail::byte_dfa(std::move(nfa), all), std::move(vocabulary))) {}

  state_type start() const { return shared_->dfa.start(); }

  state_type advance(state_type state, token_id token) const {
    const vocabulary_trie& vocabulary = shared_->vocabulary;
    if (token < 0 || token >= vocabulary.size() || vocabulary.piece(token).empty()) return detail::byte_dfa::dead;
    for (const char c : vocabulary.piece(token))
      state = shared_->dfa.next(state, static_cast<std::uint8_t>(c));
    return state;
  }

  //! True if the text that led to this state is complete.
  bool accepts(state_type state) const { return shared_->dfa.accepts(state); }

  //! The longest token within the bytes that must follow, up to the next point at which there is a choice.
  std::optional<token_id> prescribed(state_type state) const {
    detail::byte_dfa& dfa = shared_->dfa;
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
    if (masks.size() >= max_masks) {
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
  // Two states: texts of fewer than same_until bytes lead on from both or from neither.
  struct both_states {
    state_type state, other;
    std::int32_t same_until;
  };

  struct shared {
    shared(detail::byte_dfa d, vocabulary_trie v)
        : dfa(std::move(d)), vocabulary(std::move(v)), path(static_cast<std::size_t>(vocabulary.max_depth()) + 1) {}

    detail::byte_dfa dfa;
    vocabulary_trie vocabulary;
    std::unordered_map<state_type, std::vector<std::uint32_t>> masks;
    std::map<std::vector<std::int32_t>, state_type> last_of;  // by kind of state: the state whose mask was made last
    std::vector<both_states> path;                            // by length of a prefix: the states after its bytes
  };

  std::vector<std::uint32_t> mask_of(state_type state) const {
    const auto n = static_cast<std::size_t>(shared_->vocabulary.size());
    return mask_like(state, detail::byte_dfa::dead, std::vector<std::uint32_t>((n + 31) / 32, 0));
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
