// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/schema/schema_parser.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"

namespace espalier {

//! Constraint to values in JSON that a schema describes: every finished text is one.
//!
//! Objects are written in the order of `properties`, on one line, with or without a space after each comma and colon;
//! numbers have at most 15 digits before and after the point; strings have no \u escapes. So not every text of the
//! schema can be written, but no other text can.
//!
//! These keywords are known: type (one or a list), enum, const, properties, required, additionalProperties, items,
//! minItems, maxItems, pattern (as regular_expression; any text may stand before it unless it begins with ^, and after
//! it unless it ends with $; not together with a length), minLength, maxLength, minimum, maximum, exclusiveMinimum and
//! exclusiveMaximum of integers, anyOf, $ref into the schema itself, $defs, definitions. Keywords that describe or
//! annotate (title, format, ...) are passed over. Properties that are not named are not written; an object that names
//! none has keys of one character or more, which may occur twice, and values as additionalProperties says. If a schema
//! refers to itself, or allows any value, nesting is bounded: max_nesting references to one schema within each other,
//! and any values two levels deep.
//!
//! Complexity  O(schema, repetitions and references written out)
//! Errors      input_error for a text that is no JSON (line and column) or more than 200 levels deep, integers beyond
//!             64 bits, a keyword that is not known or not supported with the others (the keyword and its path), a
//!             schema that no value satisfies, and one that is too large
//! Source      JSON Schema, draft 2020-12
inline token_automaton json_schema(std::string_view schema, vocabulary_trie vocabulary) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::schema_parser(nfa, schema).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
