// SPDX-License-Identifier: BSL-1.0
// Texts of twenty-one compositions. Compiled with ESPALIER_HOSTED=0 every decoder is one object in static memory;
// compiled for the host they are ordinary ones. Both print the same.
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
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

// A model whose logits depend on the last three tokens; half of each logit is common to target and draft.
template <class NumberT>
class toy_model {
 public:
  explicit constexpr toy_model(std::uint32_t seed) : seed_(seed) {}

  std::int32_t vocab_size() const { return vocab; }
  void fail_next(bool fails) { fails_ = fails; }

  vocab_rows<NumberT> forward(token_kv& kv, forward_batch_view batch) {
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
  void write(token_kv& kv, const batch_sequence& s, std::span<const std::uint32_t> mask, NumberT* logits) const {
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
      logits[t] = static_cast<NumberT>((own >> 17) + 3 * (common >> 17)) / 32768;
    }
  }

  std::uint32_t seed_;
  bool fails_ = false;
  NumberT logits_[most_rows * vocab] = {};
};

// True for all compositions, or only for the one with this number.
#if defined(FIRMWARE_ONLY)
constexpr bool is_wanted(int number) {
  return number == FIRMWARE_ONLY;
}
#else
constexpr bool is_wanted(int) {
  return true;
}
#endif

template <class NumberT>
toy_model<NumberT> target(1);
template <class NumberT>
toy_model<NumberT> draft(2);

constexpr sampling_options most_probable{};
constexpr sampling_options drawn{.temperature = 0.8F};
constexpr sampling_options nucleus{.temperature = 1.0F, .top_p = 0.9F};
constexpr sampling_options top_four{.temperature = 1.0F, .top_k = 4};

// The sizes of all of these decoders.
template <const sampling_options& Sampling>
constexpr static_capacity capacity{
    .nodes = 8,
    .context = context,
    .vocabulary = vocab,
    .prefill_rows = 16,
    .target = Sampling,
};

// Makers of the drafters of compositions.
struct nothing {
  auto operator()() const { return no_drafter(); }
};
template <class NumberT>
struct small_model {
  auto operator()() const { return autoregressive(draft<NumberT>, token_kv(context)); }
};
struct earlier_text {
  auto operator()() const { return prompt_lookup({.capacity = context}); }
};
struct counts {
  auto operator()() const { return ngram({.order = 3, .capacity = context}); }
};

// Makes a decoder of these parts, which functions provide.
template <class DrafterOf, auto PolicyOf, auto VerifierOf, class NumberT>
struct composition {
  auto operator()(decoder_options options) const {
    options.text.seed = 42;
    auto& model = target<NumberT>;
    return make_decoder(DrafterOf()(), PolicyOf(), VerifierOf(), token_kv(context), model, options);
  }
};

template <class DecoderT>
void write_texts(const char* name, DecoderT& decode) {
  const token_id prompts[][3] = {{1, 5, 2}, {3, 3, 7}};
  for (const auto& prompt : prompts) {
    const std::uint64_t before = instructions();
    decode.begin(prompt, {.max_tokens = 40});
    std::int32_t rounds = 0;
    while (decode.step())
      ++rounds;
    if (counts_instructions)
      print("# instructions a token: ", static_cast<std::int32_t>((instructions() - before) / 40));
    if (counts_instructions) print("\n");
    print(name);
    for (const token_id token : decode.current().written())
      print(" ", token);
    print(", rounds: ", rounds);
    print("\n");
  }
}

#if ESPALIER_HOSTED

template <int Number, class DrafterOf, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling,
          class NumberT = float>
void write_drafted(const char* name) {
  if (!is_wanted(Number)) return;
  auto decode = composition<DrafterOf, PolicyOf, VerifierOf, NumberT>()(decoder_options::of(capacity<Sampling>));
  write_texts(name, decode);
}

#else

bool is_sound = true;

void expect(bool holds, const char* what) {
  if (holds) return;
  is_sound = false;
  print("FAILED: ");
  print(what);
  print("\n");
}

// Checks that two million instructions are counted as such, up to a few more around them.
bool counts_right() {
  const std::uint64_t before = instructions();
  spend(1000000);
  const std::uint64_t n = instructions() - before;
  return !counts_instructions || (n + 40 >= 2000000 && n < 2000000 + 100);
}

template <int Number, class DrafterOf, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling,
          class NumberT = float>
void write_drafted(const char* name) {
  if (!is_wanted(Number)) return;
  using factory = composition<DrafterOf, PolicyOf, VerifierOf, NumberT>;
  static static_decoder<capacity<Sampling>, factory> decode;
  expect(decode.state() == status::idle, "a decoder is built in the memory that was computed");
  write_texts(name, decode);

  // Inputs that a running device may meet.
  const token_id unknown[] = {1, vocab}, fits[] = {1, 5, 2};
  static const token_id too_long[context + 1] = {};
  expect(decode.begin(unknown) == status::failed, "a token outside the vocabulary is refused");
  expect(decode.begin(too_long) == status::failed, "a prompt that does not fit is refused");
  expect(decode.begin({}) == status::failed, "an empty prompt is refused");
  for (toy_model<NumberT>* model : {&target<NumberT>, &draft<NumberT>}) {
    expect(decode.begin(fits, {.max_tokens = 40}) == status::running, "a text begins after a failure");
    model->fail_next(true);
    while (decode.step()) {
    }
    if (decode.state() == status::failed) {
      while (decode.step()) {
      }
    }
    model->fail_next(false);  // without a draft model no part asks it
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

// Writes a text that a small model drafts.
template <int Number, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling, class NumberT = float>
void write(const char* name) {
  write_drafted<Number, small_model<NumberT>, PolicyOf, VerifierOf, Sampling, NumberT>(name);
}

}  // namespace

int main() {
  write_drafted<1, nothing, [] { return plain(); }, [] { return greedy(); }, most_probable>("plain, greedy:");
  write_drafted<2, nothing, [] { return plain(); }, [] { return target_only(); }, drawn>("plain, target only:");
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
  write<13, [] { return iid_paths({.paths = 2, .length = 4}); }, [] { return spectr(); }, drawn>(
      "independent paths, SpecTr:");
  write<14, [] { return iid_paths({.paths = 2, .length = 4}); }, [] { return naive_tree(); }, top_four>(
      "independent paths, naive tree, top-k:");
  write<15, [] { return dyspec_threshold({.budget = 8, .max_depth = 4, .threshold = 0.1}); },
        [] { return traversal_without_replacement(); }, drawn>("DySpec by levels, traversal:");
  write<16, [] { return specinfer_static({.budget = 8, .level_1 = 2}); }, [] { return specinfer(); }, drawn>(
      "static tree, SpecInfer:");
  write<17, [] { return dynatree({.budget = 8}); }, [] { return greedy(); }, most_probable>("DynaTree, greedy:");
  write<18, [] { return fixed({.depth = 3, .breadth = 2, .budget = 8}); }, [] { return target_only(); }, drawn>(
      "fixed tree, target only:");
  write_drafted<19, earlier_text, [] { return chain({.length = 4}); }, [] { return greedy(); }, most_probable>(
      "prompt lookup, greedy:");
  write_drafted<20, counts, [] { return chain({.length = 4}); }, [] { return target_only(); }, drawn>(
      "n-grams, target only:");
  write<21, [] { return sampled_chain({.length = 4}); }, [] { return naive(); }, drawn, double>(
      "sampled chain, naive, double rows:");
#if ESPALIER_HOSTED
  return 0;
#else
  expect(counts_right(), "instructions are counted");
  print("# bytes of stack used: ", used_stack());
  print("\n");
  return is_sound ? 0 : 1;
#endif
}
