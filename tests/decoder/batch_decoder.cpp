// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/batch_decoder.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using many::request;

namespace {

constexpr sampling_options greedily{.temperature = 0};
constexpr sampling_options sampled{.temperature = 1.1F, .top_k = 9};

two_models<> models_for(std::int32_t n_texts, commit_mode mode = commit_mode::compact) {
  return two_models<>({.seed = 5}, mode, mode, n_texts);
}

template <class PolicyT, class VerifierT>
auto batch_of(two_models<>& m, PolicyT policy, VerifierT verifier, batch_options options = {}) {
  return make_batch_decoder(m.drafter(), std::move(policy), std::move(verifier), m.kv, m.target, options);
}

template <class DecoderT>
void require_alone(DecoderT& decode, const std::vector<request>& requests, const many::written_alone& expected) {
  for (const request& r : requests)
    many::add(decode, r);
  const auto texts = many::run_all(decode);
  REQUIRE(texts.size() == requests.size());
  for (const auto& [id, tokens] : texts) {
    INFO("text " << id);
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  }
}

}  // namespace

TEST_CASE("a text is the same alone and in any batch") {
  const auto check = [](auto policy, auto verifier, const sampling_options& sampling, bool shared = true) {
    const auto requests = many::requests(5, sampling);
    const auto expected = many::alone(requests, policy, verifier);
    for (const std::int32_t n : {1, 3}) {
      two_models<> m = models_for(n);
      auto decode = batch_of(m, policy, verifier, {.max_texts = n, .share_budget = shared});
      require_alone(decode, requests, expected);
    }
  };
  check(best_first(), greedy(), greedily);
  check(cost_aware(), greedy(), greedily);
  check(dynatree(), target_only(), sampled);
  check(specinfer_static(), khisti(), sampled);
  check(cost_aware(), target_only(), sampled);
  check(cost_aware_draws(), target_only(), sampled);
  check(cost_aware_draws(), residual_walk(), sampled, false);
}

TEST_CASE("the text does not depend on order, priority, rows of a pass, chunks, or how a store commits") {
  const auto requests = many::requests(8, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const std::int32_t prefill_rows : {1, 7, 64}) {
      for (const std::int32_t max_rows : {20, 50, 1 << 20}) {
        two_models<> m = models_for(4, mode);
        auto decode =
            batch_of(m, delayed(), traversal(), {.max_texts = 4, .max_rows = max_rows, .prefill_rows = prefill_rows});
        for (std::size_t i = requests.size(); i-- > 0;)
          many::add(decode, requests[i], static_cast<std::int32_t>(i % 3));
        for (const auto& [id, tokens] : many::run_all(decode))
          CHECK(tokens == expected.texts[requests.size() - 1 - static_cast<std::size_t>(id)]);
        CHECK(m.target.largest <= max_rows);
      }
    }
  }
}

TEST_CASE("a text that joins at any step is the one that it is alone, and so are those that it joins") {
  const auto requests = many::requests(3, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  for (int join = 0; join < 12; ++join) {
    for (int leave = join; leave < 14; ++leave) {
      two_models<> m = models_for(3);
      auto decode = batch_of(m, delayed(), traversal(), {.max_texts = 3});
      std::map<text_id, std::vector<token_id>> texts;
      const text_id first = many::add(decode, requests[0]);
      const text_id second = many::add(decode, requests[2]);
      text_id joined = -1;
      many::run_all(decode, texts, [&](int step) {
        if (step == join) joined = many::add(decode, requests[1]);
        if (step == leave && texts.count(second) == 0) decode.cancel(second);
      });
      CHECK(texts.at(first) == expected.texts[0]);
      if (joined >= 0) CHECK(texts.at(joined) == expected.texts[1]);
      if (texts.count(second) != 0) CHECK(texts.at(second) == expected.texts[2]);
    }
  }
}

TEST_CASE("one pass of the target a step, and as many of the draft as the deepest tree needs") {
  auto requests = many::requests(8, greedily);
  for (request& r : requests)
    r.prompt.resize(20, 3);
  const auto expected = many::alone(requests, dynatree(), greedy());
  two_models<> m = models_for(8);
  auto decode = batch_of(m, dynatree(), greedy(), {.prefill_rows = 400});
  for (const request& r : requests)
    many::add(decode, r);
  std::map<text_id, std::vector<token_id>> texts;
  int draft_passes = 0;
  const int steps = many::run_all(decode, texts, [&](int) {
    CHECK(decode.last_step().draft_passes <= dynatree_options().max_depth);
    draft_passes += decode.last_step().draft_passes;
  });
  // The prompts are read in one step.
  CHECK(steps <= 1 + *std::max_element(expected.rounds.begin(), expected.rounds.end()));
  CHECK(m.target.passes <= steps);
  CHECK(m.draft.passes == draft_passes);
}

TEST_CASE("drafters without models, several drafters of a text, and none") {
  const auto requests = many::requests(5, greedily);
  const auto expected = many::alone(requests, plain(), greedy());
  SECTION("look-up") {
    two_models<> m = models_for(3);
    auto decode = make_batch_decoder(prompt_lookup(), chain(), greedy(), m.kv, m.target, {.max_texts = 3});
    require_alone(decode, requests, expected);
  }
  SECTION("runs, as far as they pay for all together") {
    two_models<> m = models_for(3);
    auto decode = make_batch_decoder(prompt_lookup(), cost_aware(), greedy(), m.kv, m.target, {.max_texts = 3});
    require_alone(decode, requests, expected);
  }
  SECTION("a cascade") {
    two_models<> m = models_for(3);
    joint drafter(m.drafter(), prompt_lookup());
    auto decode = make_batch_decoder(drafter, cascade(dynatree(), chain()), greedy(), m.kv, m.target, {.max_texts = 3});
    require_alone(decode, requests, expected);
    CHECK(m.draft.passes > 0);
  }
  SECTION("none") {
    two_models<> m = models_for(3);
    auto decode = make_batch_decoder(no_drafter(), plain(), greedy(), m.kv, m.target, {.max_texts = 3});
    require_alone(decode, requests, expected);
  }
}

TEST_CASE("texts can be cancelled, forked, saved, resumed and added again") {
  two_models<> m = models_for(4);
  auto alone = m.decoder(delayed(), traversal());
  const auto requests = many::requests(4, sampled);
  const request& r = requests[1];
  alone.begin(r.prompt, r.stop(), r.options);
  step_round(alone);
  step_round(alone);
  auto branch = alone.save().fork(77);
  const std::vector<token_id> whole = run(alone);
  alone.resume(r.prompt, r.stop());
  const std::vector<token_id> two_turns = run(alone);
  alone.load(branch);
  const std::vector<token_id> forked = run(alone);

  two_models<> many_models = models_for(4);
  auto decode = batch_of(many_models, delayed(), traversal(), {.max_texts = 4});
  const text_id other = many::add(decode, requests[2]);
  const text_id id = many::add(decode, r);
  int rounds = 0;
  while (rounds < 2) {
    for (const text_event& e : decode.step())
      rounds += e.id == id && !e.round.committed.empty() ? 1 : 0;
  }
  const text_id fork = decode.fork(id, 77);
  const saved_text<delayed> saved = decode.save(id);
  decode.cancel(other);
  auto texts = many::run_all(decode);
  CHECK(texts.count(other) == 0);
  CHECK(texts.at(id) == whole);
  CHECK(texts.at(fork) == forked);
  decode.resume(id, r.prompt, r.stop());
  const text_id again = decode.add(saved);
  texts = many::run_all(decode);
  CHECK(texts.at(id) == two_turns);
  CHECK(texts.at(again) == whole);
}

TEST_CASE("texts begin with nothing that the decoder's policy had learnt before") {
  const auto requests = many::requests(2, greedily);
  two_models<> first = models_for(1), learnt = models_for(1), fresh = models_for(1);
  auto before = first.decoder(cost_aware(), greedy());
  before.begin(requests[1].prompt, {.max_tokens = 200}, requests[1].options);
  run(before);
  auto decode = batch_of(learnt, before.policy(), greedy(), {.max_texts = 1});
  auto expected = batch_of(fresh, cost_aware(), greedy(), {.max_texts = 1});
  for (const request& r : requests)
    many::add(decode, r), many::add(expected, r);
  CHECK(many::run_all(decode) == many::run_all(expected));
  CHECK(learnt.target.rows == fresh.target.rows);
  CHECK(learnt.draft.rows == fresh.draft.rows);
}

TEST_CASE("each text may have a policy of its own") {
  const auto requests = many::requests(3, sampled);
  const delayed_options base;
  const std::vector<delayed> policies{
      delayed(), delayed({.paths = base.length, .trunk = base.trunk, .length = base.paths}), delayed()};
  two_models<> m = models_for(3);
  auto decode = batch_of(m, delayed(), traversal(), {.max_texts = 3});
  REQUIRE(policies[1].max_nodes() == policies[0].max_nodes());
  for (std::size_t i = 0; i < 3; ++i)
    decode.add(requests[i].prompt, requests[i].stop(), requests[i].options, {.policy = policies[i]});
  const auto texts = many::run_all(decode);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(texts.at(static_cast<text_id>(i)) == many::alone({requests[i]}, policies[i], traversal()).texts[0]);
  CHECK(message_of<option_error>([&] {
          decode.add(requests[0].prompt, {}, requests[0].options, {.policy = delayed({.paths = 7})});
        }).find("both need the same options") != std::string::npos);
}

TEST_CASE("a text of which nothing is to be written is read, and ends") {
  const auto check = [](auto policy) {
    two_models<> m = models_for(2);
    auto decode = batch_of(m, policy, target_only(), {.max_texts = 2, .prefill_rows = 7});
    const text_id id = decode.add(std::vector<token_id>(30, 1), {.max_tokens = 0});
    const text_id other = decode.add(std::vector<token_id>(5, 2), {.max_tokens = 20});
    int steps = 0;
    for (; !decode.idle() && steps < 100; ++steps)
      decode.step();
    CHECK(steps < 100);
    CHECK(decode.current(id).state() == status::length);
    CHECK(decode.current(id).size() == 30);
    CHECK(decode.current(other).size() == 25);
    // Its rows are there for whoever goes on with it.
    decode.resume(id, {}, {.max_tokens = 1});
    m.target.count(31);
    while (!decode.idle())
      decode.step();
    CHECK(m.target.text_rows <= 2);
  };
  check(dynatree());
  check(cost_aware());
}

TEST_CASE("where no draft can pay, the draft model is never asked, until it can") {
  two_models<> m = models_for(4);
  // Beyond two rows each row costs as much as a pass.
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.05, 0.001), cost_curve::of_grid({1, 4, 5}, {0}, {1, 1, 2})};
  auto decode = batch_of(m, cost_aware({.budget = 4}, costs), target_only(), {.max_texts = 4});
  for (const request& r : many::requests(4, greedily))
    many::add(decode, {r.prompt, 10, r.options});
  many::add(decode, {{1, 2, 3}, 60, {.sampling = greedily}});
  // Two texts may draft, three may not.
  while (decode.n_running() + decode.n_waiting() > 2) {
    decode.step();
    CHECK(m.draft.passes == 0);
  }
  const text& last = decode.current(4);
  const std::int32_t before = last.size(), rounds = last.round();
  while (!decode.idle())
    decode.step();
  CHECK(m.draft.passes > 0);
  CHECK(last.round() - rounds < last.size() - before);
}

TEST_CASE("a batch decoder says what cannot be") {
  two_models<> m = models_for(2);
  auto decode = batch_of(m, chain(), greedy(), {.max_texts = 2, .max_waiting = 1, .max_ended = 1});
  const auto message = [&](const auto& f) { return message_of<input_error>(f); };
  const std::vector<token_id> prompt{1, 2, 3};
  const stop_conditions stop{.max_tokens = 5};
  CHECK(says(message([&] { decode.cancel(0); }), "text 0", "not known"));
  CHECK(says(message([&] { decode.add({}, stop); }), "prompt is empty"));
  CHECK(says(message([&] { decode.add(std::vector<token_id>(401, 1), stop); }), "401 tokens", "context of 400"));
  const text_id first = decode.add(prompt, stop);
  CHECK(first == 0);
  CHECK(says(message([&] { decode.resume(first); }), "text 0 is still written"));
  decode.add(prompt, stop);
  decode.add(prompt, stop);
  CHECK(says(message([&] { decode.add(prompt, stop); }), "3 texts wait already", "no more than max_waiting (1) may",
             "free places (2)"));
  while (!decode.idle())
    decode.step();
  CHECK(decode.step().empty());
  CHECK(says(message([&] { decode.current(first); }), "text 0", "has ended, and later ones after it"));
  CHECK(decode.current(2).state() == status::length);
  decode.add(prompt, {.strings = {"x"}});
  const auto events = decode.step();
  REQUIRE(events.size() == 1);
  REQUIRE(events[0].error);
  CHECK(says(message([&] { std::rethrow_exception(events[0].error); }), "stop strings need the text of each token"));
  CHECK(says(message([&] { decode.resume(3, prompt); }), "cannot take more tokens or other stop conditions"));
  CHECK(says(message([&] { decode.resume(3, {}, {.max_tokens = 3}); }), "cannot take more tokens or other stop"));
  CHECK(message_of<option_error>([&] { batch_of(m, chain(), greedy(), {.max_rows = 5}); }).find("up to 6") !=
        std::string::npos);
  CHECK(says(message([&] { batch_of(m, chain(), greedy(), {.max_texts = 3}); }), "sequence 2 does not exist"));
}

TEST_CASE("a step allocates nothing once warm, nor does a text that joins or leaves") {
  two_models<> m = models_for(3);
  auto decode = batch_of(m, delayed(), traversal(), {.max_texts = 3, .max_ended = 2});
  const auto requests = many::requests(8, sampled);
  std::int64_t allocations = 0;
  for (int time = 0; time < 3; ++time) {
    const allocation_count count;
    std::size_t next = 0;
    while (next < requests.size() || !decode.idle()) {
      if (next < requests.size()) {
        many::add(decode, requests[next]);
        if (next % 3 == 2) decode.cancel(static_cast<text_id>(next) + 8 * time - 1);
        ++next;
      }
      decode.step();
    }
    allocations = count.so_far();
  }
  CHECK(allocations == 0);
}
