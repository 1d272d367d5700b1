// expect in 3 of 40 lines: prompt is a range of token_id
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, target);
#ifdef ESPALIER_VALID
  const std::vector<token_id> text{1, 2};
#else
  const std::vector<std::int64_t> text{1, 2};
#endif
  decode.begin(text, {.max_tokens = 8});
}
