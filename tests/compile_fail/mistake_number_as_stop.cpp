// expect in 3 of 40 lines: stop conditions
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, target);
#ifdef ESPALIER_VALID
  decode.begin(prompt, {.max_tokens = 8});
#else
  decode.begin(prompt, 8);
#endif
  while (decode.step()) {
  }
}
