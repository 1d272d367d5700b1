// expect in 3 of 40 lines: needs vocab_size\(\) const -> int
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_model {
#ifdef ESPALIER_VALID
  std::int32_t vocab_size() const {
    return 8;
  }
#endif
  logits_view forward(token_kv&, forward_batch_view) {
    return {};
  }
};

own_model own;

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, own);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
