// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/round.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "decoder/counted.hpp"
#include "decoder/many_texts.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/target_only.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// How often each limit was told of the rounds of a text, and how often of steps that read a part of the prompt.
using counts = std::map<tree_limit, int>;

template <class DecoderT>
counts limits_of(DecoderT& decode, const std::vector<token_id>& prompt, stop_conditions stop,
                 const text_options& options = {.sampling = {.temperature = 0}}) {
  counts found;
  statistics all;
  decode.begin(prompt, std::move(stop), options);
  while (decode.step()) {
    ++found[decode.last_round().limited_by];
    all(decode.last_round());
  }
  // Statistics count the same, but for steps that are no round.
  for (std::size_t i = 1; i < n_tree_limits; ++i) {
    const auto at = found.find(static_cast<tree_limit>(i));
    CHECK(all.limited_by[i] == (at == found.end() ? 0 : at->second));
  }
  return found;
}

const std::vector<token_id> prompt{1, 2, 3};

}  // namespace

TEST_CASE("a tree that is as large as its policy may draft is limited by the budget, a smaller one by the policy") {
  two_models<> m;
  auto decode = m.decoder(chain({.length = 4}), greedy());
  counts found = limits_of(decode, prompt, {.max_tokens = 30});
  CHECK(found[tree_limit::budget] > 3);
  auto shallow = m.decoder(fixed({.depth = 2, .breadth = 2, .budget = 20}), greedy());
  found = limits_of(shallow, prompt, {.max_tokens = 30});
  CHECK(found[tree_limit::policy] > 3);
  CHECK(found[tree_limit::budget] == 0);
  auto none = m.decoder(plain(), greedy());
  found = limits_of(none, prompt, {.max_tokens = 5});
  CHECK(found == counts{{tree_limit::policy, 5}});
}

TEST_CASE("nothing is drafted for the last token, and a step that reads a prompt has no tree") {
  two_models<> m;
  auto decode = m.decoder(chain({.length = 4}), greedy(), {.prefill_rows = 8});
  const counts found = limits_of(decode, std::vector<token_id>(30, 1), {.max_tokens = 1});
  CHECK(found == counts{{tree_limit::none, 3}, {tree_limit::last_token, 1}});
}

TEST_CASE("a tree ends where the text's context ends, or the draft's cache") {
  two_models<> m;
  m.kv = token_kv(20, commit_mode::compact, 3);
  auto decode = m.decoder(chain({.length = 6}), greedy());
  counts found = limits_of(decode, prompt, {.max_tokens = 100});
  CHECK(found[tree_limit::context] >= 1);
  CHECK(found[tree_limit::draft_capacity] == 0);
  two_models<> other;
  other.draft_kv = token_kv(20, commit_mode::compact, 3);
  auto short_draft = other.decoder(chain({.length = 6}), greedy());
  found = limits_of(short_draft, prompt, {.max_tokens = 40});
  CHECK(found[tree_limit::draft_capacity] >= 10);
  CHECK(found[tree_limit::context] == 0);
}

TEST_CASE("trees that would not pay are limited by their price, and drafts that gain nothing by a pause") {
  const cost_curve pass = cost_curve::linear(0.001, 0.0001);
  cost_model dear{{}, {}, {}, cost_curve::linear(10, 0), pass};
  two_models<> m;
  auto decode = m.decoder(cost_aware({.budget = 6}, dear), greedy());
  counts found = limits_of(decode, prompt, {.max_tokens = 30});
  CHECK(found[tree_limit::price] > 20);
  auto draws = m.decoder(cost_aware_draws({.budget = 6}, dear), residual_walk());
  found = limits_of(draws, prompt, {.max_tokens = 30}, {.sampling = {.temperature = 1}, .seed = 1});
  CHECK(found[tree_limit::price] > 20);
  // A draft that has nothing to do with the target.
  two_models<> strayed({.seed = 5});
  strayed.draft = counted_backend(11, {.seed = 77});
  const cost_model cheap{{}, {}, {}, cost_curve::linear(0.0004, 0), pass};
  auto paused = strayed.decoder(cost_aware({.budget = 6}, cheap), target_only());
  found = limits_of(paused, prompt, {.max_tokens = 200});
  CHECK(found[tree_limit::pause] > 3);
  auto paused_draws = strayed.decoder(cost_aware_draws({.budget = 6}, cheap), residual_walk());
  found = limits_of(paused_draws, prompt, {.max_tokens = 200}, {.sampling = {.temperature = 0.3F}, .seed = 1});
  CHECK(found[tree_limit::pause] > 3);
}

TEST_CASE("a text that is not drafted for says so, among others that are") {
  two_models<> m({.seed = 5}, commit_mode::compact, commit_mode::compact, 4);
  // Beyond two rows each row costs as much as a pass.
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.05, 0.001), cost_curve::of_grid({1, 4, 5}, {0}, {1, 1, 2})};
  auto decode = make_batch_decoder(m.drafter(), cost_aware({.budget = 4}, costs), target_only(), m.kv, m.target,
                                   {.max_texts = 4});
  for (const many::request& r : many::requests(4, {.temperature = 0}))
    many::add(decode, {r.prompt, 10, r.options});
  counts found;
  while (!decode.idle()) {
    for (const text_event& e : decode.step())
      ++found[e.round.limited_by];
  }
  CHECK(found[tree_limit::not_drafting] > 3);
}

TEST_CASE("rounds draft no more than their pass has time for, and say so") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(10, 0), cost_curve::linear(0.001, 0.0001)};
  two_models<> plain_models;
  const std::vector<token_id> expected = [&] {
    auto decode = plain_models.decoder(fixed({.depth = 3, .breadth = 2, .budget = 14}), greedy());
    decode.begin(prompt, {.max_tokens = 60});
    return run(decode);
  }();
  for (const auto& [budget, rows] : {std::pair(0.00101, 1), {0.00131, 4}, {0.00211, 12}, {1.0, 17}}) {
    two_models<> m;
    auto decode =
        m.decoder(fixed({.depth = 3, .breadth = 2, .budget = 14}), greedy(), {.costs = costs, .time_budget = budget});
    counts found = limits_of(decode, prompt, {.max_tokens = 60});
    INFO(rows << " rows");
    // The first round takes the prompt's three tokens with it.
    CHECK(m.target.largest == std::max<int>(rows, 3));
    CHECK((found[tree_limit::time] > 5) == (rows < 17));
    CHECK((found[tree_limit::budget] > 5) == (rows == 17));
    CHECK(copy(decode.current().tokens()) == expected);
  }
  // A policy that asks about more nodes than it drafts is not hindered by a limit beyond what it drafts.
  two_models<> asks, free;
  auto limited =
      asks.decoder(eagle2({.beam = 4, .depth = 4, .budget = 6}), greedy(), {.costs = costs, .time_budget = 0.00181});
  auto unlimited = free.decoder(eagle2({.beam = 4, .depth = 4, .budget = 6}), greedy());
  limits_of(limited, prompt, {.max_tokens = 40});
  limits_of(unlimited, prompt, {.max_tokens = 40});
  CHECK(asks.draft.rows == free.draft.rows);
  CHECK(asks.target.rows == free.target.rows);
}

TEST_CASE("the texts of a pass share what it has time for") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(10, 0), cost_curve::linear(0.001, 0.0001)};
  const auto requests = many::requests(4, {.temperature = 0});
  const auto expected = many::alone(requests, chain({.length = 6}), greedy());
  for (const std::int32_t rows : {3, 7, 20}) {
    two_models<> m({.seed = 5}, commit_mode::compact, commit_mode::compact, 4);
    auto decode = make_batch_decoder(
        m.drafter(), chain({.length = 6}), greedy(), m.kv, m.target,
        {.max_texts = 4, .prefill_rows = 8, .costs = costs, .time_budget = 0.0009 + 0.0001 * rows + 1e-9});
    for (const many::request& r : requests)
      many::add(decode, r);
    counts found;
    std::int32_t most_drafted = 0;
    while (!decode.idle()) {
      std::int32_t needed = 0, drafted = 0;
      for (const text_event& e : decode.step()) {
        ++found[e.round.limited_by];
        needed += e.round.forwarded_rows - e.round.tree.n_draws;
        drafted += e.round.tree.n_draws;
        if (e.round.state != status::running)
          CHECK(copy(decode.current(e.id).tokens()) == expected.texts[static_cast<std::size_t>(e.id)]);
      }
      CHECK(drafted <= std::max(0, rows - needed));
      CHECK(decode.last_step().target_rows <= std::max(rows, needed));
      most_drafted = std::max(most_drafted, drafted);
    }
    CHECK(found[tree_limit::time] > 5);
    CHECK((most_drafted > 0) == (rows > 1));
    // A text that is alone has all of it.
    if (rows == 7) CHECK(found[tree_limit::budget] > 0);
  }
}

TEST_CASE("a time budget needs costs, and costs need a time budget") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(10, 0), cost_curve::linear(0.001, 0.0001)};
  two_models<> m;
  const auto message = [&](const auto& options) {
    return message_of<option_error>([&] {
      if constexpr (std::is_same_v<std::decay_t<decltype(options)>, batch_options>)
        make_batch_decoder(m.drafter(), chain(), greedy(), m.kv, m.target, options);
      else
        m.decoder(chain(), greedy(), options);
    });
  };
  CHECK(says(message(decoder_options{.time_budget = 0.02}), "time_budget is 0.02 seconds", "no costs are given"));
  CHECK(says(message(batch_options{.time_budget = 0.02}), "time_budget is 0.02 seconds", "no costs are given"));
  CHECK(says(message(decoder_options{.costs = costs}), "without a time_budget"));
  CHECK(says(message(batch_options{.costs = costs}), "without a time_budget"));
  CHECK(says(message(decoder_options{.costs = costs, .time_budget = -1}), "time_budget is -1, but must lie between 0"));
}

TEST_CASE("a run that a processor cuts is limited by the processor") {
  two_models<> m;
  auto decode = make_decoder(prompt_lookup({.max_ngram = 1}), chain({.length = 6}), greedy(), m.kv, m.target, {},
                             banned_sequences({{7}}, 11));
  // After each token of the prompt comes the forbidden one, and the target never writes it.
  std::vector<token_id> with_forbidden;
  for (token_id t = 0; t < 11; ++t)
    with_forbidden.insert(with_forbidden.end(), {t, t == 7 ? 1 : 7});
  const counts found = limits_of(decode, with_forbidden, {.max_tokens = 12});
  CHECK(found.count(tree_limit::processor) == 1);
}

TEST_CASE("why a tree is not larger follows from its room first, and else is what is said of it") {
  const auto limit = [](std::int32_t n, detail::tree_room room) {
    return detail::limit_of(n, room, tree_limit::shared_rows);
  };
  const detail::tree_room wide{.left = 9, .context = 50, .draft = 40, .budget = 6};
  const auto with = [&](const auto& change) {
    detail::tree_room room = wide;
    change(room);
    return room;
  };
  CHECK(limit(6, wide) == tree_limit::budget);
  CHECK(limit(5, wide) == tree_limit::shared_rows);
  CHECK(limit(0, with([](auto& r) { r.left = 1; })) == tree_limit::last_token);
  CHECK(limit(0, with([](auto& r) { r.is_drafted_for = false; })) == tree_limit::shared_rows);
  CHECK(limit(4, with([](auto& r) { r.context = 4; })) == tree_limit::context);
  CHECK(limit(3, with([](auto& r) { r.context = 4; })) == tree_limit::shared_rows);
  CHECK(limit(4, with([](auto& r) { r.draft = 4; })) == tree_limit::draft_capacity);
  CHECK(limit(4, with([](auto& r) { r.context = r.draft = 4; })) == tree_limit::context);
  CHECK(limit(6, with([](auto& r) { r.context = r.draft = 6; })) == tree_limit::budget);
  CHECK(limit(4, with([](auto& r) { r.time = 4; })) == tree_limit::time);
  CHECK(limit(3, with([](auto& r) { r.time = 4; })) == tree_limit::shared_rows);
  CHECK(limit(0, with([](auto& r) { r.time = 0; })) == tree_limit::time);
  CHECK(limit(6, with([](auto& r) { r.time = 6; })) == tree_limit::budget);
  CHECK(limit(4, with([](auto& r) { r.context = r.time = 4; })) == tree_limit::context);
  CHECK(limit(4, with([](auto& r) { r.context = 5, r.time = 4; })) == tree_limit::time);
  CHECK(limit(0, with([](auto& r) { r.draft = -3; })) == tree_limit::draft_capacity);
  CHECK(limit(0, with([](auto& r) { r.budget = 0; })) == tree_limit::policy);
}
