// expect in 3 of 40 lines: no forward\(kv, batch\) that takes this KV store
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

#ifdef ESPALIER_VALID
token_kv own(64);
#else
contiguous_kv own(1, 8, 1, 64);  // the model's forward() takes a token_kv
#endif

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), own, target);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
