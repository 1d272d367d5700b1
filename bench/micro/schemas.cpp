// SPDX-License-Identifier: BSL-1.0
//
//   bench_micro_schemas FILE [MODEL [WRITTEN]]   how many of the schemas in a file of bench/schemas/schemas.py are
//                                                taken, which of their texts are allowed, and the time of a mask, in
//                                                the tokens of a model or tokenizer; writes texts of each schema to
//                                                the file WRITTEN
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "espalier/constraint/schema/json_schema.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "vocabulary_of.hpp"

namespace {

using espalier::token_id;
using json = nlohmann::json;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct times {
  std::vector<double> all;

  void print(const char* what, double unit, const char* name) {
    if (all.empty()) return;
    std::sort(all.begin(), all.end());
    double sum = 0;
    for (const double one : all)
      sum += one;
    const auto at = [&](double part) {
      return unit * all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
    };
    std::printf("%s: %zu, %s mean %.3f, median %.3f, 99 %% %.3f, most %.3f\n", what, all.size(), name,
                unit * sum / static_cast<double>(all.size()), at(0.5), at(0.99), at(1));
  }
};

bool is_in(std::span<const std::uint32_t> mask, token_id t) {
  return (mask[static_cast<std::size_t>(t) / 32] >> t % 32 & 1U) != 0;
}

// Writes a text at random, with tokens that close something more often than others; none if it is not complete after
// so many tokens.
std::optional<std::string> write(const espalier::token_automaton& rule, const espalier::vocabulary_trie& vocabulary,
                                 std::minstd_rand& random, times& masks) {
  std::string text;
  auto state = rule.start();
  for (int i = 0; i < 400; ++i) {
    const double begin = seconds();
    const auto mask = rule.allowed(state);
    masks.all.push_back(seconds() - begin);
    if (rule.accepts(state)) return text;
    std::vector<token_id> able, closing;
    for (token_id t = 0; t < vocabulary.size(); ++t) {
      if (!is_in(mask, t)) continue;
      const std::string& piece = vocabulary.piece(t);
      able.push_back(t);
      if (piece.find_first_of("\"]}") != std::string::npos && piece.size() < 4) closing.push_back(t);
    }
    if (able.empty()) throw espalier::input_error("a text has no way to go on: " + text);
    const std::vector<token_id>& from = !closing.empty() && random() % 3 > 0 ? closing : able;
    const token_id t = from[random() % from.size()];
    text += vocabulary.piece(t);
    state = rule.advance(state, t);
  }
  return std::nullopt;
}

// Reads a text in its longest tokens; true if all of them are allowed, and the end after them.
bool reads(const espalier::token_automaton& rule, const espalier::vocabulary_trie& vocabulary, const std::string& text,
           times& masks) {
  auto state = rule.start();
  for (std::size_t at = 0; at < text.size();) {
    std::size_t n = at;
    const auto t = vocabulary.longest([&] { return n < text.size() ? static_cast<unsigned char>(text[n++]) : -1; });
    const double begin = seconds();
    const auto mask = rule.allowed(state);
    masks.all.push_back(seconds() - begin);
    if (!t || !is_in(mask, *t)) return false;
    state = rule.advance(state, *t);
    at += vocabulary.piece(*t).size();
  }
  return rule.accepts(state);
}

int run(int argc, char** argv) {
  if (argc < 2) throw espalier::input_error("expected a file that bench/schemas/schemas.py made.");
  std::ifstream file(argv[1]);
  const auto vocabulary = models::vocabulary_of(espalier::tokenizer::load(argc < 3 ? ESPALIER_BENCH_MODELS : argv[2]));
  std::ofstream written;
  if (argc > 3) written.open(argv[3]);
  times compiling, masks, of_random;
  std::map<std::string, int> refusals;
  int n_schemas = 0, n_valid = 0, n_accepted = 0, n_invalid = 0, n_wrong = 0, n_written = 0;
  std::minstd_rand random(1);
  for (std::string line; std::getline(file, line); ++n_schemas) {
    const json one = json::parse(line);
    std::optional<espalier::token_automaton> rule;
    try {
      const double begin = seconds();
      rule.emplace(espalier::json_schema(one["schema"].get<std::string>(), vocabulary));
      compiling.all.push_back(seconds() - begin);
    } catch (const espalier::input_error& refusal) {
      ++refusals[refusal.what()];
      continue;
    }
    for (const json& text : one["valid"])
      ++n_valid, n_accepted += reads(*rule, vocabulary, text, masks) ? 1 : 0;
    for (const json& text : one["invalid"])
      ++n_invalid, n_wrong += reads(*rule, vocabulary, text, masks) ? 1 : 0;
    json texts = json::array();
    for (int i = 0; i < 3 && written.is_open(); ++i) {
      if (const auto text = write(*rule, vocabulary, random, of_random)) texts.push_back(*text);
    }
    n_written += static_cast<int>(texts.size());
    if (written.is_open())
      written << json{{"schema", one["schema"]}, {"written", texts}}.dump(-1, ' ', true, json::error_handler_t::replace)
              << "\n";
  }
  std::printf("%d tokens; %zu of %d schemas taken; %d of %d valid texts allowed, %d of %d others; %d texts written\n",
              vocabulary.size(), compiling.all.size(), n_schemas, n_accepted, n_valid, n_wrong, n_invalid, n_written);
  compiling.print("compiled", 1e3, "ms");
  masks.print("masks along texts", 1e6, "us");
  of_random.print("masks along random texts", 1e6, "us");
  for (const auto& [refusal, n] : refusals)
    std::printf("%d refused: %s\n", n, refusal.c_str());
  return n_wrong > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_micro_schemas: %s\n", error.what());
    return 2;
  }
}
