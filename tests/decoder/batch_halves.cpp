// SPDX-License-Identifier: BSL-1.0
// Steps of many texts in two halves, between which somebody else makes the passes: the target's, and the draft's.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "decoder/paged_tokens.hpp"
#include "espalier/backend/outside.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using many::request;

namespace {

constexpr sampling_options greedily{.temperature = 0};
constexpr sampling_options sampled{.temperature = 1.1F, .top_k = 9};

using texts_type = std::map<text_id, std::vector<token_id>>;

// An engine with both models and their caches, of 400 tokens in each of n sequences: it makes a pass of either, and
// keeps the logits until the next one.
template <class KVStoreT = token_kv>
struct engine {
  KVStoreT kv, draft_kv;
  counted_backend target{11, {.seed = 5}}, draft{11, two_models<>::strayed({.seed = 5})};
  std::vector<float> logits{};
  int target_passes = 0, draft_passes = 0;

  vocab_rows<float> compute(const outside_pass& pass) {
    ++(pass.is_draft() ? draft_passes : target_passes);
    const auto rows = pass.is_draft() ? draft.forward(draft_kv, pass.batch) : target.forward(kv, pass.batch);
    logits.assign(rows.data, rows.data + rows.n_rows * rows.vocab);
    return {logits.data(), rows.n_rows, rows.vocab};
  }

  // A drafter whose passes the engine makes.
  auto outside_draft() { return autoregressive<outside_backend<>, KVStoreT&>(outside_backend(11), draft_kv); }
};

engine<> engine_of(std::int32_t n_texts) {
  return {token_kv(400, commit_mode::compact, n_texts), token_kv(400, commit_mode::compact, n_texts)};
}

template <class EngineT, class DrafterT, class PolicyT, class VerifierT>
auto batch_of(EngineT& own, DrafterT&& drafter, PolicyT policy, VerifierT verifier, batch_options options) {
  return make_batch_decoder(std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), own.kv,
                            outside_backend(11), std::move(options));
}

// Notes what the last step has told. Texts that a failure holds are resumed.
template <class DecoderT>
int note(DecoderT& decode, texts_type& texts) {
  std::vector<text_id> held;
  for (const text_event& e : decode.events()) {
    if (e.error) held.push_back(e.id);
    if (e.round.state != status::running) texts[e.id] = copy(decode.current(e.id).tokens());
  }
  for (const text_id id : held)
    decode.resume(id);
  return static_cast<int>(held.size());
}

// Writes all texts by halves. Calls meanwhile(pass, number) while each pass is under way.
template <class DecoderT, class EngineT, class MeanwhileT>
void run_halves(DecoderT& decode, EngineT& own, texts_type& texts, const MeanwhileT& meanwhile) {
  for (int n = 0; !decode.idle();) {
    for (outside_pass pass = decode.begin_step(); pass;) {
      const vocab_rows<float> rows = own.compute(pass);
      meanwhile(pass, n++);
      pass = decode.end_step(rows, models::piece_of);
    }
    note(decode, texts);
  }
}

template <class DecoderT, class EngineT>
void require_by_halves(DecoderT& decode, EngineT& own, const std::vector<request>& requests,
                       const many::written_alone& expected) {
  for (const request& r : requests)
    many::add(decode, r);
  texts_type texts;
  run_halves(decode, own, texts, [](const outside_pass&, int) {});
  REQUIRE(texts.size() == requests.size());
  for (const auto& [id, tokens] : texts) {
    INFO("text " << id);
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  }
}

}  // namespace

TEST_CASE("many texts are written by halves as each is alone, whoever makes the draft's passes") {
  const auto check = [](auto policy, auto verifier, const sampling_options& sampling, bool shares = true) {
    const auto requests = many::requests(5, sampling);
    const auto expected = many::alone(requests, policy, verifier);
    for (const std::int32_t n : {1, 3}) {
      const batch_options options{.max_texts = n, .prefill_rows = 13, .share_budget = shares};
      engine own = engine_of(n);
      auto outside = batch_of(own, own.outside_draft(), policy, verifier, options);
      require_by_halves(outside, own, requests, expected);
      CHECK(own.draft_passes > 3);
      engine other = engine_of(n);
      autoregressive drafter(other.draft, other.draft_kv);
      auto inside = batch_of(other, drafter, policy, verifier, options);
      require_by_halves(inside, other, requests, expected);
      CHECK(other.draft_passes == 0);
      CHECK(other.draft.passes == own.draft.passes);
    }
  };
  check(best_first(), greedy(), greedily);
  check(cost_aware(), greedy(), greedily);
  check(eagle2({.budget = 6}), greedy(), greedily);
  check(dynatree(), target_only(), sampled);
  check(cost_aware_draws(), target_only(), sampled);
  check(delayed(), traversal(), sampled);
  check(plain(), greedy(), greedily, false);
}

TEST_CASE("64 texts by halves") {
  auto requests = many::requests(64, greedily);
  for (request& r : requests)
    r.prompt.resize(1 + r.prompt.size() % 50, 4);
  const auto expected = many::alone(requests, chain(), greedy());
  for (const std::int32_t n : {64, 20}) {
    engine own = engine_of(n);
    auto decode = batch_of(own, own.outside_draft(), chain(), greedy(), {.max_texts = n, .max_rows = 150});
    require_by_halves(decode, own, requests, expected);
    CHECK(own.target.largest <= 150);
  }
}

TEST_CASE("a cascade of a draft that an engine makes and one that asks nobody") {
  const auto requests = many::requests(5, greedily);
  engine own = engine_of(3);
  joint drafter(prompt_lookup(), own.outside_draft());
  auto decode = batch_of(own, drafter, cascade(chain(), dynatree()), greedy(), {.max_texts = 3});
  for (const request& r : requests)
    many::add(decode, r);
  texts_type texts;
  run_halves(decode, own, texts, [](const outside_pass& pass, int) { CHECK((pass.drafter == 1 || !pass.is_draft())); });
  const auto expected = many::alone(requests, plain(), greedy());
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  CHECK(texts.size() == 5);
  CHECK(own.draft_passes > 10);
}

TEST_CASE("passes of several batches are under way at once, come late and end in any order") {
  constexpr std::size_t n_decoders = 4;
  const auto requests = many::requests(6, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  using decoder_type = decltype(batch_of(std::declval<engine<>&>(), std::declval<engine<>&>().outside_draft(),
                                         delayed(), traversal(), {}));
  std::vector<engine<>> engines(n_decoders, engine_of(2));
  std::vector<std::unique_ptr<decoder_type>> decoders;
  std::vector<texts_type> texts(n_decoders);
  std::vector<std::pair<std::size_t, vocab_rows<float>>> made;
  const auto go_on = [&](std::size_t i, outside_pass pass) {
    while (!pass) {
      note(*decoders[i], texts[i]);
      if (decoders[i]->idle()) return;
      pass = decoders[i]->begin_step();
    }
    made.emplace_back(i, engines[i].compute(pass));
  };
  for (std::size_t i = 0; i < n_decoders; ++i) {
    decoders.push_back(std::make_unique<decoder_type>(engines[i].outside_draft(), delayed(), traversal(), engines[i].kv,
                                                      outside_backend(11), batch_options{.max_texts = 2}));
    for (std::size_t r = i; r < requests.size(); ++r)
      many::add(*decoders[i], requests[r]);
    go_on(i, {});
  }
  for (std::size_t turn = 0; !made.empty(); ++turn) {
    const auto at = made.begin() + static_cast<std::ptrdiff_t>(turn * 7 % made.size());
    const auto [i, rows] = *at;
    made.erase(at);
    go_on(i, decoders[i]->end_step(rows));
  }
  for (std::size_t i = 0; i < n_decoders; ++i) {
    CHECK(texts[i].size() == requests.size() - i);
    for (const auto& [id, tokens] : texts[i])
      CHECK(tokens == expected.texts[static_cast<std::size_t>(id) + i]);
  }
}

TEST_CASE("texts are added, forked and cancelled while a pass is under way, and harm no other text") {
  const auto requests = many::requests(5, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  int n_passes = 1;
  for (int n = 0; n < n_passes; ++n) {
    INFO("pass " << n);
    engine<paged_tokens> own{paged_tokens(3, 400, 4, 300), paged_tokens(3, 400, 4, 300)};
    auto decode = batch_of(own, own.outside_draft(), delayed(), traversal(), {.max_texts = 3, .prefill_rows = 9});
    std::map<text_id, std::size_t> request_of;
    for (const std::size_t i : {0U, 2U, 3U})
      request_of[many::add(decode, requests[i])] = i;
    int n_cancelled = 0, in_all = 0;
    texts_type texts;
    run_halves(decode, own, texts, [&](const outside_pass&, int number) {
      in_all = number + 1;
      if (number != n) return;
      const std::int32_t n_free = own.kv.n_free(), n_draft_free = own.draft_kv.n_free();
      for (const text_id id : {1, 2}) {
        if (texts.count(id) != 0) continue;
        ++n_cancelled;
        decode.cancel(id);
        CHECK(says(message_of<input_error>([&] { decode.current(id); }), "is not known"));
        CHECK(says(message_of<input_error>([&] { decode.cancel(id); }), "is not known"));
      }
      // The engine may still write the slots of the pass.
      CHECK(own.kv.n_free() == n_free);
      CHECK(own.draft_kv.n_free() == n_draft_free);
      CHECK(!decode.idle());
      for (const std::size_t i : {1U, 4U})
        request_of[many::add(decode, requests[i])] = i;
      if (texts.count(0) == 0) (void)decode.fork(0, 9);
    });
    n_passes = n == 0 ? 40 : n_passes;
    if (in_all <= n) break;
    CHECK(n_cancelled + static_cast<int>(texts.size()) >= 5);
    for (const auto& [id, i] : request_of) {
      if (texts.count(id) != 0) CHECK(texts.at(id) == expected.texts[i]);
    }
    CHECK(own.kv.n_free() == own.kv.n_pages());
    CHECK(own.draft_kv.n_free() == own.draft_kv.n_pages());
  }
  CHECK(n_passes == 40);
}

TEST_CASE("an engine that fails at any pass holds the texts of that pass alone, and a step may be given up") {
  const auto requests = many::requests(5, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  int held_by_draft = 0, held_by_target = 0;
  for (int n = 0; n < 60; ++n) {
    INFO("pass " << n);
    const bool gives_up = n % 2 == 1;
    engine own = engine_of(3);
    auto decode = batch_of(own, own.outside_draft(), delayed(), traversal(), {.max_texts = 3, .prefill_rows = 9});
    for (const request& r : requests)
      many::add(decode, r);
    texts_type texts;
    int held = 0;
    for (int pass_number = 0; !decode.idle();) {
      for (outside_pass pass = decode.begin_step(); pass;) {
        if (pass_number++ != n / 2) {
          pass = decode.end_step(own.compute(pass));
        } else if (gives_up) {
          decode.give_up();
          pass = {};
          for (const text_event& e : decode.events())
            CHECK(!e.error);
        } else {
          // Torn in the middle: the slots hold anything.
          token_kv& kv = pass.is_draft() ? own.draft_kv : own.kv;
          const bool is_draft = pass.is_draft();
          for (const batch_sequence& s : pass.batch.sequences) {
            for (std::int32_t r = s.row_begin; r < s.row_end; ++r)
              kv.token(s.sequence, pass.batch.slots[static_cast<std::size_t>(r)]) = -77;
          }
          pass = decode.fail_pass(std::make_exception_ptr(std::runtime_error("the engine failed")));
          while (pass)
            pass = decode.end_step(own.compute(pass));
          for (const text_event& e : decode.events()) {
            if (!e.error) continue;
            CHECK(message_of<std::runtime_error>([&] { std::rethrow_exception(e.error); }) == "the engine failed");
            ++(is_draft ? held_by_draft : held_by_target);
          }
        }
      }
      held += note(decode, texts);
    }
    CHECK((gives_up ? held == 0 : held >= 1 && held <= 3));
    REQUIRE(texts.size() == requests.size());
    for (const auto& [id, tokens] : texts)
      CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  }
  CHECK(held_by_draft > 5);
  CHECK(held_by_target > 5);
}

TEST_CASE("halves in the wrong order, and logits of another shape, are refused and harm nothing") {
  const auto requests = many::requests(3, greedily);
  const auto expected = many::alone(requests, dynatree(), greedy());
  engine own = engine_of(3);
  auto decode = batch_of(own, own.outside_draft(), dynatree(), greedy(), {.max_texts = 3});
  const auto message = [&](const auto& f) { return message_of<input_error>(f); };
  const std::string none = "no pass is under way: begin_step() comes first.";
  CHECK(message([&] { decode.end_step({}); }) == none);
  CHECK(message([&] { decode.fail_pass({}); }) == none);
  decode.give_up();
  CHECK(!decode.begin_step());  // there is no text
  CHECK(message([&] { decode.end_step({}); }) == none);
  for (const request& r : requests)
    many::add(decode, r);
  texts_type texts;
  const std::string under_way =
      "a pass is under way: end_step(), fail_pass() or give_up() comes before another step of this decoder.";
  run_halves(decode, own, texts, [&](const outside_pass& pass, int) {
    REQUIRE(message([&] { decode.step(); }) == under_way);
    REQUIRE(message([&] { decode.begin_step(); }) == under_way);
    REQUIRE(says(message([&] { decode.fail_pass({}); }), "fail_pass() needs the error"));
    const auto n = static_cast<std::int32_t>(pass.batch.outputs.size());
    const std::string asked = "asked for " + std::to_string(n) + " rows of 11";
    REQUIRE(says(message([&] { decode.end_step({own.logits.data(), n + 1, 11}); }), asked));
    if (n > 0) REQUIRE(says(message([&] { decode.end_step({own.logits.data(), n, 12}); }), asked));
  });
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  CHECK(texts.size() == 3);
  CHECK(message([&] { decode.end_step({}); }) == none);
}

TEST_CASE("stop strings without a function from token to text hold the text that has them") {
  engine own = engine_of(2);
  auto decode = batch_of(own, own.outside_draft(), chain(), greedy(), {.max_texts = 2});
  const std::vector<token_id> prompt{1, 2, 3};
  const text_id stops = decode.add(prompt, {.strings = {"x"}}), other = decode.add(prompt, {.max_tokens = 20});
  for (outside_pass pass = decode.begin_step(); pass;)
    pass = decode.end_step(own.compute(pass));
  REQUIRE(decode.events().size() == 2);
  for (const text_event& e : decode.events()) {
    CHECK((e.id == stops) == static_cast<bool>(e.error));
    if (e.error)
      CHECK(says(message_of<input_error>([&] { std::rethrow_exception(e.error); }), "stop strings need the text"));
    CHECK((e.id == other) == !e.round.committed.empty());
  }
}

TEST_CASE("step() of a decoder without a backend of its own says what to call") {
  engine own = engine_of(2);
  auto decode = batch_of(own, own.outside_draft(), chain(), greedy(), {.max_texts = 2});
  (void)decode.add(std::vector<token_id>{1, 2, 3}, {.max_tokens = 5});
  const auto events = decode.step();
  REQUIRE(events.size() == 1);
  REQUIRE(events[0].error);
  CHECK(says(message_of<input_error>([&] { std::rethrow_exception(events[0].error); }),
             "call begin_step() and end_step(), not step()"));
}

TEST_CASE("halves of a step of many texts allocate nothing once warm") {
  engine own = engine_of(3);
  auto decode = batch_of(own, own.outside_draft(), delayed(), traversal(), {.max_texts = 3, .max_ended = 2});
  const auto requests = many::requests(8, sampled);
  std::int64_t allocations = 0;
  for (int time = 0; time < 3; ++time) {
    const allocation_count count;
    std::size_t next = 0;
    while (next < requests.size() || !decode.idle()) {
      for (outside_pass pass = decode.begin_step(); pass;) {
        if (next < requests.size()) {
          many::add(decode, requests[next]);
          if (next % 3 == 2) decode.cancel(static_cast<text_id>(next) + 8 * time - 1);
          ++next;
        }
        pass = decode.end_step(own.compute(pass));
      }
      if (next < requests.size() && decode.idle()) many::add(decode, requests[next++]);
    }
    allocations = count.so_far();
  }
  CHECK(allocations == 0);
}
