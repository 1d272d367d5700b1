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

//! Values in JSON that a schema describes: every text that ends is one.
//!
//! Written are objects in the order of `properties`, on one line, with or without a space after each comma and colon;
//! numbers of at most 15 digits before and after the point; strings without \u escapes. So not every text of the schema
//! can be written, but no other.
//!
//! Known are type (one or a list), enum, const, properties, required, additionalProperties, items, minItems, maxItems,
//! pattern (as regular_expression, but what stands before it is free unless it begins with ^, and what stands after it
//! unless it ends with $; not together with a length), minLength, maxLength, minimum, maximum, exclusiveMinimum and
//! exclusiveMaximum of integers, anyOf, $ref into the schema itself, $defs, definitions. What describes or annotates
//! (title, format, ...) is passed over. Properties that are not named are not written; an object that names none has
//! keys of one character or more, which may come twice, and values as additionalProperties says. Where a
//! schema refers to itself, or allows any value, nesting is bounded: max_nesting references to one place within each
//! other, and any values two levels deep.
//!
//! Complexity  O(schema, repetitions and references written out)
//! Errors      input_error for what is no JSON (line and column) or more than 200 levels deep, integers beyond 64 bits,
//!             a keyword that is not known or not supported with the others (the keyword and its path), a schema that
//!             nothing satisfies, and one that is too large
//! Source      JSON Schema, draft 2020-12
inline token_automaton json_schema(std::string_view schema, vocabulary_trie vocabulary) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::schema_parser(nfa, schema).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
