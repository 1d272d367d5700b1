// expect in 3 of 40 lines: stop strings need the text of each token
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, target);
#ifdef ESPALIER_VALID
  decode.generate(prompt, {.max_tokens = 8});
#else
  decode.generate(prompt, {.max_tokens = 8, .strings = {"\n"}});
#endif
}
