// SPDX-License-Identifier: BSL-1.0
// Steps on the device in two halves, between which an engine makes the target's passes.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/outside_engine.cuh"
#include "espalier/concepts/regime.hpp"
#include "espalier/cuda/backend/outside.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/processor/banned_sequences.hpp"
#include "raises.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::named_verifier;
using espalier_test::outside_parts;
using espalier_test::prompt_of;
using espalier_test::run_late;
using espalier_test::vocab;

namespace {

constexpr std::int32_t rows_of_pass = 16;  // a prompt takes several passes
constexpr named_verifier<regime::deterministic> most_probable{"greedy"};
const std::vector<token_id> long_prompt = prompt_of(41);

template <class KVStoreT = device::contiguous_kv<float>>
struct parts : outside_parts<KVStoreT> {
  parts(KVStoreT kv, KVStoreT draft_kv) : outside_parts<KVStoreT>(rows_of_pass, std::move(kv), std::move(draft_kv)) {}
  parts() : parts(KVStoreT(1, 1, 1, 200), KVStoreT(1, 1, 1, 200)) {}

  auto chains() {
    return device::make_decoder(this->drafter(), device::chain(), most_probable, this->kv, this->engine.target);
  }
};

std::vector<token_id> copy(const text& t) {
  return {t.written().begin(), t.written().end()};
}

// The tokens of each round.
using rounds_type = std::vector<std::vector<token_id>>;

template <class DecoderT>
void note(const DecoderT& decode, rounds_type& rounds) {
  const auto committed = decode.last_round().committed;
  rounds.emplace_back(committed.begin(), committed.end());
}

template <class DecoderT>
rounds_type by_steps(DecoderT& decode) {
  rounds_type rounds;
  while (decode.step())
    note(decode, rounds);
  return rounds;
}

template <class DecoderT, class PartsT>
rounds_type by_halves(DecoderT& decode, PartsT& own) {
  rounds_type rounds;
  while (decode.current().running()) {
    for (device::outside_pass pass = decode.begin_step(); pass;)
      pass = decode.end_step(own.engine.compute(own.kv, pass));
    note(decode, rounds);
  }
  return rounds;
}

template <class PolicyT, class VerifierT>
void require_same_rounds(PolicyT policy, const VerifierT& verifier, const text_options& options) {
  parts own;
  auto decode = device::make_decoder(own.drafter(), std::move(policy), verifier, own.kv, own.engine.target);
  for (const std::size_t n : {41U, 1U, 17U}) {
    INFO("a prompt of " << n << " tokens");
    decode.begin(prompt_of(n), {.max_tokens = 30}, options);
    const rounds_type expected = by_steps(decode);
    for (const bool has_own_stream : {true, false}) {
      own.engine.has_own_stream = has_own_stream;
      run_late(has_own_stream);
      own.engine.passes = own.engine.prompt_rows = 0;
      decode.begin(std::vector<token_id>{2}, {.max_tokens = 1});  // the cache forgets the prompt
      (void)by_halves(decode, own);
      decode.begin(prompt_of(n), {.max_tokens = 30}, options);
      CHECK(by_halves(decode, own) == expected);
      CHECK(own.engine.prompt_rows == static_cast<std::int32_t>(n) - 1);
      CHECK(own.engine.passes > 4);
      CHECK(!decode.begin_step());  // the text has ended
    }
  }
}

}  // namespace

TEST_CASE("Steps in two halves on the device write the rounds of whole steps") {
  require_same_rounds(device::dynatree({.budget = 9}), most_probable, {});
  require_same_rounds(device::delayed({.paths = 2, .trunk = 2, .length = 3}), named_verifier<regime::iid>{"traversal"},
                      {.sampling = {.temperature = 1}, .seed = 5});
  run_late(false);
}

TEST_CASE("A decoder on the device without a backend of its own writes by halves alone") {
  static_assert(device::Backend<device::outside_backend<>, device::contiguous_kv<float>>);
  parts own;
  auto expected = own.chains();
  parts other;
  auto decode = device::make_decoder(other.drafter(), device::chain(), most_probable, other.kv,
                                     device::outside_backend({.vocab_size = vocab, .max_rows = rows_of_pass}));
  expected.begin(long_prompt, {.max_tokens = 40});
  decode.begin(long_prompt, {.max_tokens = 40});
  for (int i = 0; i < 2; ++i)
    CHECK(says(message_of<input_error>([&] { decode.step(); }), "call begin_step() and end_step(), not step()"));
  CHECK(by_halves(decode, other) == by_steps(expected));
  CHECK(says(message_of<option_error>([] { device::outside_backend<float>({.vocab_size = 0}); }), "vocab_size"));
}

TEST_CASE("Passes of several decoders on the device are under way at once, and end in any order") {
  using decoder_type = decltype(std::declval<parts<>&>().chains());
  constexpr std::size_t n = 5;
  std::vector<std::unique_ptr<parts<>>> all;
  std::vector<std::unique_ptr<decoder_type>> decoders;
  std::vector<rounds_type> rounds(n), expected(n);
  for (std::size_t i = 0; i < n; ++i) {
    all.push_back(std::make_unique<parts<>>());
    parts<>& own = *all.back();
    decoders.emplace_back(new decoder_type(own.drafter(), device::chain(), most_probable, own.kv, own.engine.target));
    decoders[i]->begin(prompt_of(9 * i + 2), {.max_tokens = 25});
    expected[i] = by_steps(*decoders[i]);
    decoders[i]->begin(std::vector<token_id>{2}, {.max_tokens = 1});
    (void)by_steps(*decoders[i]);
    decoders[i]->begin(prompt_of(9 * i + 2), {.max_tokens = 25});
  }
  struct made {
    std::size_t i;
    vocab_rows<float> logits;
  };
  std::vector<made> waiting;
  const auto go_on = [&](std::size_t i, device::outside_pass pass, std::size_t turn) {
    while (!pass && decoders[i]->current().running())
      pass = decoders[i]->begin_step();
    if (!pass) return;
    const made m{i, all[i]->engine.compute(all[i]->kv, pass)};
    waiting.insert(waiting.begin() + static_cast<std::ptrdiff_t>(turn % (waiting.size() + 1)), m);
  };
  for (std::size_t i = 0; i < n; ++i)
    go_on(i, {}, i);
  CHECK(waiting.size() == n);
  for (std::size_t turn = 0; !waiting.empty(); ++turn) {
    const made m = waiting.back();
    waiting.pop_back();
    const device::outside_pass pass = decoders[m.i]->end_step(m.logits);
    if (!pass) note(*decoders[m.i], rounds[m.i]);
    go_on(m.i, pass, turn);
  }
  CHECK(rounds == expected);
}

TEST_CASE("A step on the device may be given up at any pass, and the text stands at its last committed token") {
  const auto check = [](auto own) {
    auto decode = device::make_decoder(own->drafter(), device::chain(), most_probable, own->kv, own->engine.target);
    decode.begin(long_prompt, {.max_tokens = 12});
    (void)by_steps(decode);
    const std::vector<token_id> expected = copy(decode.current());
    for (int n = 0; n < 8; ++n) {
      decode.begin(std::vector<token_id>{2}, {.max_tokens = 1});
      (void)by_steps(decode);
      decode.begin(long_prompt, {.max_tokens = 12});
      std::vector<token_id> before;
      for (int number = 0; number <= n && decode.current().running();) {
        for (device::outside_pass pass = decode.begin_step(); pass;) {
          before = copy(decode.current());
          if (number++ == n) break;
          pass = decode.end_step(own->engine.compute(own->kv, pass));
        }
      }
      decode.give_up();
      CHECK(copy(decode.current()) == before);
      n % 2 == 0 ? by_steps(decode) : by_halves(decode, *own);
      CHECK(copy(decode.current()) == expected);
    }
    // Another text begins in the middle of a step, and this one goes on in the middle of one.
    decode.begin(long_prompt, {.max_tokens = 12});
    CHECK(decode.begin_step());
    decode.begin(prompt_of(5), {.max_tokens = 9});
    (void)by_halves(decode, *own);
    const std::vector<token_id> other = copy(decode.current());
    decode.begin(prompt_of(5), {.max_tokens = 9});
    (void)by_steps(decode);
    CHECK(copy(decode.current()) == other);
    decode.begin(long_prompt, {.max_tokens = 5});
    (void)by_halves(decode, *own);
    decode.resume({}, {.max_tokens = 7});
    CHECK(decode.begin_step());
    decode.resume({}, {.max_tokens = 7});
    (void)by_halves(decode, *own);
    CHECK(std::vector(decode.current().tokens().begin(), decode.current().tokens().end()).size() == 41 + 12);
    CHECK(std::equal(expected.begin(), expected.end(), decode.current().tokens().begin() + 41));
  };
  check(std::make_unique<parts<>>());
  using paged = device::paged_kv<float>;
  check(std::make_unique<parts<paged>>(paged(1, 1, 1, 200, 4), paged(1, 1, 1, 200, 4)));
}

TEST_CASE("Halves on the device in the wrong order, and logits of another shape, are errors that lose nothing") {
  parts own;
  auto decode = own.chains();
  const auto message_of_end = [&](const vocab_rows<float>& logits) {
    return message_of<input_error>([&] { decode.end_step(logits); });
  };
  CHECK(!decode.begin_step());
  CHECK(message_of_end({}) == "no pass is under way: begin_step() comes first.");
  decode.begin(long_prompt, {.max_tokens = 40, .strings = {"?"}});
  const auto piece_of = [](token_id) { return std::string_view("x"); };
  const std::string_view begun =
      "a pass is under way: end_step() or give_up() comes before another step of this decoder.";
  int passes = 0;
  while (decode.current().running()) {
    for (device::outside_pass pass = decode.begin_step(); pass; ++passes) {
      CHECK(message_of<input_error>([&] { (void)decode.begin_step(); }) == begun);
      CHECK(message_of<input_error>([&] { (void)decode.step(piece_of); }) == begun);
      const vocab_rows<float> logits = own.engine.compute(own.kv, pass);
      CHECK(says(message_of_end({logits.data, logits.n_rows + 1, vocab}), "but was asked for"));
      if (logits.n_rows > 0) {
        CHECK(says(message_of_end({logits.data, logits.n_rows, vocab - 1}), "logits, but was asked for"));
        CHECK(says(message_of_end(logits), "stop strings need the text of each token"));
      }
      pass = decode.end_step(logits, piece_of);
    }
  }
  CHECK(message_of_end({}) == "no pass is under way: begin_step() comes first.");
  CHECK(passes > 4);
  const std::vector<token_id> text = copy(decode.current());
  decode.begin(long_prompt, {.max_tokens = 40});
  (void)by_steps(decode);
  CHECK(copy(decode.current()) == text);
}

TEST_CASE("Logits that are no numbers are found in the same step, and the text goes on after it") {
  parts own;
  auto decode = own.chains();
  decode.begin(long_prompt, {.max_tokens = 12});
  (void)by_steps(decode);
  const std::vector<token_id> expected = copy(decode.current());
  const device::device_array<float> wrong(static_cast<std::size_t>(rows_of_pass) * vocab);
  wrong.fill_bytes(0xFF, nullptr);
  device::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  decode.begin(long_prompt, {.max_tokens = 12});
  for (int i = 0; decode.current().running(); ++i) {
    for (device::outside_pass pass = decode.begin_step(); pass;) {
      vocab_rows<float> logits = own.engine.compute(own.kv, pass);
      if (i % 2 == 0 && pass.batch.n_outputs > 0) {
        logits.data = wrong.data();
        const std::vector<token_id> before = copy(decode.current());
        CHECK_THROWS_AS(decode.end_step(logits), numeric_error);
        CHECK(copy(decode.current()) == before);
        break;
      }
      pass = decode.end_step(logits);
    }
  }
  CHECK(copy(decode.current()) == expected);
}

TEST_CASE("Whole steps on the device and halves follow each other in one text") {
  parts own;
  auto decode = own.chains();
  decode.begin(long_prompt, {.max_tokens = 60});
  const rounds_type expected = by_steps(decode);
  rounds_type rounds;
  decode.begin(long_prompt, {.max_tokens = 60});
  for (int i = 0; decode.current().running(); ++i) {
    if (i % 5 < 2) {
      decode.step();
    } else {
      const bool is_first = i % 5 == 2;
      device::outside_pass pass = decode.begin_step();
      // step() has enqueued this round ahead, but for the last one.
      CHECK((!pass) == is_first);
      while (pass)
        pass = decode.end_step(own.engine.compute(own.kv, pass));
    }
    note(decode, rounds);
  }
  CHECK(rounds == expected);
  // A text that is only to be read.
  decode.begin(prompt_of(50), {.max_tokens = 0});
  own.engine.prompt_rows = 0;
  CHECK(by_halves(decode, own) == rounds_type(1));
  CHECK(own.engine.prompt_rows == 8);  // the cache holds 41 of its tokens
  CHECK(decode.current().state() == status::length);
}

TEST_CASE("A processor changes the logits that an engine hands over") {
  parts own;
  const auto with = [&](banned_sequences process) {
    return device::make_decoder(device::prompt_lookup(), device::chain(), most_probable, own.kv, own.engine.target, {},
                                std::move(process));
  };
  auto plain = with({});
  plain.begin(long_prompt, {.max_tokens = 30});
  (void)by_steps(plain);
  std::vector<token_id> used = copy(plain.current());
  auto decode = with(banned_sequences({{used[1]}, {used[0], used[1]}}, vocab));
  decode.begin(long_prompt, {.max_tokens = 30});
  const rounds_type expected = by_steps(decode);
  const std::vector<token_id> text = copy(decode.current());
  CHECK(std::find(text.begin(), text.end(), used[1]) == text.end());
  decode.begin(long_prompt, {.max_tokens = 30});
  CHECK(by_halves(decode, own) == expected);
}

#ifdef ESPALIER_TEST_EMULATES
TEST_CASE("The first half of a round waits for nothing, and the other half for its outcome alone") {
  parts own;
  auto decode = own.chains();
  decode.begin(long_prompt, {.max_tokens = 40});
  for (int i = 0; decode.current().running(); ++i) {
    emulator::reset();
    device::outside_pass pass = decode.begin_step();
    const auto waits = [] {
      return emulator::calls("cudaStreamSynchronize") + emulator::calls("cudaEventSynchronize") +
             emulator::calls("cudaDeviceSynchronize");
    };
    if (i > 0) CHECK(waits() == 0);
    while (pass && pass.batch.n_outputs == 0) {
      CHECK(waits() == 0);
      pass = decode.end_step(own.engine.compute(own.kv, pass));
    }
    const vocab_rows<float> logits = own.engine.compute(own.kv, pass);
    emulator::reset();
    decode.end_step(logits);
    if (decode.current().running()) CHECK(waits() == 1);
    CHECK(emulator::calls("cudaMalloc") == 0);
    CHECK(emulator::calls("cudaGraphLaunch") == 0);
  }
}
#endif
