#include <algorithm>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include <espalier/espalier.hpp>

constexpr std::string_view song = "merrily, merrily, merrily, life is but a dream. ";

// The target: a function from the text to the logits of its next token. This one sings.
void sing(std::span<const espalier::token_id> text, std::span<float> logits) {
  std::ranges::fill(logits, 0.0F);
  logits[static_cast<unsigned char>(song[text.size() % song.size()])] = 9.0F;
}

int main() {
  espalier::text_backend target(128, sing);
  espalier::token_kv cache(512);
  espalier::prompt_lookup drafter;  // no second model: it drafts what stood in the text before
  auto decode = espalier::make_decoder(drafter, espalier::chain({.length = 8}), espalier::greedy(), cache, target);

  const std::vector<espalier::token_id> prompt(song.begin(), song.end());
  espalier::statistics stats;
  for (const auto token : decode.generate(prompt, {.max_tokens = 96}, stats))
    std::putchar(token);
  std::printf("\n%.1f tokens a pass of the target\n", stats.tokens_per_round());
}
