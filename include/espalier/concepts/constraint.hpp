// SPDX-License-Identifier: BSL-1.0
// Tested by tests/processor/processors.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

#include "espalier/core/token.hpp"

namespace espalier {

//! An automaton over tokens that says which texts may be written: a grammar, a schema, a regular expression.
//! `constrained` makes a Processor of one.
//!
//! Minimal definition
//!   typename state_type               the state after some tokens: small, since it is copied for each node of a tree
//!   start() -> state_type             the state before the first token
//!   advance(state, token) -> state_type    the state after one more token; after a token that is not allowed, a state
//!                                     that allows nothing
//!   allowed(state) -> span<const std::uint32_t>    the tokens that may follow, as bits: token t is bit t % 32 of word
//!                                     t / 32; tokens beyond the last word are not allowed. Valid until the next call
//! Laws
//!   A token that ends the text is allowed exactly where the written text is complete.
//!   A state does not depend on which other states were asked for: the states along the paths of a tree are asked for
//!   in any order.
//!   A copy of the constraint has the same states.
//! Optional
//!   prescribed               see PrescribingConstraint
//! Models
//!   token_automaton, which regular_expression() and json_schema() make; ebnf_grammar
template <class ConstraintT>
concept Constraint = std::copyable<ConstraintT> && std::copyable<typename ConstraintT::state_type> &&
    requires(ConstraintT& constraint, const typename ConstraintT::state_type& state, token_id token) {
  { constraint.start() } -> std::same_as<typename ConstraintT::state_type>;
  { constraint.advance(state, token) } -> std::same_as<typename ConstraintT::state_type>;
  { constraint.allowed(state) } -> std::convertible_to<std::span<const std::uint32_t>>;
};

//! A constraint that often knows letter by letter what is written next, as a schema knows the name of a property. The
//! letters may be cut into tokens in many ways, so many tokens are allowed; one of them is a good guess.
//!
//! Minimal definition, besides Constraint
//!   prescribed(state) -> std::optional<token_id>    a token that is allowed after the state and that the text likely
//!                                     goes on with; nothing where the next letters are open
template <class ConstraintT>
concept PrescribingConstraint = Constraint<ConstraintT> &&
    requires(ConstraintT& constraint, const typename ConstraintT::state_type& state) {
  { constraint.prescribed(state) } -> std::same_as<std::optional<token_id>>;
};

}  // namespace espalier
