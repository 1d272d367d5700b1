// expect in 3 of 40 lines: needs compacts\(\) const -> bool
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_store {
  std::int32_t size(std::int32_t) const { return 0; }
  std::int32_t capacity() const { return 64; }
  std::int32_t append(std::int32_t, std::int32_t) { return 0; }
  std::int32_t commit(std::int32_t, std::span<const std::int32_t>) { return 0; }
  void truncate(std::int32_t, std::int32_t) {}
#ifdef ESPALIER_VALID
  bool compacts() const {
    return true;
  }
#endif
};
struct own_model {
  std::int32_t vocab_size() const { return 8; }
  logits_view forward(own_store&, forward_batch_view) { return {}; }
};

own_store own;
own_model over_own;

int main() {
  auto decode = make_decoder(drafter, chain(), greedy(), own, over_own);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
