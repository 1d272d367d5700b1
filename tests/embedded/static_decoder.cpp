// SPDX-License-Identifier: BSL-1.0
// A decoder without a heap, on the host: compiled with ESPALIER_HOSTED=0 and without exceptions, so without Catch2.
// Whatever asks the heap for memory ends the program.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/message_text.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/static_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"

void* operator new(std::size_t) {
  std::abort();
}
void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}

using namespace espalier;

namespace {

int n_failed = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  ++n_failed;
  std::printf("FAILED: %s\n", what);
}

template <class NumberT>
bool reads(NumberT value, std::string_view expected) {
  detail::message_text text;
  text += value;
  if (std::string_view(text.c_str()) == expected) return true;
  std::printf("%s is not %.*s\n", text.c_str(), static_cast<int>(expected.size()), expected.data());
  return false;
}

void numbers_are_written() {
  expect(reads(0LL, "0") && reads(-12LL, "-12"), "integers");
  expect(reads((std::numeric_limits<long long>::min)(), "-9223372036854775808"), "the least integer");
  expect(reads((std::numeric_limits<unsigned long long>::max)(), "18446744073709551615"), "the largest natural number");
  expect(reads(0.0, "0") && reads(1.0, "1") && reads(-1.25, "-1.25") && reads(0.5, "0.5"), "short decimals");
  expect(reads(120.0, "120") && reads(123456.0, "123456") && reads(0.001234, "0.001234"), "zeros around the point");
  expect(reads(1234567.0, "1.23457e+06") && reads(2.5e-7, "2.5e-07") && reads(6.02214076e23, "6.02214e+23"), "powers");
  for (int exponent = -310; exponent < 309; ++exponent) {
    for (const char* digits : {"1", "1.25", "9.99999", "4.2", "-7.03125"}) {
      char text[40];
      std::snprintf(text, sizeof text, "%se%d", digits, exponent);
      const double value = std::strtod(text, nullptr);
      std::snprintf(text, sizeof text, "%g", value);
      expect(reads(value, text), "numbers as printf has them");
    }
  }
  expect(reads(0.9999999, "1") && reads(999999.9, "1e+06"), "what is rounded up");
  expect(reads(std::numeric_limits<double>::infinity(), "inf") && reads(std::nan(""), "nan"), "what is no number");
  detail::message_text text;
  for (int i = 0; i < 100; ++i)
    text += "0123456789";
  expect(std::string_view(text.c_str()).size() == 239, "a long message is cut");
}

void lists_take_memory_of_an_arena() {
  alignas(arena::alignment) static std::byte memory[64];
  arena room(memory, sizeof memory);
  arena::current() = &room;
  detail::list<std::int32_t> numbers(3, 7);
  expect(room.used() == 16 && arena::bytes_of<std::int32_t>(3) == 16, "pieces begin on multiples of 8 bytes");
  numbers.push_back(1);
  expect(room.used() == 16 + 24 && numbers.capacity() == 6, "a list that is full takes twice as much");
  detail::list<std::int32_t> other(std::move(numbers));
  expect(other.size() == 4 && other.back() == 1 && other[0] == 7 && numbers.empty(), "a list is moved");
  other.resize(2);
  other.resize(3);
  expect(other[1] == 7 && other[2] == 0, "what a list grows by is 0");
  arena::current() = nullptr;
}

constexpr std::int32_t vocab = 8;

// Prefers the token three after the last one.
struct cyclic_model {
  std::int32_t n_passes = 0;
  std::int32_t failing_pass = -1;
  float bad_logit = 0;
  float logits[80 * vocab] = {};

  std::int32_t vocab_size() const { return vocab; }
  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT&, forward_batch_view batch) {
    if (n_passes++ == failing_pass) return {};
    std::int32_t n = 0;
    for (const std::int32_t row : batch.outputs) {
      for (std::int32_t t = 0; t < vocab; ++t)
        logits[n * vocab + t] = static_cast<float>((t + 2 * batch.tokens[static_cast<std::size_t>(row)] + 4) % vocab);
      if (n_passes == failing_pass) logits[n * vocab] = bad_logit;
      ++n;
    }
    return {logits, n, vocab};
  }
};

cyclic_model target, draft;

template <std::int32_t Length>
struct factory {
  auto operator()(const decoder_options& options) const {
    return make_decoder(autoregressive(draft, token_kv(32)), chain({.length = Length}), greedy(), token_kv(32), target,
                        options);
  }
};
constexpr static_capacity room{.nodes = 4, .context = 32, .vocabulary = vocab};

template <class DecoderT>
bool is_right(const DecoderT& decode, std::size_t n) {
  const std::span<const token_id> tokens = decode.current().tokens();
  for (std::size_t i = tokens.size() - decode.current().written().size(); i < tokens.size(); ++i) {
    std::int32_t best = 0;
    for (std::int32_t t = 0; t < vocab; ++t)
      if ((t + 2 * tokens[i - 1] + 4) % vocab > (best + 2 * tokens[i - 1] + 4) % vocab) best = t;
    if (tokens[i] != best) return false;
  }
  return decode.current().written().size() == n;
}

void a_text_is_written() {
  static static_decoder<room, factory<4>> decode;
  const token_id prompt[] = {1, 2, 3};
  expect(decode.state() == status::idle, "no text has begun");
  expect(decode.used() == decode.bytes, "lists take what was computed");
  expect(sizeof decode >= decode.bytes, "all of it is in the object");
  expect(decode.begin(prompt, {.max_tokens = 20}) == status::running, "a text begins");
  std::int32_t rounds = 0;
  while (decode.step())
    ++rounds;
  expect(decode.state() == status::length && is_right(decode, 20), "the text is the target's");
  expect(rounds == 4, "the draft is right: five tokens a round");
  expect(decode.last_round().seconds.total() == 0, "there is no clock");

  decode.begin(prompt);
  while (decode.step()) {
  }
  expect(decode.state() == status::context_full && is_right(decode, 29), "a text fills its context");

  const token_id stop[] = {decode.current().written()[6]};
  decode.begin(prompt, {.tokens = stop});
  while (decode.step()) {
  }
  expect(decode.state() == status::stop_token, "a stop token ends a text");
}

struct factory_with_rows {
  auto operator()(const decoder_options& options) const {
    return make_decoder(autoregressive(draft, contiguous_kv(2, 3, 1, 32)), chain({.length = 4}), greedy(),
                        contiguous_kv(2, 3, 1, 32), target, options);
  }
};

constexpr static_capacity room_for_rows{.nodes = 4, .context = 32, .vocabulary = vocab, .cache_row = 6};

void caches_may_hold_rows() {
  static static_decoder<room_for_rows, factory_with_rows> decode;
  expect(decode.used() == decode.bytes, "caches take what was computed");
  expect(decode.bytes == static_decoder<room, factory<4>>::bytes + 2 * (2 * 6 - 1) * 32 * sizeof(float), "rows are in");
  const token_id prompt[] = {1, 2, 3};
  decode.begin(prompt, {.max_tokens = 20});
  while (decode.step()) {
  }
  expect(decode.state() == status::length && is_right(decode, 20), "a text over rows");
}

struct factory_with_small_draft {
  auto operator()(const decoder_options& options) const {
    return make_decoder(autoregressive(draft, contiguous_kv(1, 2, 1, 16)), chain({.length = 4}), greedy(),
                        contiguous_kv(2, 3, 1, 32), target, options);
  }
};
constexpr static_capacity room_for_small_draft{
    .nodes = 4, .context = 32, .vocabulary = vocab, .prefill_rows = 32, .cache_row = 6, .draft_cache_row = 2};
constexpr static_capacity room_for_as_wide_a_draft{
    .nodes = 4, .context = 32, .vocabulary = vocab, .prefill_rows = 32, .cache_row = 6};

// A draft's rows are smaller than the target's, and its cache shorter than the text.
void a_draft_may_be_smaller() {
  static static_decoder<room_for_small_draft, factory_with_small_draft> decode;
  using as_wide = static_decoder<room_for_as_wide_a_draft, factory_with_small_draft>;
  expect(as_wide::bytes == decode.bytes + 2 * (6 - 2) * 32 * sizeof(float), "each cache has rows of its own size");
  static const token_id prompt[24] = {1, 2, 3};
  for (const std::size_t n : {3U, 17U, 24U}) {
    expect(decode.begin({prompt, n}, {.max_tokens = 5}) == status::running, "a text begins");
    std::int32_t rounds = 0;
    while (decode.step())
      ++rounds;
    expect(decode.state() == status::length && is_right(decode, 5), "where the draft ends, the target goes on alone");
    expect(rounds == (n == 3 ? 1 : 5), "a text that does not fit its cache is not drafted for");
  }
}

struct factory_of_trunk {
  auto operator()(const decoder_options& options) const {
    return make_decoder(autoregressive(draft, token_kv(32)), delayed({.paths = 16, .trunk = 4, .length = 0}),
                        specinfer(), token_kv(32), target, options);
  }
};
constexpr static_capacity room_for_trunk{
    .nodes = 4, .context = 32, .vocabulary = vocab, .target = {.temperature = 1.0F}};

void paths_take_room_where_there_are_some() {
  static static_decoder<room_for_trunk, factory_of_trunk> decode;
  const token_id prompt[] = {1, 2, 3};
  expect(decode.begin(prompt, {.max_tokens = 20}) == status::running, "a trunk alone has one path, whatever they say");
  while (decode.step()) {
  }
  expect(decode.state() == status::length, "a text over a trunk");
}

void caches_are_not_shared() {
  static_assert(!std::is_copy_constructible_v<detail::unset_numbers<float>>);
  static_assert(!std::is_copy_constructible_v<contiguous_kv> && std::is_move_constructible_v<contiguous_kv>);
  alignas(arena::alignment) static std::byte memory[64];
  arena place(memory, sizeof memory);
  arena::current() = &place;
  detail::unset_numbers<float> from;
  from.resize(4);
  float* const numbers = from.get();
  const detail::unset_numbers<float> to(std::move(from));
  expect(to.get() == numbers && from.get() == nullptr, "numbers are moved, and then no one else's");
  arena::current() = nullptr;
}

void what_fails_is_a_status() {
  static static_decoder<room, factory<4>> decode;
  const token_id prompt[] = {1, 2, 3}, unknown[] = {1, 8};
  const std::array<token_id, 33> long_prompt{};
  expect(decode.begin(prompt, {.max_tokens = 10}) == status::running && decode.step(), "a text begins");
  const std::size_t n = decode.current().written().size();
  expect(decode.begin({}) == status::failed, "an empty prompt");
  expect(decode.begin(long_prompt) == status::failed, "a prompt that does not fit");
  expect(std::string_view(decode.message()).starts_with("a prompt of 33 tokens leaves no room"), "its sentence");
  expect(decode.begin(unknown) == status::failed, "a token outside the vocabulary");
  expect(!decode.step() && decode.state() == status::failed, "no step is made of a text that has not begun");
  expect(std::string_view(decode.message()) == "token 1 of the prompt is 8, but the vocabulary ends at 7.", "its own");
  expect(decode.begin(prompt, {}, {.log_probs = 2}) == status::failed, "what would take memory");
  expect(decode.begin(prompt, {}, {.sampling = {.temperature = 1}}) == status::failed, "what the verifier cannot do");
  expect(decode.current().written().size() == n, "the text before then still stands");

  for (cyclic_model* const model : {&target, &draft}) {
    for (const float bad : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
      expect(decode.begin(prompt, {.max_tokens = 20}) == status::running, "a text begins after a failure");
      decode.step();
      const std::size_t written = decode.current().written().size();
      model->bad_logit = bad;
      model->failing_pass = bad == 0 ? model->n_passes : model->n_passes + 1;
      expect(!decode.step() && decode.state() == status::failed, "a pass that fails");
      model->failing_pass = -1;
      expect(decode.current().written().size() == written, "the text stands at its last committed token");
      while (decode.step()) {
      }
      expect(decode.state() == status::length && is_right(decode, 20), "the text goes on");
    }
  }
}

void what_is_too_large_is_not_built() {
  static static_decoder<room, factory<5>> decode;
  const token_id prompt[] = {1};
  expect(decode.state() == status::failed && decode.begin(prompt) == status::failed && !decode.step(),
         "too many nodes");
  expect(std::string_view(decode.message()).find("does not fit") != std::string_view::npos, "the sentence says so");
  static static_decoder<room, factory<2000>> out_of_range;
  expect(out_of_range.state() == status::failed, "an option out of range");
  expect(std::string_view(out_of_range.message()).starts_with("option length is 2000"), "the sentence names it");
}

double seconds = 0;

void a_clock_may_be_given() {
  stopwatch::clock() = [] { return seconds += 0.5; };
  stopwatch watch;
  expect(watch.lap() == 0.5 && watch.lap() == 0.5, "the user's clock is read");
  stopwatch::clock() = nullptr;
}

}  // namespace

int main() {
  numbers_are_written();
  lists_take_memory_of_an_arena();
  a_text_is_written();
  caches_may_hold_rows();
  a_draft_may_be_smaller();
  paths_take_room_where_there_are_some();
  caches_are_not_shared();
  what_fails_is_a_status();
  what_is_too_large_is_not_built();
  a_clock_may_be_given();
  if (n_failed == 0) std::printf("a static_decoder of %zu bytes\n", sizeof(static_decoder<room, factory<4>>));
  return n_failed == 0 ? 0 : 1;
}
