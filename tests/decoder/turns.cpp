// SPDX-License-Identifier: BSL-1.0
// What is forwarded when a text goes on, begins like another, or is written over a cache that somebody else has filled.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "decoder/counted.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6};

std::vector<token_id> some_tokens(std::size_t n) {
  std::vector<token_id> tokens(n);
  for (std::size_t i = 0; i < n; ++i)
    tokens[i] = static_cast<token_id>(i * i % 11);
  return tokens;
}

std::vector<token_id> joined(std::vector<token_id> a, const std::vector<token_id>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

enum class ending { completed, cancelled, failed };

// A turn of n tokens after a text that has ended in this way.
template <class KVStoreT, class PolicyT>
void check_turn(PolicyT policy, commit_mode mode, commit_mode draft_mode, ending how, std::size_t n) {
  two_models<KVStoreT> m({.seed = 5}, mode, draft_mode);
  auto decode = m.decoder(policy, greedy());
  decode.begin(prompt, {.max_tokens = how == ending::completed ? 25 : 300});
  for (int i = 0; how == ending::completed || i < 4; ++i) {
    if (!decode.step()) break;
  }
  const int accepted = decode.last_round().accepted();
  const bool drafted = decode.last_round().tree.n_nodes > 1;
  if (how == ending::failed) {
    m.target.fails = true;
    REQUIRE_THROWS_AS(decode.step(), std::runtime_error);
    m.target.fails = false;
  }
  const auto before = static_cast<int>(decode.current().tokens().size());
  const int dropped = before - 1 - m.kv.size(0);
  REQUIRE(dropped >= 0);
  REQUIRE(dropped <= (mode == commit_mode::compact ? 0 : accepted));
  // The draft may not have been asked about the last token that was accepted, and never about the one that was pending.
  const int unread = before - m.draft_kv.size(0);
  if (drafted) REQUIRE(unread <= 2 + (draft_mode == commit_mode::compact ? 0 : accepted));
  decode.resume(some_tokens(n), {.max_tokens = 20});
  m.count(decode.current().tokens().size());
  step_round(decode);
  // The new tokens and the one that was pending; the last of them is the root.
  REQUIRE(m.target.text_rows == static_cast<int>(n) + 1 + dropped);
  REQUIRE(m.target.rows == m.target.text_rows + decode.last_round().tree.n_nodes - 1);
  REQUIRE(m.draft.text_rows <= static_cast<int>(n) + unread);
  const auto written = static_cast<std::int32_t>(decode.current().written().size());
  const std::vector<token_id> text = copy(decode.current().tokens());
  const std::vector<token_id> turn(text.begin(), text.end() - written);
  REQUIRE(text == models::write_plain({.seed = 5}, 11, turn, 400, {.max_tokens = written}).text);
}

// Asks in the first round of a text alone.
struct asks_once : chain {
  int round = 0;

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    return round++ == 0 ? chain::begin(tree) : std::span<const node_id>();
  }
};

}  // namespace

TEST_CASE("a draft that is not asked reads nothing of what is written meanwhile") {
  for (const commit_mode draft_mode : {commit_mode::compact, commit_mode::truncate}) {
    two_models m({.seed = 5}, commit_mode::compact, draft_mode);
    auto decode = m.decoder(asks_once(), greedy());
    decode.begin(prompt, {.max_tokens = 60});
    step_round(decode);
    REQUIRE(decode.last_round().tree.n_nodes > 1);
    m.count(0);
    run(decode);
    CHECK(m.target.rows > 20);
    CHECK(m.draft.rows == 0);
  }
}

TEST_CASE("a turn of n tokens costs n target rows and n + 1 draft rows, beside the root and what a store dropped") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const commit_mode draft_mode : {commit_mode::compact, commit_mode::truncate}) {
      for (const ending how : {ending::completed, ending::cancelled, ending::failed}) {
        for (const std::size_t n : {1U, 2U, 7U, 150U}) {
          for_each_policy([&](auto policy, const char* name) {
            INFO(name << ", " << n << " tokens, way " << static_cast<int>(how));
            check_turn<token_kv>(policy, mode, draft_mode, how, n);
            check_turn<plain_store>(policy, mode, draft_mode, how, n);
          });
        }
      }
    }
  }
}

TEST_CASE("nothing in between: a text that goes on forwards the pending token alone") {
  two_models m;
  auto decode = m.decoder(chain(), greedy());
  decode.begin(prompt, {.max_tokens = 20});
  run(decode);
  decode.resume({}, {.max_tokens = 20});
  m.count(decode.current().tokens().size());
  step_round(decode);
  CHECK(m.target.text_rows == 1);
  CHECK(m.draft.text_rows <= 2);
}

TEST_CASE("another decoder goes on with a filled cache: another temperature, policy, verifier") {
  for (const std::size_t length : {8U, 200U}) {
    two_models m;
    auto one = m.decoder(delayed(), traversal(), {.text = {.sampling = {.temperature = 1}, .seed = 1}});
    one.begin(some_tokens(length), {.max_tokens = 40});
    const std::vector<token_id> text = run(one);
    const text_options options{.sampling = {.temperature = 0.5F}, .seed = 7};
    const auto go_on = [&](auto policy, auto verifier) {
      auto two = m.decoder(policy, verifier, {.text = options});
      m.count(text.size());
      two.begin(text, {.max_tokens = 10});
      step_round(two);
      REQUIRE(m.target.text_rows == 1);
      REQUIRE(m.draft.text_rows <= 2);
      two_models fresh;
      auto alone = fresh.decoder(policy, verifier, {.text = options});
      alone.begin(text, {.max_tokens = 10});
      REQUIRE(run(two) == run(alone));
    };
    go_on(delayed({.paths = 3}), traversal());
    go_on(chain(), target_only());
    go_on(dynatree(), target_only());
  }
}

TEST_CASE("a text keeps what the caches hold of its beginning, whoever wrote it") {
  const std::vector<token_id> first = some_tokens(120);
  for (const std::size_t same : {0U, 1U, 50U, 119U, 120U, 130U}) {
    for (const bool other_decoder : {false, true}) {
      two_models m;
      auto one = m.decoder(chain(), greedy());
      one.begin(first, {.max_tokens = 30});
      std::vector<token_id> second = run(one);
      second.resize(same);
      if (same != 130) second.insert(second.end(), {10, 10, 7});  // the text that stood has none of these next
      auto two = m.decoder(chain(), greedy());
      auto& decode = other_decoder ? two : one;
      decode.begin(second, {.max_tokens = 10});
      m.count(second.size());
      step_round(decode);
      INFO(same << " tokens in common");
      const auto size = static_cast<int>(second.size()), kept = static_cast<int>(std::min(same, second.size() - 1));
      REQUIRE(m.target.text_rows == size - kept);
      REQUIRE(m.draft.text_rows == size - kept);
      REQUIRE(run(decode) == models::write_plain({.seed = 5}, 11, second, 400, {.max_tokens = 10}).text);
    }
  }
}

TEST_CASE("two decoders that interleave on one sequence: a clear error, and both can go on") {
  for (const bool resumed : {false, true}) {
    for (const float temperature : {0.0F, 1.0F}) {
      const text_options options{.sampling = {.temperature = temperature}, .seed = 3};
      const std::vector<token_id> other{9, 9, 9};
      const auto alone = [&](const std::vector<token_id>& start) {
        two_models m;
        auto decode = m.decoder(chain(), target_only(), {.text = options});
        decode.begin(start, {.max_tokens = 30});
        return run(decode);
      };
      two_models m;
      auto a = m.decoder(chain(), target_only(), {.text = options});
      auto b = m.decoder(chain(), target_only(), {.text = options});
      a.begin(prompt, {.max_tokens = 30});
      b.begin(other, {.max_tokens = 30});
      int errors = 0;
      const auto step = [&](auto& decode) {
        const std::vector<token_id> before = copy(decode.current().tokens());
        const std::string message = message_of<input_error>([&] { decode.step(); });
        if (message.empty()) return;
        ++errors;
        CHECK(says(message, "sequence 0", "holds another text from token 0 on", "another part uses it"));
        CHECK(copy(decode.current().tokens()) == before);
      };
      for (int i = 0; i < 3; ++i) {
        step(a);
        step(b);
      }
      CHECK(errors > 1);
      const auto finish = [&](auto& decode) {
        if (resumed) {
          const auto left = 30 - static_cast<std::int32_t>(decode.current().written().size());
          decode.resume({}, {.max_tokens = left});
          return run(decode);
        }
        step(decode);
        return run(decode);
      };
      CHECK(finish(a) == alone(prompt));
      CHECK(finish(b) == alone(other));
    }
  }
}

TEST_CASE("two decoders that interleave over a store that does not remember are told by the number of rows") {
  for (const bool resumed : {false, true}) {
    two_models<plain_store> m;
    auto a = m.decoder(chain(), greedy());
    auto b = m.decoder(fixed(), greedy());
    const auto expected = [](const std::vector<token_id>& start) {
      return models::write_plain({.seed = 5}, 11, start, 400, {.max_tokens = 60}).text;
    };
    a.begin(prompt, {.max_tokens = 60});
    b.begin(some_tokens(20), {.max_tokens = 60});
    int errors = 0;
    const auto step = [&](auto& decode) {
      const std::vector<token_id> before = copy(decode.current().tokens());
      const std::string message = message_of<input_error>([&] { decode.step(); });
      if (message.empty()) return;
      ++errors;
      CHECK(says(message, "sequence 0 of the cache holds", "this text has committed", "another part uses it"));
      CHECK(copy(decode.current().tokens()) == before);
    };
    for (int i = 0; i < 5; ++i) {
      step(a);
      step(b);
    }
    CHECK(errors > 1);
    const auto finish = [&](auto& decode) {
      if (resumed)
        decode.resume({}, {.max_tokens = 60 - static_cast<std::int32_t>(decode.current().written().size())});
      else
        step(decode);
      return run(decode);
    };
    CHECK(finish(a) == expected(prompt));
    CHECK(finish(b) == expected(some_tokens(20)));
  }
}

TEST_CASE("drafters that interleave over a store that does not remember draft what they would alone") {
  const text_options options{.sampling = {.temperature = 1}, .seed = 3};
  const auto alone = [&](const std::vector<token_id>& start) {
    two_models<plain_store> m;
    auto decode = m.decoder(delayed(), traversal(), {.text = options});
    decode.begin(start, {.max_tokens = 30});
    return run(decode);
  };
  two_models<plain_store> m;
  auto a = make_decoder(m.drafter(), delayed(), traversal(), m.kv, m.target, {.text = options, .sequence = 1});
  auto b = make_decoder(m.drafter(), delayed(), traversal(), m.kv, m.target, {.text = options, .sequence = 2});
  a.begin(prompt, {.max_tokens = 30});
  b.begin(some_tokens(20), {.max_tokens = 30});
  for (bool more = true; more;) {
    more = a.step();
    more = b.step() || more;
  }
  CHECK(copy(a.current().tokens()) == alone(prompt));
  CHECK(copy(b.current().tokens()) == alone(some_tokens(20)));
}

TEST_CASE("decoders that interleave with the same text do not harm each other") {
  const text_options options{.sampling = {.temperature = 1}, .seed = 3};
  two_models m;
  auto a = m.decoder(chain(), target_only(), {.text = options});
  auto b = m.decoder(dynatree(), target_only(), {.text = options});
  a.begin(prompt, {.max_tokens = 30});
  b.begin(prompt, {.max_tokens = 30});
  for (int i = 0; i < 100 && (a.current().running() || b.current().running()); ++i) {
    message_of<input_error>([&] { a.step(); });
    message_of<input_error>([&] { b.step(); });
  }
  two_models fresh;
  auto alone = fresh.decoder(chain(), target_only(), {.text = options});
  alone.begin(prompt, {.max_tokens = 30});
  CHECK(copy(a.current().tokens()) == run(alone));
  auto alone_too = fresh.decoder(dynatree(), target_only(), {.text = options});
  alone_too.begin(prompt, {.max_tokens = 30});
  CHECK(copy(b.current().tokens()) == run(alone_too));
}

TEST_CASE("drafters that interleave on one sequence of a draft's cache draft what they would alone") {
  const text_options options{.sampling = {.temperature = 1}, .seed = 3};
  const auto alone = [&](const std::vector<token_id>& start) {
    two_models m;
    auto decode = m.decoder(delayed(), traversal(), {.text = options});
    decode.begin(start, {.max_tokens = 30});
    return run(decode);
  };
  two_models m;
  auto a = make_decoder(m.drafter(), delayed(), traversal(), m.kv, m.target, {.text = options, .sequence = 1});
  auto b = make_decoder(m.drafter(), delayed(), traversal(), m.kv, m.target, {.text = options, .sequence = 2});
  a.begin(prompt, {.max_tokens = 30});
  b.begin(some_tokens(20), {.max_tokens = 30});
  for (bool more = true; more;) {
    more = a.step();
    more = b.step() || more;
  }
  CHECK(copy(a.current().tokens()) == alone(prompt));
  CHECK(copy(b.current().tokens()) == alone(some_tokens(20)));
}

TEST_CASE("over a store that does not remember, decoders may take turns text by text") {
  two_models<plain_store> m;
  auto a = m.decoder(chain(), greedy());
  auto b = m.decoder(fixed(), greedy());
  const auto expected = [](const std::vector<token_id>& start, std::int32_t n) {
    return models::write_plain({.seed = 5}, 11, start, 400, {.max_tokens = n}).text;
  };
  const auto write = [](auto& decode, const std::vector<token_id>& start, std::int32_t n) {
    decode.begin(start, {.max_tokens = n});
    return run(decode);
  };
  const std::vector<token_id> longer = joined(prompt, some_tokens(30));
  REQUIRE(write(a, longer, 12) == expected(longer, 12));
  REQUIRE(write(b, some_tokens(50), 12) == expected(some_tokens(50), 12));
  REQUIRE(write(a, longer, 12) == expected(longer, 12));
  REQUIRE(write(a, longer, 20) == expected(longer, 20));
  // One that goes on is where it was left.
  const std::vector<token_id> more{1, 2, 3};
  const std::vector<token_id> turn = joined(copy(a.current().tokens()), more);
  a.resume(more, {.max_tokens = 12});
  REQUIRE(run(a) == expected(turn, 12));
}

TEST_CASE("to resume where no text has begun is to begin one") {
  two_models m;
  const text_options options{.sampling = {.temperature = 0.7F}, .seed = 3};
  auto decode = m.decoder(delayed(), traversal(), {.text = options});
  decode.begin(prompt, {.max_tokens = 20});
  const std::vector<token_id> text = run(decode);
  two_models fresh;
  auto resumed = fresh.decoder(delayed(), traversal(), {.text = options});
  resumed.resume(prompt, {.max_tokens = 20});
  CHECK(run(resumed) == text);
  CHECK(resumed.current().seed() == 3);
}
