// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/recut.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "drafter/two_rounds.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/target_only.hpp"
#include "logits_of_rows.hpp"
#include "raises.hpp"

using namespace espalier;
using namespace espalier::testing;
using text_type = std::vector<token_id>;

namespace {

// A tokenizer that cuts a text into its longest tokens, from left to right.
struct longest_words {
  std::vector<std::string> pieces;
  std::string before{};  // put before each text

  std::string_view piece(token_id t) const { return pieces[static_cast<std::size_t>(t)]; }
  text_type encode(std::string_view text) const {
    const std::string whole = before + std::string(text);
    text_type tokens;
    for (std::string_view left = whole; !left.empty();) {
      token_id best = -1;
      for (token_id t = 0; t < static_cast<token_id>(pieces.size()); ++t)
        if (!piece(t).empty() && left.starts_with(piece(t)) && (best < 0 || piece(t).size() > piece(best).size()))
          best = t;
      if (best >= 0) tokens.push_back(best);
      left.remove_prefix(best >= 0 ? piece(best).size() : 1);
    }
    return tokens;
  }
};

// Two vocabularies that overlap in part: "a", "b" and "d" are shared, as is the end of a text. The draft knows no byte
// of "e", writes "ab" in two tokens, and "dd" in one.
const longest_words of_target{{"a", "ab", "b", "e", "d", ""}}, of_draft{{"b", "c", "a", "d", "dd", ""}};

vocabulary_map made_map() {
  vocabulary_map map(of_target.pieces, of_draft.pieces);
  map.share(5, 5);
  return map;
}

using backend = text_backend<logits_of_rows>;

const tiny_model::row_function draft_rows = irregular(5, 6, 0, 0), target_rows = irregular(9, 6, 4, 0);

// The draft's row after these tokens of the draft, as its sampler makes it.
std::vector<double> draft_row(const text_type& text) {
  std::vector<double> q(6);
  logits_of_rows{draft_rows}(text, q);
  sampler<double> at_one({.temperature = 1.0F});
  at_one.reserve(6);
  at_one.probabilities(q, q, row_origin::of_block(0));
  return q;
}

// The text in the draft's tokens: parts between ends of texts are cut alone, those with an "e" token by token.
text_type in_draft(const text_type& text) {
  const std::vector<text_type> cuts{{2}, {2, 0}, {0}, {}, {3}, {5}};
  text_type all;
  std::string part;
  text_type tokens;
  const auto close = [&] {
    const text_type cut = part.find('e') == std::string::npos ? of_draft.encode(part) : tokens;
    all.insert(all.end(), cut.begin(), cut.end());
    part.clear(), tokens.clear();
  };
  for (const token_id t : text) {
    const text_type& cut = cuts[static_cast<std::size_t>(t)];
    if (t == 5) {
      close();
      all.push_back(5);
      continue;
    }
    part += of_target.piece(t);
    tokens.insert(tokens.end(), cut.begin(), cut.end());
  }
  close();
  if (all.empty()) all.push_back(0);
  return all;
}

// The tokens that are drafted after a text, and their probabilities.
std::vector<std::pair<token_id, double>> run_after(const text_type& text, std::size_t lookahead, std::size_t length) {
  text_type ahead = in_draft(text);
  std::string said;
  std::vector<std::pair<std::size_t, double>> begins;  // the place at which each token begins, and its probability
  bool ends = false;
  double end = 0;
  while (begins.size() < length && !ends) {
    const std::vector<double> q = draft_row(ahead);
    const auto best = static_cast<token_id>(std::max_element(q.begin(), q.end()) - q.begin());
    ends = best == 5;
    if (ends) {
      end = q[5];
    } else {
      begins.emplace_back(said.size(), q[static_cast<std::size_t>(best)]);
      said += of_draft.piece(best);
      ahead.push_back(best);
    }
  }
  const auto end_of = [&](std::size_t i) { return i + 1 < begins.size() ? begins[i + 1].first : said.size(); };
  std::vector<std::pair<token_id, double>> run;
  std::size_t from = 0;
  for (std::size_t n = 1; n <= begins.size() + 1; ++n) {
    const bool is_all = n > begins.size();
    if (!is_all && end_of(n - 1) <= from) continue;
    if (is_all && !ends) return run;
    const std::string left = said.substr(from, (is_all ? said.size() : end_of(n - 1)) - from);
    const text_type cut = of_target.encode(left);
    if (cut.empty() || left.find('c') != std::string::npos) {
      if (is_all && left.empty()) run.emplace_back(5, end);
      continue;
    }
    const std::size_t to = from + of_target.piece(cut[0]).size();
    if (!is_all && (n <= lookahead || to > end_of(n - 1 - lookahead))) continue;
    double p = 1;
    for (const auto& [begin, q] : begins)
      if (begin >= from && begin < to) p *= q;
    run.emplace_back(cut[0], p);
    from = to;
    n = 0;
  }
  return run;
}

std::vector<double> expected_row(const text_type& text, const text_type& path, const recut_options& options = {}) {
  static std::map<std::tuple<text_type, int, int>, std::vector<std::pair<token_id, double>>> runs;
  const auto [at, is_new] = runs.try_emplace({text, options.lookahead, options.length});
  auto& run = at->second;
  if (is_new)
    run = run_after(text, static_cast<std::size_t>(options.lookahead), static_cast<std::size_t>(options.length));
  bool follows = path.size() < run.size();
  for (std::size_t i = 0; i < path.size() && follows; ++i)
    follows = run[i].first == path[i];
  const double p = follows ? run[path.size()].second : 0;
  std::vector<double> row(6, (1 - p) / 6);
  if (follows) row[static_cast<std::size_t>(run[path.size()].first)] += p;
  return row;
}

auto made(const vocabulary_map& map, const recut_options& options = {}, int capacity = 900) {
  return recut(autoregressive(backend(6, {draft_rows}), token_kv(capacity)), map, of_draft, of_target, options);
}

std::vector<double> row_of(auto& drafter, const text_type& text, const text_type& path = {}) {
  tree<> t(static_cast<int>(path.size()) + 1);
  t.reset(text.back());
  node_id u = root_node;
  drafter.propose(t.view(), std::vector<node_id>{root_node});
  for (const token_id token : path) {
    u = t.append(u, token, 0);
    drafter.propose(t.view(), std::vector<node_id>{u});
  }
  const auto row = drafter.rows().row(u);
  return {row.begin(), row.end()};
}

}  // namespace

TEST_CASE("Drafter laws: recut, against runs that are cut with all of the draft's text known") {
  const vocabulary_map map = made_map();
  std::size_t longest = 0;
  for (const recut_options options : {recut_options{}, {.lookahead = 0, .length = 5}, {.lookahead = 2, .length = 8}}) {
    INFO("lookahead " << options.lookahead);
    check_step_drafter([&] { return made(map, options); },
                       [&](const text_type& text, const text_type& path) {
                         const std::vector<double> row = expected_row(text, path, options);
                         const double most = *std::max_element(row.begin(), row.end());
                         longest = std::max(longest, most > 0.2 ? path.size() + 1 : 0);
                         return row;
                       });
  }
  CHECK(longest > 2);
}

TEST_CASE("recut: what the draft writes is cut as the target cuts it, and only once more text cannot change the cut") {
  // A draft that writes "a", "b", "dd", "a" and an end after "d".
  const tiny_model::row_function writes = [](std::span<const token_id> text) {
    const text_type next{2, 0, 4, 2, 5};
    std::vector<double> row(6, 0.02);
    const auto from = std::find(text.begin(), text.end(), 3);
    row[static_cast<std::size_t>(next[std::min<std::size_t>(4, static_cast<std::size_t>(text.end() - from) - 1)])] =
        0.9;
    return row;
  };
  const vocabulary_map map = made_map();
  const auto run_of = [&](const recut_options& options) {
    recut drafter(autoregressive(backend(6, {writes}), token_kv(90)), map, of_draft, of_target, options);
    drafter.reserve(9);
    drafter.begin(text_type{4});
    text_type run;
    for (;;) {
      const std::vector<double> row = row_of(drafter, {4}, run);
      const auto best = std::max_element(row.begin(), row.end());
      if (*best < 0.5) return run;
      run.push_back(static_cast<token_id>(best - row.begin()));
      if (run.back() == 5) return run;
    }
  };
  CHECK(run_of({}) == text_type{1, 4, 4, 0, 5});                   // "ab", "d", "d", "a", and the end
  CHECK(run_of({.lookahead = 0}) == text_type{0, 2, 4, 4, 0, 5});  // "a" before the "b" is known
  CHECK(run_of({.length = 3}) == text_type{1});                    // nothing is known behind "dd"
  CHECK(run_of({.length = 4}) == text_type{1, 4, 4});
}

TEST_CASE("recut: rows of drafted text are kept, so that what the target takes costs no second pass") {
  struct counting_backend : backend {
    int *passes, *rows;

    auto forward(token_kv& kv, const forward_batch_view& batch) {
      ++*passes, *rows += batch.n_rows();
      return backend::forward(kv, batch);
    }
  };
  const vocabulary_map map = made_map();
  int passes = 0, rows = 0;
  recut drafter(autoregressive(counting_backend{backend(6, {draft_rows}), &passes, &rows}, token_kv(90)), map, of_draft,
                of_target);
  drafter.reserve(4);
  text_type text;
  std::vector<std::pair<token_id, double>> run;
  for (token_id a = 0; a < 5 && run.size() < 3; ++a)
    for (token_id b = 0; b < 5 && run.size() < 3; ++b)
      text = {a, b}, run = run_after(text, 1, 32);
  REQUIRE(run.size() >= 3);
  drafter.begin(text);
  tree<> t(2);
  t.reset(text.back());
  drafter.propose(t.view(), std::vector<node_id>{root_node});
  const node_id one = t.append(root_node, run[0].first, 0);
  drafter.propose(t.view(), std::vector<node_id>{one});
  const int rows_before = rows;
  text.push_back(run[0].first);
  drafter.commit(t.view(), {root_node, run[0].first});
  REQUIRE(in_draft(text).size() > 0);
  t.reset(text.back());
  drafter.propose(t.view(), std::vector<node_id>{root_node});
  CHECK(row_of(drafter, text) == expected_row(text, {}));
  CHECK(rows - rows_before <= 2);
}

TEST_CASE("recut: a tokenizer that puts a space before every text cuts within a text, too") {
  const longest_words spaced{{" ", "\n", "a", "b", " a", "ab"}, " "};
  const espalier::detail::text_cutter cutter(spaced);
  CHECK(cutter.cut("ab") == text_type{5});
  CHECK(cutter.cut(" ab") == text_type{4, 3});
  CHECK(cutter.cut("ax").empty());
  const longest_words plain{{"a", "\xC3\xA9"}};
  CHECK(espalier::detail::text_cutter(plain).cut("a\xC3\xA9") == text_type{0, 1});
  CHECK(espalier::detail::whole_characters("a\xC3") == 1);
  CHECK(espalier::detail::whole_characters("a\xC3\xA9") == 3);
}

TEST_CASE("recut: nothing is drafted within a character, and long texts are cut in pieces before spaces") {
  const longest_words bytes{{" ", "a", "\xC3", "\xA9", "\xC3\xA9"}};
  const vocabulary_map map(bytes.pieces, bytes.pieces);
  const tiny_model::row_function first = [](std::span<const token_id>) {
    return std::vector<double>{0.1, 0.6, 0.1, 0.1, 0.1};
  };
  recut drafter(autoregressive(backend(5, {first}), token_kv(9000)), map, bytes, bytes);
  drafter.reserve(2);
  drafter.begin(text_type{1, 2});
  CHECK(row_of(drafter, {1, 2}) == std::vector<double>(5, 0.2));
  drafter.begin(text_type{1, 2, 3});
  CHECK(row_of(drafter, {1, 2, 3})[1] > 0.6);
  for (const token_id space : {0, 1}) {
    text_type text;
    for (int i = 0; i < 5000; ++i)
      text.push_back(i % 7 == 0 ? space : token_id{1});
    drafter.begin(text);
    const std::vector<double> row = row_of(drafter, text);
    for (int i = 0; i < 3; ++i) {
      tree<> t(0);
      t.reset(text.back());
      text.push_back(1);
      drafter.commit(t.view(), {root_node, 1});
      CHECK(row_of(drafter, text) == row);
    }
  }
}

TEST_CASE("recut: a text that is too long for the draft is followed from a later place") {
  const vocabulary_map map = made_map();
  recut drafter = made(map, {.length = 2}, 14);
  drafter.reserve(1);
  text_type text{0, 1, 2};
  drafter.begin(text);
  for (int i = 0; i < 30; ++i) {
    const std::vector<double> row = row_of(drafter, text);
    CHECK(std::abs(row[0] + row[1] + row[2] + row[3] + row[4] + row[5] - 1) < 1e-12);
    tree<> t(0);
    t.reset(text.back());
    text.push_back(static_cast<token_id>(i * 7 % 5));
    drafter.commit(t.view(), {root_node, text.back()});
  }
}

TEST_CASE("recut: rows pass through a text's processor, unless it forbids all of them") {
  struct rule {
    std::vector<token_id> forbidden{};

    void process(tree_view, node_id, std::span<const double> logits, std::span<double> out) {
      std::copy(logits.begin(), logits.end(), out.begin());
      for (const token_id t : forbidden)
        out[static_cast<std::size_t>(t)] = -std::numeric_limits<double>::infinity();
    }
    std::optional<token_id> only(tree_view, node_id) { return std::nullopt; }
  };
  const vocabulary_map map = made_map();
  recut drafter = made(map);
  static_assert(ProcessingDrafter<decltype(drafter), double> && RenumberingDrafter<decltype(drafter)> &&
                PromptDrafter<decltype(drafter)>);
  drafter.reserve(1);
  const text_type text{0, 2};
  const std::vector<double> free = expected_row(text, {});
  const auto row_under = [&](rule with) {
    drafter.begin(text);
    drafter.process_rows(row_processor<double>(with));
    const std::vector<double> row = row_of(drafter, text);
    drafter.process_rows({});
    return row;
  };
  const std::vector<double> some = row_under({{1, 2}});
  const double left = free[0] + free[3] + free[4] + free[5];
  for (const std::size_t t : {0U, 3U, 4U, 5U})
    CHECK(some[t] == Approx(free[t] / left));
  CHECK((some[1] == 0 && some[2] == 0));
  CHECK(row_under({{0, 1, 2, 3, 4, 5}}) == free);
}

TEST_CASE("recut: what is wrong is said") {
  const vocabulary_map map = made_map();
  CHECK(says(message_of<option_error>(
                 [&] { recut(autoregressive(backend(5, {draft_rows}), token_kv(9)), map, of_draft, of_target); }),
             "vocabulary of 5 tokens", "one of 6"));
  CHECK(says(message_of<option_error>([&] { made(map, {.lookahead = -1}); }), "option lookahead is -1"));
  recut drafter = made(map);
  CHECK(says(message_of<input_error>([&] { drafter.begin(text_type{6}); }), "token 6", "6 tokens"));
}

TEST_CASE("recut: texts of a batch are those that each is alone") {
  const vocabulary_map map = made_map();
  const auto run = [&](std::int32_t at_once) {
    token_kv kv(200, commit_mode::compact, at_once), draft_kv(200, commit_mode::compact, at_once);
    autoregressive inner(backend(6, {draft_rows}), draft_kv);
    recut drafter(inner, map, of_draft, of_target);
    auto decode = make_batch_decoder(drafter, chain({.length = 3}), target_only(), kv, backend(6, {target_rows}),
                                     {.max_texts = at_once});
    for (std::int32_t i = 0; i < 5; ++i)
      decode.add(text_type{i % 5, (i + 3) % 5}, {.max_tokens = 20},
                 {.sampling = {.temperature = 1}, .seed = 3, .stream = static_cast<std::uint32_t>(i)});
    std::vector<text_type> texts(5);
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        if (e.round.state == status::running) continue;
        const auto tokens = decode.current(e.id).tokens();
        texts[static_cast<std::size_t>(e.id)].assign(tokens.begin(), tokens.end());
      }
    }
    return texts;
  };
  CHECK(run(4) == run(1));
}

TEST_CASE("two rounds over a draft whose text is cut again write the target's distribution, at every temperature") {
  const vocabulary_map map = made_map();
  int drafted = 0;
  const auto check = [&](const text_type& prompt, float temperature, const auto& policy, const auto& verifier) {
    drafted += espalier_test::accepted_of_two_rounds(6, target_rows, prompt, temperature, made(map), policy, verifier);
  };
  for (const text_type& prompt : {text_type{0, 1}, text_type{2, 4, 5}}) {
    for (const float temperature : {0.0F, 0.5F, 1.0F}) {
      check(prompt, temperature, chain({.length = 2}), target_only());
      check(prompt, temperature, best_first({.budget = 3, .max_depth = 2}), target_only());
      check(prompt, temperature, iid_paths({.paths = 2, .length = 1}), naive_tree());
      check(prompt, temperature, sampled_chain({.length = 2}), block_verification());
    }
    check(prompt, 0, chain({.length = 3}), greedy());
  }
  CHECK(drafted > 50);
}
