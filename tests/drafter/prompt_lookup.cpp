// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/prompt_lookup.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "drafter/lookup_decoder.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/testing/sequence_drafter_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "raises.hpp"

using namespace espalier;
using text_type = std::vector<token_id>;

static_assert(SequenceDrafter<prompt_lookup>);

namespace {

// The same, by looking through the whole text.
text_type look_up(const text_type& text, const prompt_lookup_options& o, std::int32_t most) {
  const auto size = static_cast<std::int32_t>(text.size());
  most = std::min(most, o.capacity - size);
  for (std::int32_t n = std::min(o.max_ngram, size); n >= o.min_ngram && most > 0; --n) {
    for (std::int32_t end = size - 1; end >= n; --end) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + end - n)) continue;
      text_type all = text;
      for (std::int32_t i = 0; i < most; ++i)
        all.push_back(all[static_cast<std::size_t>(end + i)]);
      return {all.begin() + size, all.end()};
    }
  }
  return {};
}

text_type run_of(prompt_lookup drafter, const text_type& text, std::int32_t most) {
  drafter.begin(text);
  const auto run = drafter.propose_run(most).tokens;
  return {run.begin(), run.end()};
}

}  // namespace

TEST_CASE("Drafter laws: prompt_lookup, against a search of the whole text") {
  for (const prompt_lookup_options o :
       {prompt_lookup_options{}, prompt_lookup_options{.max_ngram = 1},
        prompt_lookup_options{.max_ngram = 5, .min_ngram = 2}, prompt_lookup_options{.max_ngram = 2, .capacity = 60},
        prompt_lookup_options{.max_ngram = 16, .min_ngram = 1}}) {
    INFO(o.max_ngram << ".." << o.min_ngram << " of " << o.capacity);
    testing::check_sequence_drafter([&] { return prompt_lookup(o); },
                                    [&](const text_type& text, std::int32_t n) { return look_up(text, o, n); });
  }
}

TEST_CASE("prompt_lookup: the longest match first, the latest of these, and on beyond the end of the text") {
  // 1 2 3 is followed by 4, its latest 2 3 by 5, its latest 3 by 6.
  const text_type text{1, 2, 3, 4, 9, 2, 3, 5, 8, 3, 6, 1, 2, 3};
  CHECK(run_of(prompt_lookup(), text, 2) == text_type{4, 9});
  CHECK(run_of(prompt_lookup({.max_ngram = 2}), text, 2) == text_type{5, 8});
  CHECK(run_of(prompt_lookup({.max_ngram = 1}), text, 2) == text_type{6, 1});
  CHECK(run_of(prompt_lookup(), {7, 1, 2, 5, 1, 2, 6, 1, 2}, 3) == text_type{6, 1, 2});
  // What repeats is followed on.
  CHECK(run_of(prompt_lookup(), {5, 1, 2, 1, 2}, 5) == text_type{1, 2, 1, 2, 1});
  CHECK(run_of(prompt_lookup(), {4, 4}, 3) == text_type{4, 4, 4});
  // A single token repeats, but no two do.
  CHECK(run_of(prompt_lookup(), {1, 2, 3, 1}, 3) == text_type{2, 3, 1});
  CHECK(run_of(prompt_lookup({.min_ngram = 2}), {1, 2, 3, 1}, 3).empty());
}

TEST_CASE("prompt_lookup: the match is counted beyond the n-gram that is looked for, up to 32 tokens") {
  const auto match_of = [](prompt_lookup drafter, const text_type& text) {
    drafter.begin(text);
    return drafter.propose_run(1).match;
  };
  CHECK(match_of(prompt_lookup(), {1, 2, 3}) == 0);
  CHECK(match_of(prompt_lookup(), {1, 2, 3, 1}) == 1);
  CHECK(match_of(prompt_lookup(), {1, 2, 3, 4, 5, 1, 9, 2, 3, 4, 5}) == 4);
  CHECK(match_of(prompt_lookup({.max_ngram = 1}), {1, 2, 3, 4, 5, 1, 9, 2, 3, 4, 5}) == 4);
  // It ends where the text begins, also of a text that repeats itself.
  CHECK(match_of(prompt_lookup(), {2, 3, 9, 2, 3}) == 2);
  CHECK(match_of(prompt_lookup(), {7, 7, 7, 7, 7, 7}) == 5);
  CHECK(match_of(prompt_lookup(), text_type(100, 7)) == 32);
}

TEST_CASE("prompt_lookup: empty texts, texts of one token, no tokens asked for") {
  CHECK(run_of(prompt_lookup(), {}, 5).empty());
  CHECK(run_of(prompt_lookup(), {3}, 5).empty());
  CHECK(run_of(prompt_lookup(), {3, 4}, 5).empty());
  CHECK(run_of(prompt_lookup(), {3, 3}, 0).empty());
  CHECK(run_of(prompt_lookup(), {3, 3}, -1).empty());
  prompt_lookup never_begun;
  CHECK(never_begun.propose_run(3).tokens.empty());
}

TEST_CASE("prompt_lookup: beyond its capacity nothing is drafted, until a shorter text begins") {
  prompt_lookup drafter({.capacity = 6});
  CHECK(drafter.capacity() == 6);
  CHECK(run_of(drafter, {1, 1, 1, 1}, 5).size() == 2);
  CHECK(run_of(drafter, {1, 1, 1, 1, 1, 1}, 5).empty());
  drafter.begin(text_type{1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(drafter.propose_run(5).tokens.empty());
  tree<> root(0);
  drafter.commit(root, {root_node, 1});
  CHECK(drafter.propose_run(5).tokens.empty());
  drafter.begin(text_type{1, 1, 1});
  CHECK(drafter.propose_run(5).tokens.size() == 3);
}

TEST_CASE("prompt_lookup: options out of range are errors that name them") {
  const auto message = [](prompt_lookup_options o) { return message_of<option_error>([&] { prompt_lookup d(o); }); };
  CHECK(says(message({.max_ngram = 0}), "max_ngram is 0"));
  CHECK(says(message({.max_ngram = 17}), "max_ngram is 17"));
  CHECK(says(message({.min_ngram = 0}), "min_ngram is 0"));
  CHECK(says(message({.max_ngram = 2, .min_ngram = 3}), "min_ngram is 3", "between 1 and 2"));
  CHECK(says(message({.capacity = 0}), "capacity is 0"));
  CHECK(says(message({.capacity = (1 << 20) + 1}), "capacity is 1048577"));
}

TEST_CASE("greedy text with a chain over prompt_lookup equals plain decoding: models x commit modes x orders") {
  const text_type prompt{3, 1, 4, 1, 5};
  for (const circling_model target : {circling_model{71, 1}, circling_model{72, 2}, circling_model{73, 100}}) {
    const text_type expected = write_alone(target, prompt, 120);
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      for (const node_order order : {node_order::insertion, node_order::heavy_path}) {
        for (const prompt_lookup_options o : {prompt_lookup_options{}, prompt_lookup_options{.capacity = 50}}) {
          for (const std::int32_t length : {1, 10}) {
            const auto written =
                write_over(prompt_lookup(o), chain({.length = length}), target, prompt, 120, mode, order);
            REQUIRE(written.text == expected);
            if (target.order == 1) REQUIRE(written.accepted > (o.capacity < 120 ? 20 : 40));
          }
        }
      }
    }
  }
}

TEST_CASE("prompt_lookup: a round that fails leaves no trace in the text") {
  const models::text_model target{.seed = 71, .order = 1};
  const text_type prompt{3, 1, 4, 1, 5};
  const text_type expected = models::write_plain(target, 11, prompt, 60).text;
  for (int fail_at = 0; fail_at < 12; ++fail_at) {
    token_kv kv(60);
    models::probe_backend backend(11, target);
    backend.fail_at = fail_at, backend.kind = models::fault::throws;
    auto decode = make_decoder(prompt_lookup(), chain(), greedy(), kv, backend);
    decode.begin(prompt);
    REQUIRE(written_past_one_failure(decode) == expected);
  }
}

TEST_CASE("prompt_lookup: no allocation after construction, whatever the text") {
  prompt_lookup drafter({.capacity = 4000});
  text_type text(3000);
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<token_id>(i * i % 101);
  tree<> root(0);
  std::size_t proposed = 0;
  const allocation_count count;
  drafter.reserve(64);
  drafter.begin(text);
  for (int round = 0; round < 1200; ++round) {
    proposed += drafter.propose_run(10).tokens.size();
    drafter.commit(root, {root_node, static_cast<token_id>(round % 7)});
  }
  drafter.begin(std::span<const token_id>(text).first(1000));
  CHECK(count.so_far() == 0);
  CHECK(proposed > 5000);
}
