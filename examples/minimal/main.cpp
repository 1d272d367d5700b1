// SPDX-License-Identifier: BSL-1.0
// A whole decoder over models that are plain functions of the text: a target that continues a nursery rhyme exactly,
// and a draft that knows only which letter tends to follow which.
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

using espalier::token_id;

constexpr std::string_view rhyme =
    "the house that jack built. this is the malt that lay in the house that jack built. "
    "this is the rat that ate the malt that lay in the house that jack built.";

// Prefers the letter after the longest earlier match of the last `order` letters of the text.
struct rhyme_model {
  int order;
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    std::fill(logits.begin(), logits.end(), -4.0F);
    for (int n = 1; n <= order && n <= static_cast<int>(text.size()); ++n) {
      std::string end;
      for (const token_id t : text.last(static_cast<std::size_t>(n)))
        end += static_cast<char>(t);
      for (std::size_t at = rhyme.find(end); at < rhyme.size() - end.size(); at = rhyme.find(end, at + 1)) {
        logits[static_cast<unsigned char>(rhyme[at + end.size()])] += static_cast<float>(n);
      }
    }
  }
};

template <class DrafterT, class PolicyT>
std::string write(DrafterT& drafter, PolicyT policy, std::string_view name) {
  espalier::token_kv kv(512);
  espalier::text_backend target(128, rhyme_model{12});
  auto decode = espalier::make_decoder(drafter, policy, espalier::greedy(), kv, target);
  const std::vector<token_id> prompt{'t', 'h', 'i', 's', ' '};
  espalier::statistics stats;
  std::string text;
  for (const token_id t : decode.generate(prompt, {.max_tokens = 120}, stats))
    text += static_cast<char>(t);
  std::printf("%-9.*s %3d target passes, %.2f tokens each: this %s\n", static_cast<int>(name.size()), name.data(),
              static_cast<int>(stats.rounds), stats.tokens_per_round(), text.c_str());
  return text;
}

}  // namespace

int main() {
  espalier::no_drafter none;
  espalier::token_kv draft_kv(512);
  espalier::text_backend draft(128, rhyme_model{2});
  espalier::autoregressive drafter(draft, draft_kv);
  const std::string expected = write(none, espalier::plain(), "plain");
  const std::string text = write(drafter, espalier::dynatree(), "dynatree");
  return text == expected ? 0 : 1;
}
