// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/processed.cpp
#pragma once

#include <concepts>
#include <optional>
#include <span>

#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

template <class ProcessorT>
concept FollowsTokens = requires(ProcessorT& processor, std::span<const token_id> tokens) {
  processor.begin(tokens);
  processor.commit(tokens);
};

template <class ProcessorT, class NumberT>
concept ProcessesRows = requires(ProcessorT& processor, std::span<const token_id> path, std::span<NumberT> logits) {
  processor.process(path, logits);
};

template <class ProcessorT>
concept HasIdle = requires(const ProcessorT& processor) {
  { processor.idle() } -> std::same_as<bool>;
};

template <class ProcessorT>
concept HasAllows = requires(ProcessorT& processor, std::span<const token_id> path, token_id token) {
  { processor.allows(path, token) } -> std::same_as<bool>;
};

template <class ProcessorT>
concept HasOnly = requires(ProcessorT& processor, std::span<const token_id> path) {
  { processor.only(path) } -> std::same_as<std::optional<token_id>>;
};

template <class ProcessorT>
concept HasPrescribed = requires(ProcessorT& processor, std::span<const token_id> path) {
  { processor.prescribed(path) } -> std::same_as<std::optional<token_id>>;
};

// See cuda::ListingProcessor.
template <class ProcessorT, class ChangesT>
concept ListsChanges = requires(ProcessorT& processor, std::span<const token_id> path, ChangesT& list) {
  processor.changes(path, list);
};

}  // namespace detail

//! Changes the logits of target and draft before the sampler makes distributions of them. The text is then the one that
//! the target writes with the changed logits.
//!
//! Minimal definition
//!   begin(tokens)            forgets everything, and reads the prompt of a text
//!   commit(tokens)           reads the tokens that the text went on with
//!   process(path, logits)    changes the logits [vocab], float or double, of the token after the text and `path`. The
//!                            path has the drafted tokens below the root; it is empty at the root
//! Optional
//!   idle() -> bool           true if process() changes no row of this text, after any path: then no row is copied
//!   allows(path, token) -> bool   false where process(path, ...) makes the token's logit minus infinity: then drafters
//!                            without rows do not draft the token
//!   only(path) -> std::optional<token_id>   the only token that process(path, ...) does not forbid, whatever the row:
//!                            a drafter knows the processed row without its model; nothing where several may be left
//!   prescribed(path) -> std::optional<token_id>   a token that the text likely goes on with after the path: drafters
//!                            without rows draft it, at no cost but its row in the target's pass; nothing where the
//!                            processor prescribes none
//!   changes                  see cuda::ListingProcessor
//! Laws
//!   process(path, logits) makes the row that commit(path) and then process({}, logits) would make.
//!   commit(a) and then commit(b) equals commit of both; so the state depends on the prompt and the written text alone.
//!   All state belongs to one text: a copy goes on as the original would.
//!   Constructors check the options. A member that throws all the same, such as a constraint that has outgrown its
//!   limits, fails the round, which can be tried again: a processor whose commit() has thrown is given the whole text
//!   anew, by begin() and commit(), before any other call.
//! Models
//!   no_processor; logit_bias, penalties, minimum_length, banned_sequences, forced_tokens; constrained; processors,
//!   which applies several
template <class ProcessorT>
concept Processor = std::copyable<ProcessorT> && detail::FollowsTokens<ProcessorT> &&
    detail::ProcessesRows<ProcessorT, float> && detail::ProcessesRows<ProcessorT, double>;

//! The processor that changes nothing. A decoder with it spends neither time nor memory on processors.
struct no_processor {
  void begin(std::span<const token_id>) {}
  void commit(std::span<const token_id>) {}
  template <class NumberT>
  void process(std::span<const token_id>, std::span<NumberT>) {}
  bool idle() const { return true; }
};

namespace detail {

template <class ProcessorT>
inline constexpr bool processes = !std::same_as<ProcessorT, no_processor>;

template <class ProcessorT>
bool is_idle(const ProcessorT& processor) {
  if constexpr (HasIdle<ProcessorT>) return processor.idle();
  return false;
}

template <class ProcessorT>
bool is_allowed(ProcessorT& processor, std::span<const token_id> path, token_id token) {
  if constexpr (HasAllows<ProcessorT>) return processor.allows(path, token);
  return true;
}

template <class ProcessorT>
std::optional<token_id> only_token(ProcessorT& processor, std::span<const token_id> path) {
  if constexpr (HasOnly<ProcessorT>) return processor.only(path);
  return std::nullopt;
}

// A token that the text likely goes on with: the token that prescribed() gives, or else the token that only() gives;
// nothing if neither gives one.
template <class ProcessorT>
std::optional<token_id> prescribed_token(ProcessorT& processor, std::span<const token_id> path) {
  if constexpr (HasPrescribed<ProcessorT>) {
    const std::optional<token_id> token = processor.prescribed(path);
    if (token) return token;
  }
  return only_token(processor, path);
}

}  // namespace detail

static_assert(Processor<no_processor>);

}  // namespace espalier
