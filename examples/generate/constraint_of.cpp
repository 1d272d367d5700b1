// SPDX-License-Identifier: BSL-1.0
#include "constraint_of.hpp"

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "../models/vocabulary_of.hpp"
#include "espalier/constraint/json_schema.hpp"
#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"

namespace generate {

namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!(text << file.rdbuf())) throw usage_error(fmt::format("--json-schema {} cannot be read.", path));
  return text.str();
}

}  // namespace

text_constraint constraint_of(const text_task& work) {
  // The arguments and the tokenizer are the same for all texts, and what one text has found serves the next.
  static std::optional<espalier::token_automaton> automaton;
  const arguments& asked = work.arguments;
  if (!asked.constrains()) return {};
  if (!automaton) {
    const espalier::vocabulary_trie vocabulary = models::vocabulary_of(work.text);
    automaton = asked.regex.empty() ? espalier::json_schema(text_of_file(asked.json_schema), vocabulary)
                                    : espalier::regular_expression(asked.regex, vocabulary);
  }
  return text_constraint(*automaton);
}

}  // namespace generate
