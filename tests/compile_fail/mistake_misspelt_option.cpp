// expect in 40 of 40 lines: to .espalier::chain_options.
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  const chain policy({.length = 4});
#else
  const chain policy({.lenght = 4});
#endif
  auto decode = make_decoder(drafter, policy, greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
}
