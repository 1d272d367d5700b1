// expect in 3 of 40 lines: not lossless for the trees of this policy
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  auto decode = make_decoder(drafter, iid_paths(), specinfer(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#else
  auto decode = make_decoder(drafter, dynatree(), specinfer(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
#endif
  while (decode.step()) {
  }
}
