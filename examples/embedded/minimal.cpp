// SPDX-License-Identifier: BSL-1.0
// The smallest firmware: one text, by a model that knows what follows each letter. Drafts are looked up in the text.
#include <cstddef>
#include <cstdint>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/static_decoder.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

extern "C" void send(const char* text);  // in start.c: to the board's serial port

namespace {

constexpr std::int32_t vocab = 26, context = 64, most_rows = 20;

// The model. Its logits depend on the last letter alone, so it reads nothing from the cache.
class letters {
 public:
  std::int32_t vocab_size() const { return vocab; }
  std::int32_t max_rows() const { return most_rows; }

  logits_view forward(token_kv&, forward_batch_view batch) {
    std::int32_t n = 0;
    for (const std::int32_t row : batch.outputs) {
      const token_id last = batch.tokens[static_cast<std::size_t>(row)];
      for (token_id t = 0; t < vocab; ++t)
        logits_[n * vocab + t] = t == (5 * last + 3) % vocab ? 1.0F : 0.0F;
      ++n;
    }
    return {logits_, n, vocab};
  }

 private:
  float logits_[most_rows * vocab] = {};
};

letters target;

constexpr static_capacity room{.nodes = 4, .context = context, .vocabulary = vocab, .prefill_rows = 16};

struct factory {
  auto operator()(const decoder_options& options) const {
    return make_decoder(prompt_lookup({.capacity = context}), chain({.length = 4}), greedy(), token_kv(context), target,
                        options);
  }
};

static_decoder<room, factory> decode;

}  // namespace

int main() {
  const token_id prompt[] = {0, 3, 18};
  decode.begin(prompt, {.max_tokens = 40});
  while (decode.step()) {
    for (const token_id token : decode.last_round().committed) {
      const char letter[] = {static_cast<char>('a' + token), '\0'};
      send(letter);
    }
  }
  send("\n");
  if (decode.state() == status::length) return 0;
  send(decode.message());
  return 1;
}
