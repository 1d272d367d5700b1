// expect in 3 of 40 lines: KV store and backend are swapped
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  autoregressive small(draft, draft_kv);
#else
  autoregressive small(draft_kv, draft);
#endif
  auto decode = make_decoder(small, chain(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
}
