// SPDX-License-Identifier: BSL-1.0
// A long prompt is read chunk by chunk, one a step.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "decoder/counted.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

std::vector<token_id> long_prompt(std::int32_t n, int step = 7) {
  std::vector<token_id> tokens;
  for (std::int32_t i = 0; i < n; ++i)
    tokens.push_back(i * i * step % 11);
  return tokens;
}

constexpr text_options sampled{.sampling = {.temperature = 1}, .seed = 8};

decoder_options in_chunks(std::int32_t chunk) {
  return {.text = sampled, .prefill_rows = chunk};
}

std::vector<token_id> written_alone(const std::vector<token_id>& prompt, std::int32_t n) {
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), in_chunks(64));
  decode.begin(prompt, {.max_tokens = n});
  return run(decode);
}

}  // namespace

TEST_CASE("chunks of any size give the same text, and no pass over a prompt is longer") {
  for (const std::int32_t length : {1, 2, 3, 63, 64, 65, 66, 129, 200}) {
    const std::vector<token_id> prompt = long_prompt(length);
    const std::vector<token_id> expected = written_alone(prompt, 30);
    for (const std::int32_t chunk : {1, 2, 3, 7, 32, 63, 64, 65, 199, 1000}) {
      for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
        INFO(length << " tokens in chunks of " << chunk);
        two_models m({.seed = 5}, mode, mode);
        auto decode = m.decoder(delayed(), traversal(), in_chunks(chunk));
        decode.begin(prompt, {.max_tokens = 30});
        m.count(prompt.size());
        bool right = true;
        while (right && decode.current().written().empty()) {
          m.target.largest = m.draft.largest = 0;
          right = decode.step();
          const round_record& r = decode.last_round();
          if (!r.committed.empty()) break;
          right = right && m.target.largest <= chunk && m.draft.largest <= chunk && r.index == 0 &&
                  r.forwarded_rows == m.target.largest && r.state == status::running && decode.current().round() == 0;
        }
        REQUIRE(right);
        REQUIRE(decode.last_round().forwarded_rows <= chunk + decode.last_round().tree.n_nodes - 1);
        REQUIRE(m.target.text_rows == length);
        REQUIRE(m.draft.text_rows == length);
        REQUIRE(run(decode) == expected);
      }
    }
  }
}

TEST_CASE("chunks longer than a draft's own pass are read by both models at once") {
  const std::vector<token_id> prompt = long_prompt(350);
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), in_chunks(150));
  decode.begin(prompt, {.max_tokens = 3});
  m.count(prompt.size());
  int reading = 0;
  while (decode.step() && decode.last_round().committed.empty())
    ++reading;
  CHECK(reading == 2);
  CHECK(m.draft.largest == 150);
  CHECK(m.draft.text_rows == 350);
}

TEST_CASE("a prompt can be given up at any chunk: for another text, or for more of it") {
  const std::vector<token_id> prompt = long_prompt(50), other = long_prompt(20, 3), more{1, 2, 3};
  std::vector<token_id> longer = prompt;
  longer.insert(longer.end(), more.begin(), more.end());
  const std::vector<token_id> text = written_alone(prompt, 12), other_text = written_alone(other, 12),
                              longer_text = written_alone(longer, 12);
  for (int steps = 0; steps < 10; ++steps) {
    const auto begin = [&](auto& decode) {
      decode.begin(prompt, {.max_tokens = 12});
      for (int i = 0; i < steps; ++i)
        REQUIRE(decode.step());
      REQUIRE(decode.current().written().empty());
    };
    two_models m;
    auto decode = m.decoder(delayed(), traversal(), in_chunks(5));
    begin(decode);
    m.count(prompt.size());
    decode.begin(prompt, {.max_tokens = 12});  // the same again: what was read is read
    step_round(decode);
    REQUIRE(m.target.text_rows == 50 - 5 * std::min(steps, 9));
    REQUIRE(run(decode) == text);
    decode.begin(other, {.max_tokens = 12});
    REQUIRE(run(decode) == other_text);

    begin(decode);
    decode.begin(other, {.max_tokens = 12});
    REQUIRE(run(decode) == other_text);

    two_models n;
    auto resumed = n.decoder(delayed(), traversal(), in_chunks(5));
    begin(resumed);
    n.count(longer.size());
    resumed.resume(more, {.max_tokens = 12});
    step_round(resumed);
    REQUIRE(n.target.text_rows == 53 - 5 * std::min(steps, 9));
    REQUIRE(run(resumed) == longer_text);
  }
}

TEST_CASE("max_tokens = 0 reads the prompt, and what is written later is what would have been written at once") {
  for (const std::int32_t length : {1, 2, 40, 200, 400}) {
    for (const std::int32_t chunk : {3, 64}) {
      for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
        INFO(length << " tokens in chunks of " << chunk);
        const std::vector<token_id> prompt = long_prompt(length);
        two_models m({.seed = 5}, mode, mode);
        auto decode = m.decoder(delayed(), traversal(), in_chunks(chunk));
        m.count(prompt.size());
        decode.begin(prompt, {.max_tokens = 0});
        REQUIRE(decode.current().running());
        while (decode.step()) {
          REQUIRE(decode.last_round().committed.empty());
          REQUIRE(decode.last_round().forwarded_rows <= chunk);
        }
        REQUIRE(decode.last_round().state == status::length);
        REQUIRE(decode.current().state() == status::length);
        REQUIRE(decode.current().round() == 0);
        REQUIRE(copy(decode.current().tokens()) == prompt);
        REQUIRE(m.target.rows == length - 1);
        REQUIRE(m.kv.size(0) == length - 1);
        REQUIRE(m.draft.rows <= length - 1);
        if (length == 400) continue;  // the context is full
        decode.resume({}, {.max_tokens = 25});
        step_round(decode);
        REQUIRE(m.target.text_rows == length);  // the root's row is the only one that was missing
        REQUIRE(m.draft.text_rows == length);
        REQUIRE(run(decode) == written_alone(prompt, 25));
      }
    }
  }
  two_models m;
  auto decode = m.decoder(chain(), greedy());
  CHECK(says(message_of<input_error>([&] { decode.begin(long_prompt(401), {.max_tokens = 0}); }), "401 tokens",
             "context of 400"));
}

TEST_CASE("a prompt is given to generate and to step by step with the same statistics") {
  const std::vector<token_id> prompt = long_prompt(150);
  two_models m;
  auto decode = m.decoder(delayed(), traversal(), in_chunks(20));
  statistics generated, stepped;
  decode.generate(prompt, {.max_tokens = 30}, generated);
  m.kv.truncate(0, 0);
  decode.begin(prompt, {.max_tokens = 30});
  int steps = 0;
  while (decode.step()) {
    ++steps;
    stepped(decode.last_round());
  }
  CHECK(steps > stepped.rounds + 5);
  CHECK(stepped.rounds == generated.rounds);
  CHECK(stepped.tokens == 30);
  CHECK(stepped.forwarded_rows == generated.forwarded_rows);
  CHECK(stepped.texts == 1);
  CHECK(stepped.first_tokens == generated.first_tokens);
  for (const statistics& s : {generated, stepped}) {
    CHECK(s.first_token_seconds > 0);
    CHECK(s.first_token_seconds < s.seconds.total());
    CHECK(s.reading_seconds == 0);
  }
}
