// expect in 3 of 40 lines: does not take a token_run
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  auto decode = make_decoder(prompt_lookup(), chain(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#else
  auto decode = make_decoder(prompt_lookup(), dynatree(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#endif
  while (decode.step()) {
  }
}
