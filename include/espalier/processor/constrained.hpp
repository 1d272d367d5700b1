// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/constraint.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Forbids the tokens that a constraint does not allow. The constraint sees only the tokens written after the prompt. A
//! processor made without a constraint is idle.
//!
//! Complexity  process: the constraint's allowed(), and its advance() once a round for each node of a tree; one pass
//!             over the row, in which 32 tokens that are all allowed are skipped at once. only: the same, but a pass
//!             over the words of the mask up to the second token that is allowed. Memory is taken for the nodes of the
//!             largest tree
//! Law         as Processor: the row is the model's, renormalised over the tokens that are allowed
//! Errors      the constraint's errors alone: if nothing is allowed, the text ends with status::nothing_allowed
template <Constraint ConstraintT>
class constrained {
 public:
  constrained() = default;
  explicit constrained(ConstraintT constraint) : constraint_(std::move(constraint)) { begin({}); }

  bool idle() const { return !constraint_; }

  void begin(std::span<const token_id>) {
    known_.clear();
    if (constraint_) known_.push_back({-1, constraint_->start()});
  }

  void commit(std::span<const token_id> tokens) {
    if (idle()) return;
    const typename ConstraintT::state_type state = known_[find(tokens)].state;
    known_.clear();
    known_.push_back({-1, state});
  }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    if (idle()) return;
    constexpr NumberT forbidden = -std::numeric_limits<NumberT>::infinity();
    constexpr std::size_t width = 32;
    const std::span<const std::uint32_t> mask = constraint_->allowed(known_[find(path)].state);
    for (std::size_t first = 0; first < logits.size(); first += width) {
      const std::uint32_t word = first / width < mask.size() ? mask[first / width] : 0;
      if (word == ~std::uint32_t{0}) continue;
      const std::size_t n = (std::min)(width, logits.size() - first);
      NumberT* const z = logits.data() + first;
      for (std::size_t i = 0; i < n; ++i)
        z[i] = (word >> i & 1U) != 0 ? z[i] : forbidden;
    }
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  void changes(std::span<const token_id> path, ChangesT& list) {
    if (!idle()) list.allow_only(constraint_->allowed(known_[find(path)].state));
  }

  bool allows(std::span<const token_id> path, token_id token) {
    if (idle()) return true;
    const auto t = static_cast<std::size_t>(token);
    const std::span<const std::uint32_t> mask = constraint_->allowed(known_[find(path)].state);
    return t / 32 < mask.size() && (mask[t / 32] >> t % 32 & 1U) != 0;
  }

  std::optional<token_id> only(std::span<const token_id> path) {
    if (idle()) return std::nullopt;
    const std::span<const std::uint32_t> mask = constraint_->allowed(known_[find(path)].state);
    std::optional<token_id> token;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) continue;
      if (token || !std::has_single_bit(mask[i])) return std::nullopt;
      token = static_cast<token_id>(32 * i) + std::countr_zero(mask[i]);
    }
    return token;
  }

  std::optional<token_id> prescribed(std::span<const token_id> path) {
    if constexpr (PrescribingConstraint<ConstraintT>) {
      if (!idle()) return constraint_->prescribed(known_[find(path)].state);
    }
    return std::nullopt;
  }

 private:
  // The state after a path of this round, and the path's last token. The states one token further form a linked list.
  struct known_state {
    token_id token;
    typename ConstraintT::state_type state;
    std::int32_t first_child = -1, next = -1;
  };

  std::size_t find(std::span<const token_id> path) {
    std::size_t at = 0;
    for (const token_id token : path) {
      std::int32_t child = known_[at].first_child;
      while (child >= 0 && known_[static_cast<std::size_t>(child)].token != token)
        child = known_[static_cast<std::size_t>(child)].next;
      if (child < 0) {
        child = static_cast<std::int32_t>(known_.size());
        known_.push_back({token, constraint_->advance(known_[at].state, token), -1, known_[at].first_child});
        known_[at].first_child = child;
      }
      at = static_cast<std::size_t>(child);
    }
    return at;
  }

  std::optional<ConstraintT> constraint_;
  std::vector<known_state> known_;  // the state of the text first, then the states of this round's paths
};

}  // namespace espalier
