// SPDX-License-Identifier: BSL-1.0
// Texts of twelve compositions. Compiled with ESPALIER_HOSTED=0 every decoder is one object in static memory; compiled
// for the host they are ordinary ones. Both print the same.
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "platform.hpp"

#if !ESPALIER_HOSTED
#include "espalier/decoder/static_decoder.hpp"
#endif

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 16;
constexpr std::int32_t context = 64;
constexpr std::int32_t most_rows = 80;

// Logits from the last three tokens: half of what decides is common to target and draft.
class toy_model {
 public:
  explicit constexpr toy_model(std::uint32_t seed) : seed_(seed) {}

  std::int32_t vocab_size() const { return vocab; }
  void fail_next(bool fails) { fails_ = fails; }

  vocab_rows<float> forward(token_kv& kv, forward_batch_view batch) {
    if (fails_) {
      fails_ = false;
      return {};
    }
    std::int32_t n = 0;
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t row = s.row_begin; row < s.row_end; ++row)
        kv.token(s.sequence, batch.slots[static_cast<std::size_t>(row)]) = batch.tokens[static_cast<std::size_t>(row)];
      for (; n < static_cast<std::int32_t>(batch.outputs.size()); ++n)
        write(kv, s, batch.mask_of(s, batch.outputs[static_cast<std::size_t>(n)]), logits_ + n * vocab);
    }
    return {logits_, n, vocab};
  }

 private:
  void write(token_kv& kv, const batch_sequence& s, std::span<const std::uint32_t> mask, float* logits) const {
    std::uint32_t own = seed_, common = 99;
    std::int32_t seen = 0;
    for (std::int32_t slot = s.prefix + s.mask_words * 32; slot-- > 0 && seen < 3;) {
      const std::int32_t bit = slot - s.prefix;
      if (bit >= 0 && (mask[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 1U) == 0) continue;
      const auto token = static_cast<std::uint32_t>(kv.token(s.sequence, slot)) + 7;
      own = (own ^ token) * 16777619U;
      common = (common ^ token) * 16777619U;
      ++seen;
    }
    for (std::int32_t t = 0; t < vocab; ++t) {
      own = own * 1664525U + 1013904223U;
      common = common * 1664525U + 1013904223U;
      logits[t] = static_cast<float>((own >> 17) + 3 * (common >> 17)) / 32768.0F;
    }
  }

  std::uint32_t seed_;
  bool fails_ = false;
  float logits_[most_rows * vocab] = {};
};

// All compositions, or the one of this number.
#if defined(FIRMWARE_ONLY)
constexpr bool is_wanted(int number) {
  return number == FIRMWARE_ONLY;
}
#else
constexpr bool is_wanted(int) {
  return true;
}
#endif

toy_model target(1), draft(2);

constexpr sampling_options most_probable{};
constexpr sampling_options drawn{.temperature = 0.8F};
constexpr sampling_options nucleus{.temperature = 1.0F, .top_p = 0.9F};

template <class TreePolicyT>
auto drafter_for() {
  if constexpr (std::is_same_v<TreePolicyT, plain>)
    return no_drafter();
  else
    return autoregressive(draft, token_kv(context));
}

// A decoder of these parts, which are given by functions.
template <auto PolicyOf, auto VerifierOf, const sampling_options& Sampling>
struct composition {
  auto operator()() const {
    const decoder_options options{.text = {.sampling = Sampling, .seed = 42}, .prefill_chunk = 16};
    using policy = decltype(PolicyOf());
    return make_decoder(drafter_for<policy>(), PolicyOf(), VerifierOf(), token_kv(context), target, options);
  }
};

template <class DecoderT>
void write_texts(const char* name, DecoderT& decode) {
  const token_id prompts[][3] = {{1, 5, 2}, {3, 3, 7}};
  for (const auto& prompt : prompts) {
    decode.begin(prompt, {.max_tokens = 40});
    std::int32_t rounds = 0;
    while (decode.step())
      ++rounds;
    print(name);
    for (const token_id token : decode.current().written())
      print(" ", token);
    print(", rounds: ", rounds);
    print("\n");
  }
}

#if ESPALIER_HOSTED

template <int Number, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling>
void write(const char* name) {
  if (!is_wanted(Number)) return;
  auto decode = composition<PolicyOf, VerifierOf, Sampling>()();
  write_texts(name, decode);
}

#else

template <const sampling_options& Sampling>
constexpr static_capacity capacity{
    .nodes = 8,
    .context = context,
    .vocabulary = vocab,
    .chunk = 16,
    .target = Sampling,
};

bool is_sound = true;

void expect(bool holds, const char* what) {
  if (holds) return;
  is_sound = false;
  print("FAILED: ");
  print(what);
  print("\n");
}

// Two million instructions are counted, and a few more around them.
bool counts_right() {
  const std::uint64_t before = instructions();
  spend(1000000);
  const std::uint64_t n = instructions() - before;
  return !counts_instructions || (n + 40 >= 2000000 && n < 2000000 + 100);
}

template <int Number, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling>
void write(const char* name) {
  if (!is_wanted(Number)) return;
  static static_decoder<capacity<Sampling>, composition<PolicyOf, VerifierOf, Sampling>> decode;
  expect(decode.state() == status::idle, "a decoder is built in the memory that was computed");
  write_texts(name, decode);

  // What a running device may meet.
  const token_id unknown[] = {1, vocab}, fits[] = {1, 5, 2};
  static const token_id too_long[context + 1] = {};
  expect(decode.begin(unknown) == status::failed, "a token outside the vocabulary is refused");
  expect(decode.begin(too_long) == status::failed, "a prompt that does not fit is refused");
  expect(decode.begin({}) == status::failed, "an empty prompt is refused");
  for (toy_model* model : {&target, &draft}) {
    expect(decode.begin(fits, {.max_tokens = 40}) == status::running, "a text begins after a failure");
    model->fail_next(true);
    while (decode.step()) {
    }
    if (decode.state() == status::failed) {
      while (decode.step()) {
      }
    }
    model->fail_next(false);  // without a draft model nobody has asked it
    expect(decode.state() == status::length && decode.current().written().size() == 40,
           "a text goes on after a pass that failed");
  }
  print("# ");
  print(name);
  print(" bytes of lists computed ", static_cast<std::int32_t>(decode.bytes));
  print(", used ", static_cast<std::int32_t>(decode.used()));
  print(", of the object ", static_cast<std::int32_t>(sizeof decode));
  print("\n");
}

#endif

}  // namespace

int main() {
  write<1, [] { return plain(); }, [] { return greedy(); }, most_probable>("plain, greedy:");
  write<2, [] { return plain(); }, [] { return target_only(); }, drawn>("plain, target only:");
  write<3, [] { return chain({.length = 4}); }, [] { return greedy(); }, most_probable>("chain, greedy:");
  write<4, [] { return chain({.length = 4}); }, [] { return target_only(); }, drawn>("chain, target only:");
  write<5, [] { return adaptive_chain({.length = 3, .max_length = 8}); }, [] { return greedy(); }, most_probable>(
      "adaptive chain, greedy:");
  write<6, [] { return sampled_chain({.length = 4}); }, [] { return naive(); }, drawn>("sampled chain, naive:");
  write<7, [] { return sampled_chain({.length = 4}); }, [] { return block_verification(); }, nucleus>(
      "sampled chain, block verification:");
  write<8, [] { return delayed({.paths = 2, .trunk = 2, .length = 3}); }, [] { return greedy(); }, most_probable>(
      "delayed, greedy:");
  write<9, [] { return delayed({.paths = 2, .trunk = 2, .length = 3}); }, [] { return traversal(); }, nucleus>(
      "delayed, traversal:");
  write<10, [] { return delayed({.paths = 2, .trunk = 2, .length = 3}); }, [] { return specinfer(); }, drawn>(
      "delayed, SpecInfer:");
  write<11, [] { return dyspec_greedy({.budget = 8}); }, [] { return residual_walk(); }, drawn>(
      "DySpec, residual walk:");
  write<12, [] { return dyspec_greedy({.budget = 8}); }, [] { return greedy(); }, most_probable>("DySpec, greedy:");
#if ESPALIER_HOSTED
  return 0;
#else
  expect(counts_right(), "instructions are counted");
  print("# bytes of stack used: ", used_stack());
  print("\n");
  return is_sound ? 0 : 1;
#endif
}
