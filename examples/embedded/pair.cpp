// SPDX-License-Identifier: BSL-1.0
// A pair of small models with weights of 8 bits (README.md) writes lines for a play, by compositions of a drafter, a
// policy and a verifier, and prints what they cost. Lines that begin with # differ from machine to machine.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/small/small_llama.hpp"
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

// PAIR_FILE is the path of pair.bin, which becomes a part of the program's constants.
asm(R"(
  .pushsection .rodata
  .balign 8
  .global pair_begin, pair_end
pair_begin:
  .incbin ")" PAIR_FILE R"("
pair_end:
  .byte 0
  .popsection
)");
extern "C" const std::byte pair_begin[], pair_end[];

using namespace espalier;

namespace {

constexpr small_shape target_shape{
    .vocab = 512, .hidden = 96, .layers = 3, .heads = 3, .kv_heads = 1, .head_dim = 32, .inner = 144, .positions = 256};
constexpr small_shape draft_shape{
    .vocab = 512, .hidden = 32, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 16, .inner = 48, .positions = 256};
constexpr std::int32_t context = 128;
constexpr std::int32_t most_rows = 12;
constexpr std::int32_t written = 64;

std::span<const std::byte> pair_bytes() {
  return {pair_begin, static_cast<std::size_t>(pair_end - pair_begin)};
}
std::span<const std::byte> after_image(std::span<const std::byte> bytes) {
  return bytes.subspan(small_weights(bytes).bytes());
}

small_llama<target_shape, most_rows> target(pair_bytes());
small_llama<draft_shape, most_rows> draft(after_image(pair_bytes()));

// The pieces of text that tokens stand for, each after a byte with its length. The first three are empty: unknown,
// beginning and end.
class piece_table {
 public:
  explicit piece_table(std::span<const std::byte> bytes) {
    for (const std::byte*& piece : pieces_) {
      piece = bytes.data();
      bytes = bytes.subspan(1 + size(*piece));
    }
  }

  void print_token(token_id token) const {
    char text[256];
    const std::byte* const piece = pieces_[static_cast<std::size_t>(token)];
    std::memcpy(text, piece + 1, size(*piece));
    text[size(*piece)] = '\0';
    print(text);
  }

  // Reads tokens from a text, each time the longest piece that fits. Returns their number, the token of the beginning
  // included.
  std::size_t read(const char* text, std::span<token_id> tokens) const {
    std::size_t n = 0;
    tokens[n++] = 1;
    for (std::size_t left = std::strlen(text); left > 0;) {
      token_id best = 0;
      std::size_t longest = 0;
      for (std::size_t t = 0; t < pieces_.size(); ++t) {
        const std::size_t bytes = size(*pieces_[t]);
        if (bytes <= longest || bytes > left || std::memcmp(pieces_[t] + 1, text, bytes) != 0) continue;
        best = static_cast<token_id>(t);
        longest = bytes;
      }
      tokens[n++] = best;
      const std::size_t used = longest == 0 ? 1 : longest;
      text += used;
      left -= used;
    }
    return n;
  }

 private:
  static std::size_t size(std::byte length) { return std::to_integer<std::size_t>(length); }

  std::array<const std::byte*, target_shape.vocab> pieces_{};
};

const piece_table pieces(after_image(after_image(pair_bytes())));

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

constexpr sampling_options most_probable{};
constexpr sampling_options drawn{.temperature = 0.8F};
constexpr sampling_options nucleus{.temperature = 1.0F, .top_p = 0.9F};
// The draft's sampling for chains, which need only its most probable tokens and no probabilities. Other trees need
// these.
constexpr sampling_options as_it_is{.temperature = 1.0F};

constexpr std::int32_t most_nodes = 8;

template <const sampling_options& Sampling, const sampling_options& Draft>
constexpr static_capacity capacity{
    .nodes = most_nodes,
    .context = context,
    .vocabulary = target_shape.vocab,
    .prefill_rows = most_rows,
    .cache_row = target_shape.layers* target_shape.kv_size(),
    .draft_cache_row = draft_shape.layers* draft_shape.kv_size(),
    .target = Sampling,
    .draft = Draft,
};

// Bytes of rows over the vocabulary, one for each node and the root; bytes of a cache.
[[maybe_unused]] constexpr std::size_t bytes_of_rows = sizeof(float) * (most_nodes + 1) * target_shape.vocab;
[[maybe_unused]] constexpr std::size_t bytes_of_cache(const small_shape& shape) {
  return sizeof(float) * 2 * context * static_cast<std::size_t>(shape.layers * shape.kv_size());
}

// Bytes that a pass needs for one more row: its stream, inputs, outputs and angles.
[[maybe_unused]] constexpr std::int32_t bytes_of_row(const small_shape& shape) {
  return static_cast<std::int32_t>(detail::small_pass::floats(shape, 2) - detail::small_pass::floats(shape, 1)) * 4;
}

contiguous_kv cache_for(const small_shape& shape) {
  return {shape.layers, shape.kv_size(), 1, context};
}

// Makers of the drafters of compositions.
struct nothing {
  static constexpr const sampling_options& sampling = as_it_is;
  [[maybe_unused]] static constexpr std::size_t cache = 0, rows = 0;
  auto operator()() const { return no_drafter(); }
};
template <const sampling_options& Sampling>
struct drafted {
  static constexpr const sampling_options& sampling = Sampling;
  [[maybe_unused]] static constexpr std::size_t cache = bytes_of_cache(draft_shape), rows = bytes_of_rows;
  auto operator()() const { return autoregressive(draft, cache_for(draft_shape), Sampling); }
};
using draft_model = drafted<as_it_is>;
using draft_tokens = drafted<most_probable>;
struct earlier_text {
  static constexpr const sampling_options& sampling = as_it_is;
  [[maybe_unused]] static constexpr std::size_t cache = 0, rows = 0;
  auto operator()() const { return prompt_lookup({.capacity = context}); }
};

// Makes a decoder of these parts, which functions provide.
template <class DrafterOf, auto PolicyOf, auto VerifierOf>
struct composition {
  auto operator()(decoder_options options) const {
    options.text.seed = 42;
    return make_decoder(DrafterOf()(), PolicyOf(), VerifierOf(), cache_for(target_shape), target, options);
  }
};

// Prints a / b with three decimals.
void print_ratio(std::uint64_t a, std::uint64_t b) {
  const auto thousandths = static_cast<std::int32_t>(b == 0 ? 0 : a * 1000 / b);
  print("", thousandths / 1000);
  print(thousandths % 1000 < 10 ? ".00" : thousandths % 1000 < 100 ? ".0" : ".", thousandths % 1000);
}

template <class DecoderT>
void write_texts(const char* name, DecoderT& decode) {
  const char* const prompts[] = {"ROMEO:\n", "KING RICHARD III:\nMy lord, ", "First Citizen:\nWe will ",
                                 "JULIET:\nO, "};
  std::int32_t rounds = 0, tokens = 0;
  std::uint64_t spent = 0;
  for (const char* const prompt : prompts) {
    token_id ids[40];
    const std::size_t n = pieces.read(prompt, ids);
    decode.begin(std::span<const token_id>(ids, n), {.max_tokens = written});
    // Steps that read the prompt, and the first one that writes, are not counted.
    while (decode.current().written().empty() && decode.step()) {
    }
    const auto before = static_cast<std::int32_t>(decode.current().written().size());
    const std::uint64_t start = instructions();
    while (decode.step())
      ++rounds;
    spent += instructions() - start;
    print(name);
    print("\n");
    print(prompt);
    for (const token_id token : decode.current().written())
      pieces.print_token(token);
    print("\n\n");
    tokens += static_cast<std::int32_t>(decode.current().written().size()) - before;
  }
  print(name);
  print(" rounds ", rounds);
  print(", tokens ", tokens);
  print(", tokens a round ");
  print_ratio(static_cast<std::uint64_t>(tokens), static_cast<std::uint64_t>(rounds));
  print("\n");
  if (counts_instructions) {
    print("# ");
    print(name);
    print(" instructions a token ", static_cast<std::int32_t>(spent / static_cast<std::uint64_t>(tokens)));
    print("\n");
  }
}

bool is_sound = true;

#if ESPALIER_HOSTED

template <int Number, class DrafterOf, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling>
void write(const char* name) {
  if (!is_wanted(Number)) return;
  auto decode =
      composition<DrafterOf, PolicyOf, VerifierOf>()(decoder_options::of(capacity<Sampling, DrafterOf::sampling>));
  write_texts(name, decode);
}

#else

template <int Number, class DrafterOf, auto PolicyOf, auto VerifierOf, const sampling_options& Sampling>
void write(const char* name) {
  if constexpr (is_wanted(Number)) {
    static static_decoder<capacity<Sampling, DrafterOf::sampling>, composition<DrafterOf, PolicyOf, VerifierOf>> decode;
    write_texts(name, decode);
    if (decode.state() == status::failed || decode.used() > decode.bytes) is_sound = false;
    constexpr std::size_t caches = bytes_of_cache(target_shape) + DrafterOf::cache;
    constexpr std::size_t rows = bytes_of_rows + DrafterOf::rows;
    print("# ");
    print(name);
    print(" bytes of the object ", static_cast<std::int32_t>(sizeof decode));
    print(": of caches ", static_cast<std::int32_t>(caches));
    print(", of rows ", static_cast<std::int32_t>(rows));
    print(", of all else ", static_cast<std::int32_t>(sizeof decode - caches - rows));
    print("\n");
  }
}

#endif

}  // namespace

int main() {
  if (target.fault() != nullptr || draft.fault() != nullptr) {
    print(target.fault() != nullptr ? target.fault() : draft.fault());
    print("\n");
    return 1;
  }
  constexpr auto two = [] { return chain({.length = 2}); };
  constexpr auto five = [] { return chain({.length = 5}); };
  constexpr auto adaptive = [] { return adaptive_chain({.length = 5, .max_length = 8}); };
  constexpr auto tree = [] { return delayed({.paths = 2, .trunk = 2, .length = 3}); };
  constexpr auto best = [] { return dyspec_greedy({.budget = 8}); };
  constexpr auto draws = [] { return sampled_chain({.length = 5}); };
  constexpr auto argmax = [] { return greedy(); };
  constexpr auto any = [] { return target_only(); };
  write<1, nothing, [] { return plain(); }, argmax, most_probable>("plain, greedy:");
  write<2, nothing, [] { return plain(); }, any, drawn>("plain, target only:");
  write<3, draft_tokens, two, argmax, most_probable>("chain of 2, greedy:");
  write<4, draft_tokens, five, argmax, most_probable>("chain of 5, greedy:");
  write<5, draft_tokens, five, any, drawn>("chain of 5, target only:");
  write<6, draft_model, adaptive, argmax, most_probable>("adaptive chain, greedy:");
  write<7, draft_model, draws, [] { return naive(); }, drawn>("sampled chain of 5, naive:");
  write<8, draft_model, draws, [] { return block_verification(); }, nucleus>("sampled chain of 5, block verification:");
  write<9, draft_model, tree, argmax, most_probable>("delayed, greedy:");
  write<10, draft_model, tree, [] { return traversal(); }, nucleus>("delayed, traversal:");
  write<11, draft_model, tree, [] { return specinfer(); }, drawn>("delayed, SpecInfer:");
  write<12, draft_model, best, [] { return residual_walk(); }, drawn>("DySpec, residual walk:");
  write<13, draft_model, best, argmax, most_probable>("DySpec, greedy:");
  write<14, earlier_text, five, argmax, most_probable>("prompt lookup of 5, greedy:");
#if !ESPALIER_HOSTED
  print("# bytes of the models ", static_cast<std::int32_t>(sizeof target + sizeof draft));
  print(", of rows of their passes ", most_rows * (bytes_of_row(target_shape) + bytes_of_row(draft_shape)));
  print("\n# bytes of stack used: ", used_stack());
  print("\n");
#endif
  return is_sound ? 0 : 1;
}
