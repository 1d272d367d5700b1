// SPDX-License-Identifier: BSL-1.0
// Writes JSON by schema: checks that texts under random schemas are valid JSON of their schemas, and the same with
// speculation and without, and measures the cost of constraints.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/constraint/schema/json_schema.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model_paths.hpp"
#include "model_set.hpp"
#include "report_file.hpp"
#include "vocabulary_of.hpp"

namespace {

using espalier::token_id;
using json = nlohmann::ordered_json;

struct arguments {
  ::models::model_paths models{ESPALIER_BENCH_MODELS};
  int threads = 0;
  std::string markdown;
  int schemas = 200;
  int tokens = 120;
};

// Schemas like those of tools and forms: objects of a few properties, lists, choices, texts and numbers.
class schema_writer {
 public:
  explicit schema_writer(std::uint64_t seed) : random_(seed) {}

  json object(int depth) {
    json properties = json::object(), required = json::array();
    const int n = between(1, 4);
    for (int i = 0; i < n; ++i) {
      static const char* const names[] = {"name", "title", "count", "tags", "size", "address", "items", "done", "kind"};
      const std::string name = names[between(0, 8)];
      if (properties.contains(name)) continue;
      properties[name] = value(depth - 1);
      if (between(0, 2) > 0) required.push_back(name);
    }
    return {{"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}};
  }

 private:
  int between(int low, int high) { return static_cast<int>(random_() % static_cast<unsigned>(high - low + 1)) + low; }

  json value(int depth) {
    switch (between(0, depth > 0 ? 8 : 6)) {
      case 0:
        return {{"type", "string"}, {"maxLength", between(5, 20)}};
      case 1:
        return {{"type", "integer"}, {"minimum", between(-3, 0)}, {"maximum", between(10, 2000)}};
      case 2:
        return {{"type", "boolean"}};
      case 3:
        return {{"enum", {"small", "medium", "large", nullptr}}};
      case 4:
        return {{"type", "string"}, {"pattern", "^[A-Z][a-z]{2,10}( [A-Z][a-z]{2,10})?$"}};
      case 5:
        return {{"anyOf", {{{"type", "null"}}, {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}};
      case 6:
        return {{"type", "string"}, {"pattern", "^\\d{4}-\\d{2}-\\d{2}$"}};
      case 7:
        return {{"type", "array"}, {"items", value(depth - 1)}, {"maxItems", between(1, 3)}};
      default:
        return object(depth);
    }
  }

  std::mt19937_64 random_;
};

// Checks a text against the schema without the automaton.
bool satisfies(const json& value, const json& schema) {
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const json& one) { return satisfies(value, one); });
  }
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  const std::string type = schema["type"];
  if (type == "object") {
    if (!value.is_object()) return false;
    for (const json& name : schema["required"]) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    return std::all_of(value.items().begin(), value.items().end(), [&](const auto& entry) {
      return schema["properties"].contains(entry.key()) && satisfies(entry.value(), schema["properties"][entry.key()]);
    });
  }
  if (type == "array") {
    return value.is_array() && value.size() <= schema["maxItems"].get<std::size_t>() &&
           std::all_of(value.begin(), value.end(), [&](const json& one) { return satisfies(one, schema["items"]); });
  }
  if (type == "integer") return value.is_number_integer() && value >= schema["minimum"] && value <= schema["maximum"];
  if (type == "string") {
    if (!value.is_string()) return false;
    const auto text = value.get<std::string>();
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    return !schema.contains("maxLength") || characters <= schema["maxLength"].get<std::ptrdiff_t>();
  }
  return type == value.type_name();
}

// A constraint that measures the seconds spent in masks.
class timed_constraint {
 public:
  timed_constraint(espalier::token_automaton schema, double* seconds)
      : constrained_(std::move(schema)), seconds_(seconds) {}

  void begin(std::span<const token_id> tokens) { constrained_.begin(tokens); }
  void commit(std::span<const token_id> tokens) { constrained_.commit(tokens); }
  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    const auto begin = std::chrono::steady_clock::now();
    constrained_.process(path, logits);
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  bool allows(std::span<const token_id> path, token_id token) { return constrained_.allows(path, token); }

 protected:
  espalier::constrained<espalier::token_automaton> constrained_;

 private:
  double* seconds_;
};

// A timed constraint that also prescribes runs.
class prescribing_constraint : public timed_constraint {
 public:
  using timed_constraint::timed_constraint;

  std::optional<token_id> only(std::span<const token_id> path) { return constrained_.only(path); }
  std::optional<token_id> prescribed(std::span<const token_id> path) { return constrained_.prescribed(path); }
};

struct tally {
  std::int64_t texts = 0, ended = 0, sound = 0, equal = 0, tokens = 0, rounds = 0;
  double seconds = 0, in_masks = 0;

  std::string row(const char* name) const {
    const auto of = [](double a, double b) { return b > 0 ? a / b : 0.0; };
    return fmt::format("| {} | {} | {} | {} | {} | {} | {:.2f} | {:.1f} | {:.2f} % |\n", name, texts, ended, sound,
                       equal, tokens, of(static_cast<double>(tokens), static_cast<double>(rounds)),
                       of(static_cast<double>(tokens), seconds), 100 * of(in_masks, seconds));
  }
};

template <class ConstraintT = prescribing_constraint, class DrafterT, class PolicyT>
std::vector<token_id> write(models::model_set& models, DrafterT&& drafter, PolicyT policy, const arguments& a,
                            const espalier::token_automaton& schema, const std::vector<token_id>& prompt, tally& t) {
  double in_masks = 0;
  ConstraintT process(schema, &in_masks);
  espalier::recurrent_kv& kv = models.target_cache(espalier::commit_mode::compact);
  auto decode = espalier::make_decoder(drafter, policy, espalier::greedy(), kv, models.target, {}, process);
  decode.begin(prompt, {.max_tokens = a.tokens, .tokens = models.text.ends_of_text()});
  decode.step();  // the round that reads the prompt
  const std::size_t first = decode.current().written().size();
  in_masks = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (decode.step())
    ++t.rounds;
  t.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  t.in_masks += in_masks;
  t.tokens += static_cast<std::int64_t>(decode.current().written().size() - first);
  ++t.texts;
  t.ended += decode.current().state() == espalier::status::stop_token ? 1 : 0;
  const auto written = decode.current().written();
  return {written.begin(), written.end()};
}

int run(const arguments& a) {
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  const espalier::vocabulary_trie vocabulary = ::models::vocabulary_of(models.text);
  schema_writer schemas(1);
  tally plainly, found, prescribed, speculating;
  for (int i = 0; i < a.schemas; ++i) {
    bench::progress(fmt::format("{} of {} schemas", i, a.schemas));
    const json schema = schemas.object(2);
    const auto automaton = [&] { return espalier::json_schema(schema.dump(), vocabulary); };
    const auto prompt = models.text.encode_prompt("An example of " + schema["properties"].begin().key() +
                                                  " and more, written as JSON: ");
    // Each text has an automaton of its own, which has no mask yet.
    const auto expected = write(models, espalier::no_drafter(), espalier::plain(), a, automaton(), prompt, plainly);
    const espalier::chain runs({.length = 6});
    const auto copied = write<timed_constraint>(models, espalier::prompt_lookup(), runs, a, automaton(), prompt, found);
    const auto led = write(models, espalier::prompt_lookup(), runs, a, automaton(), prompt, prescribed);
    espalier::autoregressive drafter(models.draft_model(), models.draft_cache(espalier::commit_mode::compact));
    const auto text = write(models, drafter, espalier::dynatree(), a, automaton(), prompt, speculating);
    for (const auto& [tokens, t] : {std::pair{&expected, &plainly}, std::pair{&copied, &found},
                                    std::pair{&led, &prescribed}, std::pair{&text, &speculating}}) {
      const json value = json::parse(models.text.decode(*tokens), nullptr, false);
      t->sound += !value.is_discarded() && satisfies(value, schema) ? 1 : 0;
      t->equal += *tokens == expected ? 1 : 0;
    }
  }
  bench::progress("");
  bench::report(fmt::format("## Constraints\n\n{} JSON schemas, up to {} tokens each, greedy; times without the first "
                            "round.\n\n| | texts | complete | of the schema | equal to plain | tokens | a round | a "
                            "second | in masks |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
                            a.schemas, a.tokens) +
                    plainly.row("plain decoding") + found.row("look-up of 6, without what the schema prescribes") +
                    prescribed.row("look-up of 6") + speculating.row("dynatree"),
                a.markdown);
  for (const tally* t : {&plainly, &found, &prescribed, &speculating}) {
    if (t->sound != t->ended || t->equal != t->texts) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_constraints",
      "JSON by schema: with speculation and without, how much of it is of the schema, and how fast.\n"
      "Exits with 1 if a complete text is not of its schema, or differs from plain decoding's.");
  arguments a;
  program.add("--model", a.models.model, "folder with target/, draft/ and a tokenizer, or a model");
  program.add("--draft", a.models.draft, "the model that drafts; empty: the one beside the target");
  program.add("--threads", a.threads, "threads of a forward pass; 0: one a processor", 0, 256);
  program.add("--markdown", a.markdown, "also write the table to this file");
  program.add("--schemas", a.schemas, "random schemas", 1, 100000);
  program.add("--tokens", a.tokens, "of a text at most", 1, 100000);
  return program.run(argc, argv, [&] { return run(a); });
}
