// expect in 3 of 40 lines: observer is called with a const round_record&
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, target);
#ifdef ESPALIER_VALID
  const auto show = [](const round_record&) {};
#else
  const auto show = [](token_id) {};
#endif
  decode.generate(prompt, {.max_tokens = 8}, show);
}
