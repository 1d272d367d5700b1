// expect in 3 of 40 lines: needs five parts: drafter, policy, verifier, KV store, backend
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  auto decode = make_decoder(drafter, chain(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#else
  auto decode = make_decoder(chain(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#endif
  while (decode.step()) {
  }
}
