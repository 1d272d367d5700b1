// SPDX-License-Identifier: BSL-1.0
#include "../models/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../models/json_lines.hpp"
#include "../models/model_tokenizer.hpp"
#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"

namespace nde {

namespace {

struct text {
  std::vector<espalier::token_id> tokens;
  std::size_t n_prompt;
};

// Reads texts, one a line in JSON, by their kinds.
std::map<std::string, std::vector<text>> read_texts(const std::string& path, const espalier::tokenizer& tokenizer) {
  std::map<std::string, std::vector<text>> kinds;
  models::read_json_lines(path, [&](const nlohmann::json& json, const std::string& where, int) {
    const auto field = [&](const char* name) {
      const auto at = json.is_object() ? json.find(name) : json.end();
      if (!json.is_object() || at == json.end() || !at->is_string() || at->get_ref<const std::string&>().empty()) {
        espalier::raise<espalier::input_error>(where, " has no \"", name, "\"; a line is an object with ",
                                               "\"kind\", \"prompt\" and \"text\", none of them empty.");
      }
      return at->get<std::string>();
    };
    text t{tokenizer.encode(field("prompt")), 0};
    t.n_prompt = t.tokens.size();
    const auto written = tokenizer.encode(field("text"));
    t.tokens.insert(t.tokens.end(), written.begin(), written.end());
    kinds[field("kind")].push_back(std::move(t));
  });
  if (kinds.empty()) espalier::raise<espalier::input_error>(path, " holds no text.");
  return kinds;
}

// Tokens a round over these texts. make() makes the drafter of all of them; `memory`, if there is one, is given each
// text once it is written.
template <class MakeT, class PolicyT>
double tokens_per_round(const std::vector<text>& texts, const MakeT& make, PolicyT policy,
                        espalier::text_memory* memory = nullptr) {
  auto drafter = make();
  models::replayed sum;
  for (const text& t : texts) {
    models::replay(drafter, policy, t.tokens, t.n_prompt, sum);
    if (memory != nullptr) memory->add(t.tokens);
  }
  return sum.tokens_per_round();
}

}  // namespace

int replay(const replay_arguments& a) {
  const espalier::tokenizer tokenizer = models::detail::tokenizer_of(a.tokenizer);
  const auto kinds = read_texts(a.texts, tokenizer);
  fmt::print("tokens a round, at most {} drafted\n{:<14}{:>8}{:>10}{:>14}{:>14}{:>14}{:>14}\n", a.budget, "", "texts",
             "tokens", "look-up", "counts, path", "counts, tree", "with memory");
  for (const auto& [kind, texts] : kinds) {
    std::size_t longest = 1, n_tokens = 0;
    for (const text& t : texts) {
      longest = std::max(longest, t.tokens.size());
      n_tokens += t.tokens.size() - t.n_prompt;
    }
    const auto capacity = static_cast<std::int32_t>(std::min(longest, std::size_t{1} << 20));
    espalier::text_memory memory(a.memory);
    const auto look_up = [&] { return espalier::prompt_lookup({.capacity = capacity}); };
    const auto counts = [&] { return espalier::text_counts(tokenizer.size(), {.capacity = capacity}); };
    const auto remembering = [&] { return espalier::text_counts(tokenizer.size(), {.capacity = capacity}, &memory); };
    const espalier::chain chain({.length = a.budget});
    const espalier::best_first tree({.budget = a.budget, .max_depth = a.budget});
    fmt::print("{:<14}{:>8}{:>10}{:>14.2f}{:>14.2f}{:>14.2f}{:>14.2f}\n", kind, texts.size(), n_tokens,
               tokens_per_round(texts, look_up, chain), tokens_per_round(texts, counts, chain),
               tokens_per_round(texts, counts, tree), tokens_per_round(texts, remembering, tree, &memory));
  }
  return 0;
}

}  // namespace nde
