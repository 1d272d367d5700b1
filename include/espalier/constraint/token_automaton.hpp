// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The Constraint of an automaton over bytes: a token is allowed where its bytes lead on, one that ends the text where
//! the bytes so far are accepted. regular_expression() and json_schema() make it. Copies share what they have found:
//! one thread at a time uses them.
//!
//! Complexity  allowed: one look-up for a state that was asked about before, else a walk over the vocabulary's prefixes
//!             as far as the state allows them: a string of bounded length has a new state at each character, and a
//!             mask for each; a mask of vocab / 8 bytes is kept for each of up to max_masks states.
//!             advance: O(bytes of the token)
//! Errors      advance, allowed: input_error where the automaton takes more than 256 MiB on the way of a text
//! Law         Constraint's. Whatever is allowed leads on to a text that is accepted, where each byte is a token
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

  //! Whether what has led to this state is complete.
  bool accepts(state_type state) const { return shared_->dfa.accepts(state); }

  std::span<const std::uint32_t> allowed(state_type state) const {
    auto& masks = shared_->masks;
    const auto known = masks.find(state);
    if (known != masks.end()) return known->second;
    if (masks.size() >= max_masks) masks.clear();
    return masks[state] = mask_of(state);
  }

 private:
  struct shared {
    shared(detail::byte_dfa d, vocabulary_trie v)
        : dfa(std::move(d)),
          vocabulary(std::move(v)),
          path(static_cast<std::size_t>(vocabulary.max_depth()) + 1, detail::byte_dfa::dead) {}

    detail::byte_dfa dfa;
    vocabulary_trie vocabulary;
    std::unordered_map<state_type, std::vector<std::uint32_t>> masks;
    std::vector<state_type> path;  // states after the bytes of a prefix
  };

  std::vector<std::uint32_t> mask_of(state_type state) const {
    const vocabulary_trie& vocabulary = shared_->vocabulary;
    std::vector<std::uint32_t> mask((static_cast<std::size_t>(vocabulary.size()) + 31) / 32, 0);
    const auto allow = [&](token_id t) { mask[static_cast<std::size_t>(t) / 32] |= 1U << t % 32; };
    const auto nodes = vocabulary.nodes();
    const auto tokens = vocabulary.tokens();
    std::vector<state_type>& path = shared_->path;
    path[0] = state;
    for (std::size_t i = 0; i + 1 < nodes.size();) {
      const vocabulary_trie::node& n = nodes[i];
      const state_type next = shared_->dfa.next(path[n.depth], n.byte);
      path[n.depth + 1U] = next;
      if (next == detail::byte_dfa::dead) {
        i = static_cast<std::size_t>(n.skip);
        continue;
      }
      for (std::int32_t t = n.first_token; t < nodes[i + 1].first_token; ++t)
        allow(tokens[static_cast<std::size_t>(t)]);
      ++i;
    }
    if (accepts(state)) {
      for (const token_id t : vocabulary.ends())
        allow(t);
    }
    return mask;
  }

  std::shared_ptr<shared> shared_;
};

static_assert(Constraint<token_automaton>);

}  // namespace espalier
