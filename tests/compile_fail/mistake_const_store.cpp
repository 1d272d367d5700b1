// expect in 3 of 40 lines: KV store is const
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

#ifdef ESPALIER_VALID
token_kv own(64);
#else
const token_kv own(64);
#endif

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), own, target);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
