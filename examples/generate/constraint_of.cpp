// SPDX-License-Identifier: BSL-1.0
#include "constraint_of.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "../models/vocabulary_of.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/schema/json_schema.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"
#include "espalier/model/files/whole_file.hpp"

namespace generate {

namespace {

using models::text_rule;

std::string text_of_file(const char* flag, const std::string& path) {
  try {
    return espalier::detail::whole_file(path);
  } catch (const espalier::model_error& error) {
    throw usage_error(fmt::format("{} {}", flag, error.what()));
  }
}

text_rule rule_of(const arguments& asked, const espalier::vocabulary_trie& vocabulary) {
#if defined(EXAMPLES_HAS_XGRAMMAR)
  if (!asked.grammar.empty()) {
    const std::string text = text_of_file("--grammar", asked.grammar);
    try {
      return text_rule(espalier::ebnf_grammar(text, vocabulary));
    } catch (const espalier::input_error& error) {
      throw espalier::input_error(fmt::format("--grammar {}: {}", asked.grammar, error.what()));
    }
  }
#endif
  if (!asked.regex.empty()) return text_rule(espalier::regular_expression(asked.regex, vocabulary));
  const espalier::json_schema_options options{.ignore_other_formats = asked.ignore_formats,
                                              .allow_lines = asked.json_lines};
  return text_rule(espalier::json_schema(text_of_file("--json-schema", asked.json_schema), vocabulary, options));
}

}  // namespace

text_constraint constraint_of(const text_task& work) {
  // Kept, since arguments and tokenizer are the same for all texts, and states found for one text serve the next.
  static std::optional<text_rule> rule;
  const arguments& asked = work.arguments;
  if (!asked.constrains()) return {};
  if (!rule) rule = rule_of(asked, models::vocabulary_of(work.text));
  return text_constraint(*rule);
}

}  // namespace generate
