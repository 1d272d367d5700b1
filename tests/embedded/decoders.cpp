// SPDX-License-Identifier: BSL-1.0
// What a compiler for a small machine must take: every header of a decoder, and decoders of every kind, whose bodies
// are only looked at where they are used. int32_t is long there, and there may be no threads.
#include <cstdint>
#include <span>

#include "headers.hpp"

using namespace espalier;

namespace {

struct any_model {
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    for (float& x : logits)
      x = static_cast<float>(text.size());
  }
};

template <class DrafterT, class TreePolicyT, class VerifierT>
void write(DrafterT& drafter, TreePolicyT policy, VerifierT verifier) {
  token_kv kv(64);
  text_backend target(16, any_model{});
  auto decode = make_decoder(drafter, policy, verifier, kv, target);
  const token_id prompt[] = {1, 5};
  decode.begin(prompt, {.max_tokens = 20});
  while (decode.step()) {
  }
  decode.resume(prompt);
  decode.load(decode.save());
}

}  // namespace

int main() {
  token_kv kv(64);
  text_backend model(16, any_model{});
  autoregressive drafter(model, kv);
  write(drafter, plain(), target_only());
  write(drafter, chain(), greedy());
  write(drafter, adaptive_chain(), target_only());
  write(drafter, dynatree(), greedy());
  write(drafter, sequoia(), greedy());
  write(drafter, best_first(), greedy());
  write(drafter, eagle2(), greedy());
  write(drafter, dyspec_greedy(), residual_walk());
  write(drafter, dyspec_threshold(), residual_walk());
  write(drafter, sampled_chain(), block_verification());
  write(drafter, iid_paths(), specinfer());
  write(drafter, specinfer_static(), spectr());
  write(drafter, sampled_chain(), naive());
  write(drafter, delayed(), traversal());
  write(drafter, delayed(), khisti());
  prompt_lookup lookup({.capacity = 64});
  write(lookup, chain(), greedy());
  ngram table({.capacity = 64});
  write(table, chain(), greedy());
}
