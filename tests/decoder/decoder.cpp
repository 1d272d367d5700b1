// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/decoder/statistics.hpp"
#include "raises.hpp"

using namespace espalier;
using models::text_model;
using models::write_plain;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5};

// Few distinct logits a row: exact ties and neighbours one rounding apart.
text_model near_tie(std::uint64_t seed) {
  return {.seed = seed, .scale = 4e-4, .offset = 1000};
}

template <class PolicyT>
void require_plain_text(PolicyT policy, const setting& s, const stop_conditions& stop, const std::string& what) {
  const models::plain_text expected = write_plain(s.target, s.vocab, prompt, static_cast<std::size_t>(s.context), stop);
  composition<PolicyT> c(std::move(policy), s);
  c.decode.begin(prompt, stop);
  c.run();
  INFO(what);
  REQUIRE(c.copy() == expected.text);
  REQUIRE(c.decode.current().state() == expected.state);
  REQUIRE(c.consistent);
}

constexpr std::array modes{commit_mode::compact, commit_mode::truncate};
constexpr std::array orders{node_order::insertion, node_order::breadth_first, node_order::depth_first,
                            node_order::heavy_path};

}  // namespace

TEST_CASE("greedy text equals plain decoding up to a full context: policies x commit modes x orders x models") {
  for (const text_model& target : {text_model{.seed = 1}, near_tie(2), text_model{.seed = 3, .order = 2}}) {
    for (const text_model& draft : drafts_of(target)) {
      for (const commit_mode target_mode : modes) {
        for (const commit_mode draft_mode : modes) {
          for (const node_order order : orders) {
            const setting s{.target = target,
                            .draft = draft,
                            .target_mode = target_mode,
                            .draft_mode = draft_mode,
                            .options = {.order = order}};
            for_each_policy([&](auto policy, const char* name) { require_plain_text(policy, s, {}, name); });
          }
        }
      }
    }
  }
}

TEST_CASE("greedy text equals plain decoding where the draft's cache is smaller than the target's") {
  for (const text_model& draft : drafts_of({.seed = 5})) {
    for (const std::int32_t draft_context : {1, 4, 5, 6, 20, 50}) {
      for (const commit_mode mode : modes) {
        const setting s{.target = {.seed = 5},
                        .draft = draft,
                        .context = 60,
                        .draft_context = draft_context,
                        .target_mode = mode,
                        .draft_mode = mode};
        for_each_policy([&](auto policy, const char* name) { require_plain_text(policy, s, {}, name); });
      }
    }
  }
}

TEST_CASE("greedy text equals plain decoding with a vocabulary of one and of two tokens") {
  for (const std::int32_t vocab : {1, 2}) {
    const setting s{.vocab = vocab, .target = {.seed = 6}, .draft = {.seed = 6, .noise = 0.7}, .context = 40};
    const std::vector<token_id> start(3, 0);
    for_each_policy([&](auto policy, const char* name) {
      INFO(name);
      composition<decltype(policy)> c(policy, s);
      c.decode.begin(start);
      c.run();
      REQUIRE(c.copy() == write_plain(s.target, vocab, start, 40).text);
    });
  }
}

TEST_CASE("a perfect draft is accepted whole") {
  const setting s{.target = {.seed = 8}, .draft = {.seed = 8}};
  composition<chain> c(chain({.length = 5}), s);
  c.decode.begin(prompt, {.max_tokens = 60});
  statistics stats;
  while (c.step())
    stats(c.decode.last_round());
  CHECK(stats.rounds == 10);
  CHECK(stats.tokens_per_round() == 6);
  CHECK(stats.acceptance_rate() == 1);
}

TEST_CASE("an adverse draft costs nothing but time") {
  const setting s{.target = {.seed = 8}, .draft = {.seed = 8, .scale = -4}};
  composition<chain> c(chain({.length = 5}), s);
  c.decode.begin(prompt, {.max_tokens = 30});
  statistics stats;
  while (c.step())
    stats(c.decode.last_round());
  CHECK(stats.rounds == 30);
  CHECK(stats.accepted == 0);
}

TEST_CASE("every stop condition cuts exactly as plain decoding does, mid-round too") {
  const text_model target{.seed = 21};
  const setting s{.vocab = 8, .target = target, .draft = {.seed = 21, .noise = 0.3}, .context = 80};
  std::vector<stop_conditions> stops{{}, {.strings = {"zz"}}};
  for (std::int32_t n = 1; n <= 40; ++n)
    stops.push_back({.max_tokens = n});
  for (token_id t = 0; t < 8; ++t)
    stops.push_back({.tokens = {t}});
  stops.push_back({.tokens = {5, 7, 2}});
  for (const char* string : {"a", "bc", "cab", "abca", "bcabc", "aabcca", "ccc", "dd", "zz", "cabcdcc"})
    stops.push_back({.max_tokens = 60, .strings = {string}});
  stops.push_back({.strings = {"never", "", "bca", "dab"}});
  stops.push_back({.max_tokens = 20, .tokens = {6}, .strings = {"ccd"}});
  std::array<int, 6> seen{};
  for (const stop_conditions& stop : stops) {
    const models::plain_text expected = write_plain(target, s.vocab, prompt, 80, stop);
    ++seen[static_cast<std::size_t>(expected.state)];
    for_each_policy([&](auto policy, const char* name) { require_plain_text(policy, s, stop, name); });
  }
  for (const status reached : {status::stop_token, status::stop_string, status::length, status::context_full})
    CHECK(seen[static_cast<std::size_t>(reached)] > 0);
}

TEST_CASE("a stop mid-round leaves the caches ready for the rest of the text") {
  const setting s{.target = {.seed = 9}, .draft = {.seed = 9, .noise = 0.2}};
  const std::vector<token_id> whole = write_plain(s.target, s.vocab, prompt, 96).text;
  for_each_policy([&](auto policy, const char* name) {
    INFO(name);
    composition<decltype(policy)> c(policy, s);
    std::vector<token_id> text = prompt;
    for (const std::int32_t more : {3, 1, 7, 2, 20, 1}) {
      c.decode.begin(text, {.max_tokens = more});
      c.run();
      text = c.copy();
      REQUIRE(std::equal(text.begin(), text.end(), whole.begin()));
    }
    REQUIRE(text.size() == prompt.size() + 34);
    REQUIRE(c.consistent);
  });
}

TEST_CASE("a text that is resumed uses the cache again and goes on the same") {
  const setting s{.target = {.seed = 10}, .draft = {.seed = 10, .noise = 0.2}};
  const std::vector<token_id> whole = write_plain(s.target, s.vocab, prompt, 96).text;
  composition<chain> c(chain(), s);
  c.decode.begin(prompt, {.max_tokens = 40});
  c.run();
  c.target.rows = 0;
  c.decode.resume({}, {.max_tokens = 20});
  CHECK(c.kv.size(0) == static_cast<std::int32_t>(prompt.size()) + 39);
  REQUIRE(c.step());
  CHECK(c.target.rows == 6);
  c.run();
  REQUIRE(c.copy() == std::vector<token_id>(whole.begin(), whole.begin() + std::ssize(prompt) + 60));
  // With another turn in between.
  const std::vector<token_id> more{1, 2, 3};
  std::vector<token_id> turn = c.copy();
  turn.insert(turn.end(), more.begin(), more.end());
  c.decode.resume(more, {.max_tokens = 10});
  c.run();
  REQUIRE(c.copy() == write_plain(s.target, s.vocab, turn, 96, {.max_tokens = 10}).text);
  // A new text takes nothing over, not even from one that begins alike.
  turn.resize(20);
  c.decode.begin(turn, {.max_tokens = 10});
  REQUIRE(c.step());
  c.run();
  REQUIRE(c.copy() == write_plain(s.target, s.vocab, turn, 96, {.max_tokens = 10}).text);
  REQUIRE(c.consistent);
}

TEST_CASE("a prompt of any length is prefilled in chunks, for bounded backends too") {
  using models::bounded_probe;
  for (const std::size_t length : {1U, 2U, 63U, 64U, 65U, 66U, 128U, 129U, 150U}) {
    std::vector<token_id> text;
    for (std::size_t i = 0; i < length; ++i)
      text.push_back(static_cast<token_id>(i * i % 11));
    const setting s{.target = {.seed = 11},
                    .draft = {.seed = 11, .noise = 0.2},
                    .context = 160,
                    .draft_context = 160,
                    .target_mode = commit_mode::truncate};
    const std::vector<token_id> expected = write_plain(s.target, s.vocab, text, 160).text;
    composition<fixed> free(fixed(), s);
    free.decode.begin(text);
    free.run();
    REQUIRE(free.copy() == expected);
    REQUIRE(free.consistent);
    for (const std::int32_t most : {11, 12, 30}) {
      composition<fixed, greedy, bounded_probe> bounded(fixed({.depth = 3, .breadth = 2, .budget = 10}), s,
                                                        bounded_probe(s.vocab, s.target, most),
                                                        bounded_probe(s.vocab, s.draft, 3));
      bounded.decode.begin(text);
      bounded.run();
      REQUIRE(bounded.copy() == expected);
      REQUIRE(bounded.target.largest <= most);
      REQUIRE(bounded.draft.largest <= 3);
      REQUIRE(bounded.consistent);
    }
  }
}

TEST_CASE("a truncating store keeps the rows of accepted chains") {
  const setting s{.target = {.seed = 12},
                  .draft = {.seed = 12, .noise = 0.2},
                  .target_mode = commit_mode::truncate,
                  .draft_mode = commit_mode::truncate};
  composition<chain> c(chain({.length = 4}), s);
  c.decode.begin(prompt, {.max_tokens = 60});
  int accepted = 0;
  while (c.step()) {
    accepted += c.decode.last_round().accepted();
    // The pending token alone is missing: nothing is ever forwarded twice.
    REQUIRE(c.kv.size(0) == static_cast<std::int32_t>(c.text().size()) - 1);
  }
  CHECK(accepted > 20);
}

TEST_CASE("a truncating store forwards dropped rows with the next tree, in no extra pass") {
  const setting s{.target = {.seed = 12}, .draft = {.seed = 12, .noise = 0.5}, .target_mode = commit_mode::truncate};
  composition<fixed> c(fixed({.depth = 4, .breadth = 3, .budget = 60}), s);
  c.decode.begin(prompt, {.max_tokens = 60});
  int rounds = 0;
  int rebuilt = 0;
  while (c.step()) {
    ++rounds;
    rebuilt += c.decode.last_round().forwarded_rows - c.decode.last_round().tree.n_nodes;
  }
  CHECK(c.target.calls == rounds);
  CHECK(rebuilt > 10);
}

TEST_CASE("bad prompts are errors that say what is wrong, and leave the text as it was") {
  const setting s{.vocab = 11, .target = {.seed = 13}, .draft = {.seed = 13}, .context = 30, .draft_context = 30};
  composition<chain> c(chain(), s);
  const auto message = [&](std::vector<token_id> text) {
    return message_of<input_error>([&] { c.decode.begin(text); });
  };
  CHECK_FALSE(c.step());  // nothing was begun
  c.decode.begin(prompt, {.max_tokens = 4});
  c.run();
  const std::vector<token_id> written = c.copy();
  CHECK(says(message({}), "prompt is empty"));
  CHECK(says(message(std::vector<token_id>(30, 1)), "30 tokens", "context of 30"));
  CHECK(says(message(std::vector<token_id>(31, 1)), "31 tokens", "context of 30"));
  CHECK(says(message({1, 2, -1}), "token 2", "-1", "10"));
  CHECK(says(message({11, 2}), "token 0", "11", "10"));
  CHECK(says(message_of<option_error>([&] { c.decode.begin(prompt, {.max_tokens = -1}); }), "option max_tokens is -1"));
  CHECK(
      says(message_of<option_error>([&] { c.decode.begin(prompt, {}, {.log_probs = -2}); }), "option log_probs is -2"));
  CHECK(says(message_of<option_error>([&] { c.decode.begin(prompt, {}, {.sampling = {.temperature = -1}}); }),
             "option temperature is -1"));
  CHECK(c.copy() == written);
  // The longest prompt there may be: one token fits.
  c.decode.begin(std::vector<token_id>(29, 1));
  c.run();
  CHECK(c.text().size() == 30);
  CHECK(c.decode.current().state() == status::context_full);
  c.decode.begin(prompt);
  c.run();
  CHECK(c.copy() == write_plain(s.target, s.vocab, prompt, 30).text);
}

TEST_CASE("parts that do not go together are errors when the decoder is built") {
  const setting hot{.options = {.text = {.sampling = {.temperature = 0.5F}}}};
  CHECK(says(message_of<option_error>([&] { composition<plain> c(plain(), hot); }), "temperature is 0.5", "greedy"));
  const setting nonsense{.options = {.text = {.sampling = {.top_p = 0}}}};
  CHECK(says(message_of<option_error>([&] { composition<plain> c(plain(), nonsense); }), "top_p"));
  using models::bounded_probe;
  const setting s;
  CHECK(says(message_of<option_error>([&] {
               composition<chain, greedy, bounded_probe> c(chain(), s, bounded_probe(11, {}, 5),
                                                           bounded_probe(11, {}, 5));
             }),
             "passes of 6 rows", "at most 5"));
  const std::string vocabularies = message_of<input_error>(
      [&] { composition<chain> c(chain(), s, models::probe_backend(11, {}), models::probe_backend(12, {})); });
  CHECK(says(vocabularies, "12", "11", "vocabular"));
}

TEST_CASE("one backend and one store may serve as draft and target, in two sequences") {
  const text_model model{.seed = 17};
  for (const commit_mode mode : modes) {
    token_kv kv(70, mode, 3);
    models::probe_backend backend(11, model);
    autoregressive drafter(backend, kv, {.temperature = 1}, 2);
    auto decode =
        make_decoder(drafter, fixed({.depth = 4, .breadth = 2, .budget = 20}), greedy(), kv, backend, {.sequence = 1});
    statistics stats;
    decode.generate(prompt, {}, stats);
    const auto text = decode.current().tokens();
    CHECK(std::vector<token_id>(text.begin(), text.end()) == write_plain(model, 11, prompt, 70).text);
    CHECK(stats.tokens_per_round() > 4);
    CHECK(kv.size(0) == 0);
  }
}

TEST_CASE("plain decoding needs no draft model") {
  const text_model model{.seed = 14};
  auto decode = make_decoder(no_drafter(), plain(), greedy(), token_kv(50), text_backend(11, model));
  const auto written = decode.generate(prompt, {.max_tokens = 20});
  const std::vector<token_id> expected = write_plain(model, 11, prompt, 50, {.max_tokens = 20}).text;
  CHECK(std::equal(written.begin(), written.end(), expected.begin() + std::ssize(prompt), expected.end()));
}

TEST_CASE("equal seeds write equal texts, whatever the commit mode and the order") {
  const setting base{.target = {.seed = 15},
                     .draft = {.seed = 15, .noise = 0.5},
                     .options = {.text = {.sampling = {.temperature = 1.2F, .top_k = 8, .top_p = 0.95F}, .seed = 42}}};
  const auto write = [&](setting s) {
    composition<fixed, target_only> c(fixed({.depth = 3, .breadth = 3}), s);
    c.decode.begin(prompt, {.max_tokens = 60});
    c.run();
    REQUIRE(c.consistent);
    return c.copy();
  };
  const std::vector<token_id> text = write(base);
  for (const commit_mode mode : modes) {
    for (const node_order order : orders) {
      setting s = base;
      s.target_mode = s.draft_mode = mode;
      s.options.order = order;
      REQUIRE(write(s) == text);
    }
  }
  setting reseeded = base;
  reseeded.options.text.seed = 43;
  CHECK(write(reseeded) != text);
  setting elsewhere = base;
  elsewhere.options.text.seed = 42ULL + (1ULL << 40);
  CHECK(write(elsewhere) != text);
}

TEST_CASE("generate tells the observers every round") {
  const setting s{.target = {.seed = 16}, .draft = {.seed = 16, .noise = 0.3}};
  composition<dynatree> c(dynatree(), s);
  statistics first;
  std::vector<token_id> streamed;
  auto stream = [&](const round_record& r) { streamed.insert(streamed.end(), r.committed.begin(), r.committed.end()); };
  const auto written = c.decode.generate(prompt, {.max_tokens = 50}, observe_all(first, stream));
  CHECK(streamed == std::vector<token_id>(written.begin(), written.end()));
  CHECK(streamed.size() == 50);
  CHECK(first.tokens == 50);
  CHECK(first.texts == 1);
  CHECK(first.rounds == c.decode.current().round());
  CHECK(first.accepted == first.tokens - first.rounds);
  CHECK(first.seconds.total() > 0);
  CHECK(first.throughput() > 0);
}
