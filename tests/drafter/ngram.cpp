// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/ngram.hpp"

#include <algorithm>
#include <map>
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

static_assert(SequenceDrafter<ngram>);

namespace {

// The same, by counting all texts anew.
text_type most_frequent(const text_type& text, const std::vector<text_type>& corpora, const ngram_options& o,
                        std::int32_t most) {
  std::map<text_type, std::map<token_id, int>> counts;
  std::vector<text_type> texts = corpora;
  texts.push_back(text);
  std::int32_t left = o.capacity;
  for (const text_type& t : texts) {
    left -= static_cast<std::int32_t>(t.size());
    for (std::size_t end = 1; end < t.size(); ++end) {
      for (std::size_t n = 1; n <= std::min(end, static_cast<std::size_t>(o.order - 1)); ++n)
        ++counts[text_type(t.begin() + static_cast<std::ptrdiff_t>(end - n),
                           t.begin() + static_cast<std::ptrdiff_t>(end))][t[end]];
    }
  }
  text_type all = text;
  for (most = std::min(most, left); most > 0; --most) {
    token_id next = -1;
    for (std::int32_t n = std::min(o.order - 1, static_cast<std::int32_t>(all.size()));
         n >= o.min_order - 1 && next < 0; --n) {
      const auto found = counts.find(text_type(all.end() - n, all.end()));
      if (found == counts.end()) continue;
      next = std::max_element(found->second.begin(), found->second.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->first;
    }
    if (next < 0) break;
    all.push_back(next);
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(text.size()), all.end()};
}

text_type run_of(ngram drafter, const text_type& text, std::int32_t most) {
  drafter.begin(text);
  const auto run = drafter.propose_run(most).tokens;
  return {run.begin(), run.end()};
}

}  // namespace

TEST_CASE("Drafter laws: ngram, against counts of the whole text, with a corpus and without") {
  const std::vector<std::vector<text_type>> corpora{
      {}, {{0, 1, 2, 0, 1, 1, 3, 0}}, {{0, 0, 1, 0, 2}, {}, {2, 1, 0, 1, 2, 4}}};
  for (const ngram_options o : {ngram_options{}, ngram_options{.order = 2}, ngram_options{.order = 5, .min_order = 3},
                                ngram_options{.order = 3, .capacity = 70}}) {
    for (const auto& corpus : corpora) {
      INFO(o.order << ".." << o.min_order << " of " << o.capacity << ", " << corpus.size() << " corpora");
      const auto make = [&] {
        ngram drafter(o);
        for (const text_type& text : corpus)
          drafter.learn(text);
        return drafter;
      };
      testing::check_sequence_drafter(
          make, [&](const text_type& text, std::int32_t n) { return most_frequent(text, corpus, o, n); });
    }
  }
}

TEST_CASE(
    "ngram: the most frequent continuation, of a shorter context where the longer is new, ties to the lower token") {
  // 1 2 is followed by 5 once, 2 by 4 three times and by 5 once.
  const text_type text{3, 2, 4, 3, 2, 4, 3, 2, 4, 1, 2, 5, 1, 2};
  CHECK(run_of(ngram(), text, 1) == text_type{5});
  CHECK(run_of(ngram({.order = 2}), text, 1) == text_type{4});
  CHECK(run_of(ngram(), {9, 2, 4, 8, 2, 4, 7, 2, 5, 6, 2}, 1) == text_type{4});
  CHECK(run_of(ngram(), {2, 7, 2, 6, 2}, 1) == text_type{6});
  CHECK(run_of(ngram(), {2, 6, 2, 7, 2}, 1) == text_type{6});
  CHECK(run_of(ngram({.order = 3, .min_order = 3}), {2, 6, 2, 7, 2}, 1).empty());
  // A run ends where nothing was ever seen to follow.
  CHECK(run_of(ngram(), {1, 2, 3, 1}, 9) == text_type{2, 3, 1, 2, 3, 1, 2, 3, 1});
  ngram learnt;
  learnt.learn(text_type{1, 2, 3});
  CHECK(run_of(learnt, {1}, 9) == text_type{2, 3});
}

TEST_CASE("ngram: a corpus may come while a text is followed, and does not run into it") {
  ngram drafter;
  drafter.begin(text_type{5, 6, 5});
  drafter.learn(text_type{5, 7, 5, 7, 5});
  auto run = drafter.propose_run(1).tokens;
  CHECK(text_type(run.begin(), run.end()) == text_type{7});
  drafter.begin(text_type{9, 8});  // 5 9 was never seen
  CHECK(drafter.propose_run(1).tokens.empty());
  drafter.begin(text_type{9, 5});
  run = drafter.propose_run(3).tokens;
  CHECK(text_type(run.begin(), run.end()) == text_type{7, 5, 7});
}

TEST_CASE("ngram: empty texts, texts of one token, no tokens asked for") {
  CHECK(run_of(ngram(), {}, 5).empty());
  CHECK(run_of(ngram(), {3}, 5).empty());
  CHECK(run_of(ngram(), {3, 4}, 5).empty());
  CHECK(run_of(ngram(), {3, 3}, 0).empty());
  CHECK(run_of(ngram(), {3, 3}, -1).empty());
  ngram never_begun;
  CHECK(never_begun.propose_run(3).tokens.empty());
}

TEST_CASE("ngram: the match is the context of the run's first token") {
  const auto match_of = [](const text_type& text) {
    ngram drafter;
    drafter.begin(text);
    return drafter.propose_run(4).match;
  };
  CHECK(match_of({1, 2, 3}) == 0);
  CHECK(match_of({1, 2, 3, 1}) == 1);
  CHECK(match_of({1, 2, 3, 4, 1, 2}) == 2);
  CHECK(match_of({1, 2, 3, 4, 5, 1, 2, 3, 4}) == 3);
}

TEST_CASE("ngram: text and corpus share the capacity") {
  ngram drafter({.capacity = 8});
  CHECK(drafter.capacity() == 8);
  drafter.learn(text_type{1, 1, 1});
  CHECK(drafter.capacity() == 5);
  CHECK(run_of(drafter, {1, 1, 1}, 9).size() == 2);
  CHECK(run_of(drafter, {1, 1, 1, 1, 1}, 9).empty());
  CHECK(run_of(drafter, {1, 1, 1, 1, 1, 1, 1}, 9).empty());
  CHECK(says(message_of<input_error>([&] { drafter.learn(text_type(5, 1)); }), "corpus of 5 tokens", "capacity"));
  CHECK(drafter.capacity() == 5);
}

TEST_CASE("ngram: options out of range are errors that name them") {
  const auto message = [](ngram_options o) { return message_of<option_error>([&] { ngram d(o); }); };
  CHECK(says(message({.order = 1}), "order is 1"));
  CHECK(says(message({.order = 17}), "order is 17"));
  CHECK(says(message({.min_order = 1}), "min_order is 1"));
  CHECK(says(message({.order = 3, .min_order = 4}), "min_order is 4", "between 2 and 3"));
  CHECK(says(message({.capacity = 0}), "capacity is 0"));
}

TEST_CASE("greedy text with a chain over ngram equals plain decoding: models x commit modes x orders") {
  const text_type prompt{3, 1, 4, 1, 5};
  for (const circling_model target : {circling_model{71, 1}, circling_model{72, 2}, circling_model{73, 100}}) {
    const text_type expected = write_alone(target, prompt, 120);
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      for (const node_order order : {node_order::insertion, node_order::heavy_path}) {
        ngram learnt({.order = 3, .capacity = 300});
        learnt.learn(expected);  // knows the text by heart
        for (const ngram& drafter : {ngram(), learnt}) {
          const auto written = write_over(ngram(drafter), chain({.length = 8}), target, prompt, 120, mode, order);
          REQUIRE(written.text == expected);
          if (target.order == 1) REQUIRE(written.accepted > 40);
        }
      }
    }
  }
}

TEST_CASE("ngram: no allocation after construction, whatever the text") {
  ngram drafter({.capacity = 4000});
  text_type text(2000);
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<token_id>(i * i % 101);
  drafter.learn(text);
  tree<> root(0);
  std::size_t proposed = 0;
  const allocation_count count;
  drafter.reserve(64);
  drafter.begin(std::span<const token_id>(text).first(1500));
  for (int round = 0; round < 800; ++round) {
    proposed += drafter.propose_run(10).tokens.size();
    drafter.commit(root, {root_node, static_cast<token_id>(round % 7)});
  }
  drafter.begin(text);
  CHECK(count.so_far() == 0);
  CHECK(proposed > 3000);
}
