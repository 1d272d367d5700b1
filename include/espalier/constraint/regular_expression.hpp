// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string_view>
#include <utility>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/constraint/automaton/regex_parser.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"

namespace espalier {

//! Makes the constraint that allows the texts that a regular expression describes as a whole, from beginning to end.
//!
//!     constrained date(regular_expression("\\d{4}-\\d\\d-\\d\\d", vocabulary));
//!
//! A pattern may have characters (UTF-8), `.` (all but the line ends \n \r U+2028 U+2029), classes [a-z] and [^...], \d
//! \w (of ASCII) and \s (white space of Unicode), \D \W \S, \n \t \r \f \v \0 \xHH \uHHHH, a backslash before
//! punctuation, groups (...), (?:...) and (?<name>...), |, and the quantifiers * + ? {m} {m,} {m,n}, also lazy ones,
//! which describe the same texts. `^` may stand at the beginning of an alternative and `$` at its end, outside groups;
//! they change nothing. Look-ahead, look-behind, flags, references to groups, \b and \p are refused.
//!
//! Complexity  O(length of the pattern), whatever its numbers of repetitions; states of the deterministic automaton are
//!             made when a text first reaches them
//! Errors      input_error that names the position in the pattern and what was expected there, or says that the pattern
//!             is too large
//! Source      Thompson's construction, with counts on a stack; sets of its states are made when they are needed
inline token_automaton regular_expression(std::string_view pattern, vocabulary_trie vocabulary) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::regex_parser(nfa, pattern, detail::character_form::utf8).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
