// expect in 3 of 40 lines: deleted (function|constructor|copy constructor).*batch_decoder<
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
  auto decode = make_batch_decoder(drafter, chain(), greedy(), kv, target);
#ifdef ESPALIER_VALID
  auto& other = decode;
#else
  auto other = decode;
#endif
  other.add(prompt, {.max_tokens = 8});
}
