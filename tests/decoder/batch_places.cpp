// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/batch_places.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "decoder/paged_tokens.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using many::request;

namespace {

constexpr sampling_options sampled{.temperature = 1.1F, .top_k = 9};

// Two models over stores of pages.
struct paged_models {
  paged_models(std::int32_t n_texts, std::int32_t page_size, std::int32_t n_pages, std::int32_t n_draft_pages)
      : kv(n_texts, 1000, page_size, n_pages),
        draft_kv(n_texts, 1000, page_size, n_draft_pages),
        target(11, {.seed = 5}),
        draft(11, two_models<>::strayed({.seed = 5})) {}

  auto batch(batch_options options) {
    return make_batch_decoder(autoregressive<counted_backend&, paged_tokens&>(draft, draft_kv), delayed(), traversal(),
                              kv, target, options);
  }

  paged_tokens kv, draft_kv;
  counted_backend target, draft;
};

std::vector<request> with_prefix(std::size_t n, std::size_t length) {
  std::vector<request> all = many::requests(n, sampled);
  std::vector<token_id> prefix(length);
  for (std::size_t i = 0; i < length; ++i)
    prefix[i] = static_cast<token_id>(i * i % 11);
  for (std::size_t i = 0; i < n; ++i) {
    all[i].prompt.resize(std::min<std::size_t>(all[i].prompt.size(), 9));
    all[i].prompt.insert(all[i].prompt.begin(), prefix.begin(), prefix.end());
  }
  return all;
}

// All texts are what they are alone, though some had to give up their places.
template <class DecoderT>
void require_preempted(DecoderT& decode, const std::vector<request>& requests, const many::written_alone& expected) {
  for (const request& r : requests)
    many::add(decode, r);
  std::map<text_id, std::vector<token_id>> texts;
  int preempted = 0;
  many::run_all(decode, texts, [&](int step) {
    REQUIRE(step < 2000);
    preempted += decode.last_step().preempted;
  });
  CHECK(preempted > 0);
  REQUIRE(texts.size() == requests.size());
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
}

}  // namespace

TEST_CASE("what many prompts begin with is computed once, and kept once") {
  constexpr std::int32_t n = 64, page_size = 8, prefix = 500;
  auto requests = with_prefix(n, prefix);
  for (request& r : requests)
    r.max_tokens = 160;
  paged_models m(n, page_size, 64 * 128, 64 * 128);
  auto decode = m.batch({.max_texts = n});
  for (const request& r : requests)
    many::add(decode, r);
  const auto expected = many::alone(requests, delayed(), traversal());
  std::map<text_id, std::vector<token_id>> texts;
  double most = 0;
  std::int64_t prompt_rows = 0;
  many::run_all(decode, texts, [&](int) {
    prompt_rows += decode.last_step().prompt_rows;
    if (!texts.empty() || decode.n_running() < n) return;
    // All texts at once: rows that pages are held for over distinct rows.
    double distinct = prefix;
    for (text_id id = 0; id < n; ++id)
      distinct += decode.current(id).size() - 1 - prefix;
    if (distinct > prefix + 60 * n) most = std::max(most, page_size * (m.kv.n_pages() - m.kv.n_free()) / distinct);
  });
  REQUIRE(texts.size() == requests.size());
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  // The rest of each prompt, and a part of a page, is read with its first round.
  CHECK(prompt_rows <= prefix + page_size);
  CHECK(most > 1);
  CHECK(most < 1.1);
  CHECK(m.kv.n_free() == m.kv.n_pages());
}

TEST_CASE("where pages run out the last text waits, and nothing is lost") {
  const auto requests = many::requests(8, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  const bool of_target = GENERATE(true, false);
  const std::int32_t page_size = GENERATE(1, 5, 16);
  // Enough for the longest text alone, and a little more.
  const std::int32_t few = 260 / page_size + 2, enough = 4000 / page_size;
  paged_models m(5, page_size, of_target ? few : enough, of_target ? enough : few);
  auto decode = m.batch({.max_texts = 5});
  require_preempted(decode, requests, expected);
}

TEST_CASE("the drafter of a cascade gives way, too, where its pages run out, prompts included") {
  const auto requests = many::requests(6, sampled);
  using drafter_type = autoregressive<counted_backend&, paged_tokens&>;
  paged_models m(4, 5, 800, 30);  // the longest text alone takes 29 pages of the draft
  auto decode = make_batch_decoder(joint(drafter_type(m.draft, m.draft_kv), prompt_lookup()),
                                   cascade(dynatree(), chain()), target_only(), m.kv, m.target, {.max_texts = 4});
  require_preempted(decode, requests, many::alone(requests, plain(), target_only()));
}

TEST_CASE("a part that fails where a text takes its place holds it, and loses nothing") {
  struct failing_store : paged_tokens {
    using paged_tokens::paged_tokens;
    int adoptions = 0;
    int adopt(int sequence, std::span<const token_id> tokens) {
      if (++adoptions == 2) throw std::runtime_error("the store failed");
      return paged_tokens::adopt(sequence, tokens);
    }
  };
  failing_store kv(3, 400, 8, 200);
  two_models<> m;
  auto decode = make_batch_decoder(autoregressive<counted_backend&, token_kv&>(m.draft, m.draft_kv), delayed(),
                                   traversal(), kv, m.target, {.max_texts = 3});
  const auto requests = many::requests(3, sampled);
  for (const request& r : requests)
    many::add(decode, r);
  int failed = 0;
  for (const text_event& e : decode.step()) {
    if (!e.error) continue;
    ++failed;
    decode.resume(e.id);
  }
  CHECK(failed == 1);
  const auto texts = many::run_all(decode);
  const auto expected = many::alone(requests, delayed(), traversal());
  CHECK(texts.size() == 3);
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
}

TEST_CASE("places that are free hold no pages") {
  paged_models m(4, 4, 400, 60);
  token_kv kv(400, commit_mode::compact, 4);  // the target's store has no pages
  const auto requests = many::requests(8, sampled);
  const auto check = [&](auto drafter, auto policy, auto verifier) {
    auto decode = make_batch_decoder(drafter, policy, verifier, kv, m.target, {.max_texts = 4});
    for (const request& r : requests)
      many::add(decode, {{r.prompt.begin(), r.prompt.begin() + 1}, 60, r.options});
    CHECK(many::run_all(decode).size() == requests.size());
    CHECK(m.draft_kv.n_free() == m.draft_kv.n_pages());
  };
  using drafter_type = autoregressive<counted_backend&, paged_tokens&>;
  check(drafter_type(m.draft, m.draft_kv), delayed(), traversal());
  check(joint(drafter_type(m.draft, m.draft_kv), prompt_lookup()), cascade(dynatree(), chain()), target_only());
}

TEST_CASE("texts that have ended leave no rows in a store that does not remember them") {
  plain_store kv(400, commit_mode::compact, 4), draft_kv(400, commit_mode::compact, 4);
  two_models<> m;
  auto decode = make_batch_decoder(autoregressive<counted_backend&, plain_store&>(m.draft, draft_kv), delayed(),
                                   traversal(), kv, m.target, {.max_texts = 4});
  const auto requests = many::requests(8, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  for (const request& r : requests)
    many::add(decode, r);
  std::map<text_id, std::vector<token_id>> texts = many::run_all(decode);
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  for (std::int32_t s = 0; s < 4; ++s) {
    CHECK(kv.size(s) == 0);
    CHECK(draft_kv.size(s) == 0);
  }
  // The next turn of one of them is read from its beginning.
  decode.resume(2, std::vector<token_id>{1, 2, 3}, {.max_tokens = 5});
  CHECK(many::run_all(decode).at(2).size() == texts.at(2).size() + 8);
}

TEST_CASE("texts that grow beyond the pages give up few places, and none again and again") {
  constexpr std::int32_t n_texts = 200;
  paged_models m(32, 4, 100, 32 * 20);
  auto decode = m.batch({.max_texts = 32, .max_ended = n_texts});
  const auto requests = [] {
    std::vector<request> all = many::requests(n_texts, sampled);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].prompt.resize(4 + i % 13, static_cast<token_id>(i % 11));
      all[i].max_tokens = 30;
    }
    return all;
  }();
  const auto expected = many::alone(requests, delayed(), traversal());
  for (const request& r : requests)
    many::add(decode, r);
  std::map<text_id, std::vector<token_id>> texts;
  int preempted = 0, most = 0;
  many::run_all(decode, texts, [&](int) {
    preempted += decode.last_step().preempted;
    most = std::max(most, decode.n_running());
  });
  for (const auto& [id, tokens] : texts)
    CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
  CHECK(texts.size() == n_texts);
  CHECK(most > 8);
  CHECK(preempted > 0);
  CHECK(preempted < n_texts);  // it was several thousand where free places were taken as soon as a text had left
}

TEST_CASE("a text of higher priority takes a place though pages have run out, and the last in turn gives way") {
  paged_models m(6, 4, 40, 6 * 40);
  auto decode = m.batch({.max_texts = 6, .max_ended = 100});
  for (int i = 0; i < 20; ++i)
    decode.add(std::vector<token_id>(6, static_cast<token_id>(i % 11)), {.max_tokens = 60});
  int preempted = 0;
  while (preempted == 0) {
    decode.step();
    preempted += decode.last_step().preempted;
  }
  const text_id urgent = many::add(decode, {{1, 2, 3}, 5, {}}, 1);
  int steps = 0;
  for (; decode.current(urgent).running(); ++steps)
    decode.step();
  CHECK(steps <= 6);
}

TEST_CASE("a fork of a lower priority waits behind texts that came later") {
  paged_models m(6, 16, 500, 500);
  auto decode = m.batch({.max_texts = 1});
  const text_id id = decode.add(std::vector<token_id>{1, 2, 3}, {.max_tokens = 8});
  const text_id fork = decode.fork(id, 7, -1);
  const text_id other = decode.add(std::vector<token_id>{4, 5}, {.max_tokens = 8});
  while (decode.current(other).running())
    decode.step();
  CHECK(!decode.current(id).running());
  CHECK(decode.current(fork).written().empty());
}

TEST_CASE("forks go on from the rows that are there") {
  paged_models m(6, 16, 500, 500);
  auto decode = m.batch({.max_texts = 6});
  const auto requests = many::requests(5, sampled);
  const text_id id = many::add(decode, requests[4]);
  while (decode.current(id).written().size() < 5)
    decode.step();
  const std::int32_t size = decode.current(id).size();
  std::vector<text_id> forks;
  for (std::uint32_t stream = 70; stream < 75; ++stream)
    forks.push_back(decode.fork(id, stream));
  m.target.count(size);
  decode.step();
  // The pending token of each.
  CHECK(m.target.text_rows <= 6);
  const auto texts = many::run_all(decode);
  two_models<> alone;
  auto single = alone.decoder(delayed(), traversal());
  const request& r = requests[4];
  for (std::size_t i = 0; i < forks.size(); ++i) {
    single.begin(r.prompt, r.stop(), r.options);
    while (single.current().size() < size)
      single.step();
    REQUIRE(single.current().size() == size);
    single.load(single.save().fork(static_cast<std::uint32_t>(70 + i)));
    CHECK(texts.at(forks[i]) == run(single));
  }
}

TEST_CASE("a text that no pages are left for, alone, is told so; others of the store go on") {
  paged_models m(3, 4, 40, 400);
  // Somebody else uses most of the pages.
  REQUIRE(m.kv.append(2, 140) == 0);
  auto decode = m.batch({.max_texts = 2});
  const std::vector<token_id> prompt(30, 1);
  const text_id id = decode.add(prompt, {.max_tokens = 20});
  std::exception_ptr error;
  for (int i = 0; i < 20 && !error; ++i) {
    for (const text_event& e : decode.step())
      error = e.error;
  }
  REQUIRE(error);
  CHECK(says(message_of<input_error>([&] { std::rethrow_exception(error); }), "no room for a text of", "alone"));
  CHECK(decode.idle());
  m.kv.truncate(2, 0);
  decode.resume(id);
  CHECK(many::run_all(decode).at(id).size() == 50);
}

TEST_CASE("ten thousand short texts, random cancels, and pages for a tenth of them") {
  constexpr std::int32_t n_texts = 20;
  // A text has up to 24 tokens, and its trees.
  paged_models m(n_texts, 4, n_texts * 12 / 10, n_texts * 12 / 8);
  auto decode = m.batch({.max_texts = n_texts, .max_waiting = 100, .max_ended = 5});
  std::mt19937 random(3);
  const auto up_to = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::map<text_id, request> running;
  int added = 0, ended = 0, cancelled = 0, preempted = 0;
  two_models<> reference;
  auto alone = reference.decoder(delayed(), traversal());
  while (added < 10000 || !decode.idle()) {
    for (std::uint32_t i = up_to(4); i > 0 && added < 10000 && decode.n_waiting() < 90; --i, ++added) {
      request r{.prompt = {},
                .max_tokens = static_cast<std::int32_t>(1 + up_to(12)),
                .options = {.sampling = sampled, .seed = random(), .stream = up_to(3)}};
      for (std::uint32_t j = up_to(12) + 1; j > 0; --j)
        r.prompt.push_back(static_cast<token_id>(up_to(3)));
      running[many::add(decode, r, static_cast<std::int32_t>(up_to(2)))] = r;
    }
    if (!running.empty() && up_to(5) == 0) {
      const auto which =
          std::next(running.begin(), static_cast<std::ptrdiff_t>(up_to(static_cast<std::uint32_t>(running.size()))));
      decode.cancel(which->first);
      running.erase(which);
      ++cancelled;
    }
    for (const text_event& e : decode.step()) {
      REQUIRE(!e.error);
      if (e.round.state == status::running) continue;
      const request& r = running.at(e.id);
      if (++ended % 20 == 0) {
        alone.begin(r.prompt, r.stop(), r.options);
        REQUIRE(copy(decode.current(e.id).tokens()) == run(alone));
      }
      running.erase(e.id);
    }
    preempted += decode.last_step().preempted;
  }
  CHECK(running.empty());
  CHECK(ended + cancelled == 10000);
  CHECK(cancelled > 500);
  CHECK(preempted > 100);
  CHECK(m.kv.n_free() == m.kv.n_pages());
  CHECK(m.draft_kv.n_free() == m.draft_kv.n_pages());
}
