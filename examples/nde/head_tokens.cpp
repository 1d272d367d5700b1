// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "../models/model_tokenizer.hpp"
#include "../models/prompts_file.hpp"
#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace nde {

int head_tokens(const head_tokens_arguments& a) {
  const espalier::tokenizer tokenizer = models::detail::tokenizer_of(a.tokenizer);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(tokenizer.size()), 0);
  for (models::prompt& text : models::read_prompts(a.texts)) {
    if (text.tokens.empty()) {
      text.tokens = tokenizer.encode(text.text);
      for (const espalier::token_id end : tokenizer.ends_of_text())
        text.tokens.push_back(end);
    }
    for (const espalier::token_id token : text.tokens) {
      if (token >= tokenizer.size()) {
        espalier::raise<espalier::input_error>(a.texts, ", line ", text.line, " has token ", token,
                                               ", but the vocabulary of ", a.tokenizer, " ends at ",
                                               tokenizer.size() - 1, ".");
      }
      ++counts[static_cast<std::size_t>(token)];
    }
  }
  const auto count_of = [&](espalier::token_id token) { return counts[static_cast<std::size_t>(token)]; };
  std::vector<espalier::token_id> tokens(counts.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::stable_sort(tokens.begin(), tokens.end(), [&](auto a, auto b) { return count_of(a) > count_of(b); });
  const auto n_seen = std::find_if(tokens.begin(), tokens.end(), [&](auto t) { return count_of(t) == 0; });
  tokens.resize((std::min)(static_cast<std::size_t>(a.count), static_cast<std::size_t>(n_seen - tokens.begin())));
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const auto kept = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0},
                                    [&](std::int64_t sum, auto token) { return sum + count_of(token); });
  std::sort(tokens.begin(), tokens.end());
  std::ofstream file(a.out, std::ios::binary);
  file << nlohmann::json({{"head_tokens", tokens}}).dump() << '\n';
  if (!file.flush()) espalier::raise<espalier::input_error>(a.out, " cannot be written.");
  if (tokens.size() < static_cast<std::size_t>(a.count))
    fmt::print(stderr, "These texts have {} different tokens, fewer than the {} asked for.\n", tokens.size(), a.count);
  fmt::print("{}: {} of {} tokens, which are {:.2f} % of the {} in these texts\n", a.out, tokens.size(),
             tokenizer.size(),
             100.0 * static_cast<double>(kept) / static_cast<double>((std::max)(all, std::int64_t{1})), all);
  return 0;
}

}  // namespace nde
