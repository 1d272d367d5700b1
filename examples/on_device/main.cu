// SPDX-License-Identifier: BSL-1.0
// The decoder of examples/minimal on a GPU, over a model of one's own: a kernel that continues a nursery rhyme. What
// the model knows of the text it reads from the cache, as any transformer does.
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/cuda.cuh"
#include "espalier/decoder/statistics.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

namespace device = espalier::cuda;
using espalier::token_id;

constexpr std::int32_t vocab = 128;
constexpr std::int32_t max_rows = 257;
constexpr std::string_view rhyme =
    "the house that jack built. this is the malt that lay in the house that jack built. "
    "this is the rat that ate the malt that lay in the house that jack built.";

// Writes tokens to the cache, whose rows are tokens. Padding rows belong to no sequence.
__global__ void write_cache(device::forward_batch_view batch, device::kv_view<float> kv) {
  const auto row = static_cast<std::int32_t>(threadIdx.x);
  if (batch.sequence_of[row] < 0) return;
  *kv.key(0, batch.sequences[batch.sequence_of[row]].sequence, batch.slots[row]) =
      static_cast<float>(batch.tokens[row]);
}

// Writes logits, with one block for each row and one thread for each letter: the letter after the longest match of the
// last `order` tokens has the highest.
__global__ void continue_rhyme(device::forward_batch_view batch, device::kv_view<float> kv, const token_id* letters,
                               std::int32_t n_letters, std::int32_t order, float* logits) {
  const auto output = static_cast<std::int32_t>(blockIdx.x);
  const auto letter = static_cast<token_id>(threadIdx.x);
  const std::int32_t row = batch.outputs == nullptr ? output : batch.outputs[output];
  if (row < 0 || batch.sequence_of[row] < 0) return;
  const espalier::batch_sequence s = batch.sequences[batch.sequence_of[row]];
  // Backwards: first the rows of this round that the mask shows, then the committed ones.
  token_id last[16];
  std::int32_t n = 0;
  const std::uint32_t* mask = batch.mask + s.mask_begin + (row - s.row_begin) * s.mask_words;
  for (std::int32_t slot = 32 * s.mask_words - 1; slot >= 0 && n < order; --slot) {
    if ((mask[slot / 32] >> (slot % 32) & 1U) != 0)
      last[n++] = static_cast<token_id>(*kv.key(0, s.sequence, s.prefix + slot));
  }
  for (std::int32_t slot = s.prefix - 1; slot >= 0 && n < order; --slot)
    last[n++] = static_cast<token_id>(*kv.key(0, s.sequence, slot));
  float logit = -4;
  for (std::int32_t at = 1; at < n_letters; ++at) {
    if (letters[at] != letter) continue;
    std::int32_t match = 0;
    while (match < n && match < at && letters[at - 1 - match] == last[match])
      ++match;
    logit += static_cast<float>(match * (match + 1) / 2);
  }
  logits[output * vocab + letter] = logit;
}

// The model that device::callable_backend calls: it gets addresses on the device and puts work into the stream.
struct rhyme_model {
  std::int32_t order;
  const device::device_array<token_id>* letters;
  device::device_array<float> logits = device::device_array<float>(max_rows * vocab);

  espalier::vocab_rows<float> operator()(device::contiguous_kv<float>& kv, const device::forward_batch_view& batch,
                                         cudaStream_t stream) const {
    device::launch("write_cache", write_cache, {.threads = static_cast<unsigned>(batch.n_rows)}, stream, batch,
                   kv.view());
    if (batch.n_outputs > 0) {
      device::launch("continue_rhyme", continue_rhyme,
                     {.grid = static_cast<unsigned>(batch.n_outputs), .threads = vocab}, stream, batch, kv.view(),
                     letters->data(), static_cast<std::int32_t>(letters->size()), order, logits.data());
    }
    return {logits.data(), batch.n_outputs, vocab};
  }
};

template <class DrafterT, class PolicyT>
std::string write(DrafterT&& drafter, PolicyT policy, const device::device_array<token_id>& letters,
                  std::string_view name) {
  device::contiguous_kv<float> kv(1, 1, 1, 512);
  auto target =
      device::make_callable_backend<float>({.vocab_size = vocab, .max_rows = max_rows}, rhyme_model{12, &letters});
  auto decode = device::make_decoder(drafter, std::move(policy), espalier::greedy(), kv, target);
  const std::vector<token_id> prompt{'t', 'h', 'i', 's', ' '};
  espalier::statistics stats;
  std::string text;
  for (const token_id t : decode.generate(prompt, {.max_tokens = 120}, stats))
    text += static_cast<char>(t);
  std::printf("%-9.*s %3d target passes, %.2f tokens each: this %s\n", static_cast<int>(name.size()), name.data(),
              static_cast<int>(stats.rounds), stats.tokens_per_round(), text.c_str());
  return text;
}

}  // namespace

int main() {
  const std::vector<token_id> on_host(rhyme.begin(), rhyme.end());
  const device::device_array<token_id> letters{std::span<const token_id>(on_host)};
  device::contiguous_kv<float> draft_kv(1, 1, 1, 512);
  auto draft =
      device::make_callable_backend<float>({.vocab_size = vocab, .max_rows = max_rows}, rhyme_model{2, &letters});
  device::autoregressive drafter(draft, draft_kv);
  const std::string expected = write(device::no_drafter(), device::plain(), letters, "plain");
  const std::string text = write(drafter, device::dynatree(), letters, "dynatree");
  return text == expected ? 0 : 1;
}
