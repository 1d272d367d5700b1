// expect in 3 of 40 lines: forward\(\) must return logits_view
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_model {
  std::int32_t vocab_size() const { return 8; }
#ifdef ESPALIER_VALID
  logits_view forward(token_kv&, forward_batch_view) {
    return {};
  }
#else
  std::vector<float> forward(token_kv&, forward_batch_view) {
    return {};
  }
#endif
};

own_model own;

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), kv, own);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
