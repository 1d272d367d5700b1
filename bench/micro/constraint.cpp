// SPDX-License-Identifier: BSL-1.0
//
//   bench_micro_constraint [MODEL [LENGTH]]   milliseconds a mask of what a string of at most LENGTH characters (200) may
//                                             go on with, in the tokens of a model or tokenizer, along random texts
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "espalier/constraint/schema/json_schema.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "vocabulary_of.hpp"

namespace {

using espalier::token_id;

// The first mask of each string is measured apart: later masks in the same text may be similar to it.
void measure(const espalier::vocabulary_trie& vocabulary, const std::string& schema) {
  using clock = std::chrono::steady_clock;
  constexpr int n_texts = 8;
  std::vector<double> first, later;
  std::minstd_rand random(1);
  const auto begin = clock::now();
  for (int text = 0; text < n_texts; ++text) {
    const espalier::token_automaton rule = espalier::json_schema(schema, vocabulary);
    auto state = rule.start();
    for (int i = 0; !rule.accepts(state); ++i) {
      const auto asked = clock::now();
      const auto mask = rule.allowed(state);
      const double ms = std::chrono::duration<double, std::milli>(clock::now() - asked).count();
      (i < 2 ? first : later).push_back(ms);  // the quote, then the string
      std::vector<token_id> allowed;
      for (token_id t = 0; t < vocabulary.size(); ++t) {
        if ((mask[static_cast<std::size_t>(t) / 32] >> t % 32 & 1U) != 0) allowed.push_back(t);
      }
      state = rule.advance(state, allowed[random() % allowed.size()]);
    }
  }
  const double all = std::chrono::duration<double, std::milli>(clock::now() - begin).count();
  double sum = 0;
  for (const double ms : later)
    sum += ms;
  std::sort(later.begin(), later.end());
  std::printf(
      "%d tokens, %d texts: %zu masks in a string, %.3f ms each (median %.3f, most %.3f), the first ones %.3f; "
      "all %.0f ms\n",
      vocabulary.size(), n_texts, later.size(), sum / static_cast<double>(later.size()), later[later.size() / 2],
      later.back(), *std::max_element(first.begin(), first.end()), all);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto text = espalier::tokenizer::load(argc < 2 ? ESPALIER_BENCH_MODELS : argv[1]);
    const std::string length = argc < 3 ? "200" : argv[2];
    measure(models::vocabulary_of(text), R"({"type": "string", "maxLength": )" + length + "}");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_micro_constraint: %s\n", error.what());
    return 2;
  }
}
