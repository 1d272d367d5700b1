// SPDX-License-Identifier: BSL-1.0
// Steps of many texts on the device in two halves, between which an engine makes the target's passes.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/outside_engine.cuh"
#include "espalier/cuda/backend/outside.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::outside_parts;
using espalier_test::prompt_of;
using espalier_test::run_late;
using espalier_test::vocab;

namespace {

constexpr std::int32_t rows_of_pass = 48;
constexpr std::int32_t max_texts = 3;

const batch_options with_room{.max_texts = max_texts, .prefill_rows = 7};
// Trees are cut, and prompts are read between rounds.
const batch_options short_of_rows{.max_texts = max_texts, .max_rows = 9, .prefill_rows = 7};

template <class KVStoreT = device::contiguous_kv<float>>
struct parts : outside_parts<KVStoreT> {
  using outside_parts<KVStoreT>::outside_parts;
  parts() : outside_parts<KVStoreT>(rows_of_pass, KVStoreT(1, 1, max_texts, 200), KVStoreT(1, 1, max_texts, 200)) {}

  auto chains(const batch_options& options = with_room) {
    return device::make_batch_decoder(this->drafter(), device::chain(), greedy(), this->kv, this->engine.target,
                                      options);
  }
};

// Texts of unlike lengths, some of which begin alike.
struct request {
  std::vector<token_id> prompt;
  stop_conditions stop;
  text_options options{};
};
std::vector<request> some_requests(float temperature = 0) {
  std::vector<request> all;
  for (const std::size_t n : {5U, 60U, 33U, 1U, 34U, 12U}) {
    request r{prompt_of(n), {.max_tokens = 8 + static_cast<std::int32_t>(n % 11)}};
    if (n == 34) r.prompt.back() = 8;
    r.options = {.sampling = {.temperature = temperature}, .seed = n};
    all.push_back(r);
  }
  return all;
}

// What each text has written, as the events have told it.
using texts_type = std::map<text_id, std::vector<token_id>>;

template <class DecoderT>
int note(DecoderT& decode, texts_type& texts) {
  std::vector<text_id> held;
  for (const text_event& e : decode.events()) {
    if (e.failed()) held.push_back(e.id);
    texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
    CHECK(decode.current(e.id).state() == e.round.state);
  }
  for (const text_id id : held)
    decode.resume(id);
  return static_cast<int>(held.size());
}

template <class DecoderT>
void add(DecoderT& decode, const std::vector<request>& requests) {
  for (const request& r : requests)
    decode.add(r.prompt, r.stop, r.options);
}

template <class DecoderT>
texts_type by_steps(DecoderT& decode) {
  texts_type texts;
  while (!decode.idle()) {
    decode.step();
    CHECK(note(decode, texts) == 0);
  }
  return texts;
}

// Calls meanwhile(number) while each pass is under way; if it returns false, the step was given up.
template <class DecoderT, class PartsT>
texts_type by_halves(DecoderT& decode, PartsT& own, const std::function<bool(int)>& meanwhile = {}) {
  texts_type texts;
  for (int number = 0; !decode.idle();) {
    for (device::outside_pass pass = decode.begin_step(); pass;) {
      const vocab_rows<float> logits = own.engine.compute(own.kv, pass);
      if (meanwhile && !meanwhile(number++)) break;
      pass = decode.end_step(logits);
    }
    note(decode, texts);
    REQUIRE(number < 1000);
  }
  return texts;
}

template <class DecoderT>
texts_type expected_of(DecoderT&& decode, const std::vector<request>& requests) {
  add(decode, requests);
  texts_type texts = by_steps(decode);
  for (std::size_t i = 0; i < requests.size(); ++i)
    REQUIRE(std::ssize(texts[static_cast<text_id>(i)]) == requests[i].stop.max_tokens);
  return texts;
}

}  // namespace

TEST_CASE("Many texts on the device are written by halves as by whole steps") {
  for (const batch_options& options : {with_room, short_of_rows}) {
    const texts_type expected = expected_of(parts().chains(options), some_requests());
    for (const bool has_own_stream : {true, false}) {
      parts own;
      own.engine.has_own_stream = has_own_stream;
      run_late(has_own_stream);
      auto decode = own.chains(options);
      add(decode, some_requests());
      CHECK(by_halves(decode, own) == expected);
      CHECK(own.engine.prompt_rows > 4);
      CHECK(own.engine.largest <= options.max_rows);
      CHECK(!decode.begin_step());
    }
  }
  const auto drawn = [](parts<>& own) {
    return device::make_batch_decoder(own.drafter(), device::delayed({.paths = 2, .trunk = 1, .length = 2}),
                                      traversal(), own.kv, own.engine.target, with_room);
  };
  parts<> steps;
  parts<> halves;
  auto decode = drawn(halves);
  add(decode, some_requests(1));
  CHECK(by_halves(decode, halves) == expected_of(drawn(steps), some_requests(1)));
  run_late(false);
}

TEST_CASE("Many texts on the device by halves over a store that shares rows, and whose pages run out") {
  using paged = device::paged_kv<float>;
  const auto make = [](std::int32_t n_pages) {
    return std::make_unique<parts<paged>>(rows_of_pass, paged(1, 1, max_texts, 200, 4, n_pages),
                                          paged(1, 1, max_texts, 200, 4, n_pages));
  };
  const texts_type expected = expected_of(parts().chains(), some_requests());
  for (const std::int32_t n_pages : {150, 28}) {
    const auto own = make(n_pages);
    auto decode = own->chains();
    add(decode, some_requests());
    CHECK(by_halves(decode, *own) == expected);
    add(decode, some_requests());
    texts_type texts;
    std::int32_t preempted = 0;
    for (int i = 0; !decode.idle(); ++i) {
      if (i % 3 == 0) {
        decode.step();
      } else {
        for (device::outside_pass pass = decode.begin_step(); pass;)
          pass = decode.end_step(own->engine.compute(own->kv, pass));
      }
      preempted += decode.last_step().preempted;
      note(decode, texts);
    }
    CHECK((preempted > 0) == (n_pages == 28));
    for (const auto& [id, text] : expected)
      CHECK(texts[id + 6] == text);
  }
}

TEST_CASE("While a pass of the device is made outside, texts are added, forked and cancelled") {
  const texts_type expected = expected_of(parts().chains(), some_requests());
  for (const int n : {0, 1, 3, 6, 10}) {
    INFO("at pass " << n);
    parts own;
    auto decode = own.chains();
    std::vector<request> requests = some_requests();
    const request late = requests.back();
    requests.pop_back();
    add(decode, requests);
    const text_id cancelled = n % 2;
    text_id forked = -1;
    const texts_type texts = by_halves(decode, own, [&](int number) {
      if (number != n) return true;
      decode.add(late.prompt, late.stop, late.options);
      const bool may_fork = decode.current(2).running();
      if (may_fork) forked = decode.fork(2, 1);
      if (decode.current(cancelled).running()) decode.cancel(cancelled);
      return true;
    });
    CHECK(texts.at(5) == expected.at(5));
    for (text_id id = 0; id < 5; ++id) {
      if (id == cancelled) continue;
      CHECK(texts.at(id) == expected.at(id));
    }
    if (forked >= 0) {
      const std::vector<token_id>& whole = expected.at(2);
      const auto own_part = texts.at(forked);
      CHECK(std::equal(own_part.rbegin(), own_part.rend(), whole.rbegin()));
    }
  }
}

TEST_CASE("A pass of the device that fails holds its texts, and a step that is given up holds none") {
  const texts_type expected = expected_of(parts().chains(), some_requests());
  for (const batch_options& options : {with_room, short_of_rows}) {
    for (const int n : {0, 1, 2, 5, 9}) {
      INFO("at pass " << n);
      for (const bool fails : {true, false}) {
        parts own;
        auto decode = own.chains(options);
        add(decode, some_requests());
        texts_type texts;
        int held = 0;
        for (int number = 0; !decode.idle();) {
          for (device::outside_pass pass = decode.begin_step(); pass; ++number) {
            if (number != n) {
              pass = decode.end_step(own.engine.compute(own.kv, pass));
            } else if (fails) {
              pass = decode.fail_pass(std::make_exception_ptr(std::runtime_error("the engine has failed")));
              for (const text_event& e : decode.events())
                if (e.failed()) CHECK(e.message == "the engine has failed");
            } else {
              decode.give_up();
              decode.give_up();  // does nothing
              pass = {};
            }
          }
          held += note(decode, texts);
        }
        CHECK(texts == expected);
        CHECK((held > 0) == fails);
      }
    }
  }
}

TEST_CASE("Whole steps of many texts on the device and halves follow each other") {
  const std::vector<request> requests = some_requests();
  const texts_type expected = expected_of(parts().chains(), requests);
  parts own;
  auto decode = own.chains();
  add(decode, requests);
  texts_type texts;
  int taken_in = 0;
  for (int i = 0; !decode.idle(); ++i) {
    if (i % 5 < 2) {
      decode.step();
    } else {
      device::outside_pass pass = decode.begin_step();
      taken_in += !pass && !decode.events().empty() ? 1 : 0;
      while (pass)
        pass = decode.end_step(own.engine.compute(own.kv, pass));
    }
    note(decode, texts);
  }
  CHECK(texts == expected);
  CHECK(taken_in > 1);
}

TEST_CASE("Halves of many texts on the device in the wrong order are errors that lose nothing") {
  const texts_type expected = expected_of(parts().chains(), some_requests());
  parts own;
  auto decode =
      device::make_batch_decoder(own.drafter(), device::chain(), greedy(), own.kv,
                                 device::outside_backend({.vocab_size = vocab, .max_rows = rows_of_pass}), with_room);
  const auto message_of_end = [&](const vocab_rows<float>& logits) {
    return message_of<input_error>([&] { decode.end_step(logits); });
  };
  const std::string none = "no pass is under way: begin_step() comes first.";
  CHECK(!decode.begin_step());
  CHECK(message_of_end({}) == none);
  CHECK(message_of<input_error>([&] { decode.fail_pass({}); }) == none);
  add(decode, some_requests());
  const std::string begun =
      "a pass is under way: end_step(), fail_pass() or give_up() comes before another step of this decoder.";
  texts_type texts;
  while (!decode.idle()) {
    for (device::outside_pass pass = decode.begin_step(); pass;) {
      CHECK(message_of<input_error>([&] { (void)decode.begin_step(); }) == begun);
      CHECK(message_of<input_error>([&] { (void)decode.step(); }) == begun);
      const vocab_rows<float> logits = own.engine.compute(own.kv, pass);
      CHECK(says(message_of_end({logits.data, logits.n_rows + 1, vocab}), "but was asked for"));
      pass = decode.end_step(logits);
    }
    note(decode, texts);
  }
  CHECK(texts == expected);
  // Without a backend, a whole step holds the texts of its first pass.
  add(decode, some_requests());
  decode.step();
  REQUIRE(!decode.events().empty());
  for (const text_event& e : decode.events())
    CHECK(says(e.message, "call begin_step() and end_step(), not step()"));
}

TEST_CASE("A text of many that has stop strings, and no function for them, is held by itself") {
  const std::vector<request> requests = some_requests();
  const texts_type expected = expected_of(parts().chains(), requests);
  parts own;
  auto decode = own.chains();
  add(decode, requests);
  decode.add(prompt_of(3), {.max_tokens = 9, .strings = {"?"}});
  texts_type texts;
  bool is_held = false;
  while (!decode.idle()) {
    for (device::outside_pass pass = decode.begin_step(); pass;)
      pass = decode.end_step(own.engine.compute(own.kv, pass));
    for (const text_event& e : decode.events()) {
      CHECK(e.failed() == (e.id == 6));
      is_held = is_held || e.failed();
      if (e.failed()) CHECK(says(e.message, "stop strings need the text of each token"));
      texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
    }
  }
  CHECK(is_held);
  texts.erase(6);
  CHECK(texts == expected);
}
