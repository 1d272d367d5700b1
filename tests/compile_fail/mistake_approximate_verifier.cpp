// expect in 3 of 40 lines: a decoder takes it only with the word for it, as approximate<
// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/approximate.hpp"
#include "espalier/verifier/approximate/threshold_acceptance.hpp"
#include "mistake.hpp"

int main() {
#ifdef ESPALIER_VALID
  auto decode = make_decoder(drafter, chain(), approximate(typical_acceptance()), kv, target);
#else
  auto decode = make_decoder(drafter, chain(), typical_acceptance(), kv, target);
#endif
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
