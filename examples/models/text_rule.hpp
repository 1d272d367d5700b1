// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/constraint/token_automaton.hpp"

#if defined(EXAMPLES_HAS_XGRAMMAR)
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "espalier/concepts/constraint.hpp"
#include "espalier/constraint/grammar/ebnf_grammar.hpp"
#include "espalier/core/token.hpp"
#endif

namespace models {

#if defined(EXAMPLES_HAS_XGRAMMAR)

//! The Constraint that a user asks for: the automaton of an expression or a schema, or a grammar.
class text_rule {
 public:
  using state_type = std::variant<espalier::token_automaton::state_type, espalier::ebnf_grammar::state_type>;

  explicit text_rule(espalier::token_automaton automaton) : rule_(std::move(automaton)) {}
  explicit text_rule(espalier::ebnf_grammar grammar) : rule_(std::move(grammar)) {}

  state_type start() {
    return std::visit([](auto& rule) -> state_type { return rule.start(); }, rule_);
  }
  state_type advance(const state_type& state, espalier::token_id token) {
    return std::visit([&](auto& rule) -> state_type { return rule.advance(of(rule, state), token); }, rule_);
  }
  std::span<const std::uint32_t> allowed(const state_type& state) {
    return std::visit([&](auto& rule) { return rule.allowed(of(rule, state)); }, rule_);
  }
  std::optional<espalier::token_id> prescribed(const state_type& state) {
    const auto of_rule = [&]<class RuleT>(RuleT& rule) -> std::optional<espalier::token_id> {
      if constexpr (espalier::PrescribingConstraint<RuleT>) return rule.prescribed(of(rule, state));
      return std::nullopt;
    };
    return std::visit(of_rule, rule_);
  }

  //! The limits, steps and bytes of an automaton; a grammar has no limits, and tells neither.
  void set_limits(const espalier::automaton_limits& limits) {
    if (auto* const automaton = std::get_if<espalier::token_automaton>(&rule_)) automaton->set_limits(limits);
  }
  std::int64_t steps() const {
    const auto* const automaton = std::get_if<espalier::token_automaton>(&rule_);
    return automaton == nullptr ? 0 : automaton->steps();
  }
  std::size_t bytes() const {
    const auto* const automaton = std::get_if<espalier::token_automaton>(&rule_);
    return automaton == nullptr ? 0 : automaton->bytes();
  }

 private:
  template <class RuleT>
  static const typename RuleT::state_type& of(const RuleT&, const state_type& state) {
    return std::get<typename RuleT::state_type>(state);
  }

  std::variant<espalier::token_automaton, espalier::ebnf_grammar> rule_;
};

static_assert(espalier::PrescribingConstraint<text_rule>);

#else

using text_rule = espalier::token_automaton;

#endif

}  // namespace models
