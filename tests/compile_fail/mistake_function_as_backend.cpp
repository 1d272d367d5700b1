// expect in 3 of 40 lines: a function is no backend: text_backend\(vocabulary size, function\) makes one
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

void next_token(std::span<const token_id>, std::span<float>) {}

#ifdef ESPALIER_VALID
text_backend own(8, next_token);
#else
constexpr auto& own = next_token;
#endif

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, own);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
