// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/translated.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "drafter/two_rounds.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "espalier/tree_policy/best_first.hpp"
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

// Two vocabularies that overlap in part: "a", "b" and "d" are shared, "ab" is cut, and the draft knows no byte of "e".
const std::vector<std::string> of_target{"a", "ab", "b", "e", "d"}, of_draft{"b", "c", "a", "d", "dd", ""};

using backend = text_backend<logits_of_rows>;

const tiny_model::row_function draft_rows = irregular(5, 6, 0, 0), target_rows = irregular(9, 5, 4, 0);

// The draft's row restricted to what both have, after these tokens of the draft.
std::vector<double> restricted(const text_type& text) {
  std::vector<double> q(6);
  logits_of_rows{draft_rows}(text, q);
  sampler<double> at_one({.temperature = 1.0F});
  at_one.reserve(6);
  at_one.probabilities(q, q, row_origin::of_block(0));
  const double sum = q[2] + q[0] + q[3];
  return {q[2] / sum, 0, q[0] / sum, 0, q[3] / sum};
}

text_type in_draft(const text_type& text) {
  const std::vector<text_type> cuts{{2}, {2, 0}, {0}, {}, {3}};
  text_type all;
  for (const token_id t : text)
    all.insert(all.end(), cuts[static_cast<std::size_t>(t)].begin(), cuts[static_cast<std::size_t>(t)].end());
  return all;
}

}  // namespace

TEST_CASE("vocabulary_map: what is shared, and how other tokens are cut") {
  vocabulary_map map(of_target, of_draft);
  const auto cut = [&](token_id t) { return text_type(map.cut(t).begin(), map.cut(t).end()); };
  CHECK(map.target_size() == 5);
  CHECK(map.draft_size() == 6);
  for (token_id t = 0; t < 5; ++t)
    CHECK(cut(t) == in_draft({t}));
  CHECK(map.shared().size() == 3);
  CHECK((map.is_shared(0) && !map.is_shared(1) && map.is_shared(2) && !map.is_shared(3) && map.is_shared(4)));
  map.share(3, 5);
  CHECK((map.is_shared(3) && cut(3) == text_type{5}));
  map.share(1, 5);  // taken
  CHECK(!map.is_shared(1));
  CHECK(says(message_of<input_error>([&] { map.share(5, 0); }), "tokens 5 and 0", "5 and 6"));
  const std::vector<std::string> none{"x", "yz"};
  CHECK(vocabulary_map(none, of_draft).shared().empty());
}

TEST_CASE("vocabulary_map: what is saved is loaded, and damage is found") {
  vocabulary_map map(of_target, of_draft);
  map.share(3, 5);
  map.begin_with(1);
  std::vector<std::byte> bytes;
  byte_writer write(bytes, "vocabulary map", 1);
  map.serialize(write);
  write.finish();
  const auto loaded = [&](std::int32_t target, std::int32_t draft) {
    vocabulary_map other(target, draft);
    byte_reader read(bytes, "vocabulary map", 1);
    other.serialize(read);
    CHECK(read.finish().empty());
    return other;
  };
  const vocabulary_map same = loaded(5, 6);
  CHECK(same.begin() == 1);
  REQUIRE(same.shared().size() == map.shared().size());
  for (std::size_t i = 0; i < map.shared().size(); ++i) {
    CHECK(same.shared()[i].target == map.shared()[i].target);
    CHECK(same.shared()[i].draft == map.shared()[i].draft);
  }
  for (token_id t = 0; t < 5; ++t)
    CHECK(std::equal(map.cut(t).begin(), map.cut(t).end(), same.cut(t).begin(), same.cut(t).end()));
  CHECK(says(message_of<input_error>([&] { loaded(4, 6); }), "5 tokens of the target", "there are 4"));
  CHECK(says(message_of<input_error>([&] { loaded(5, 7); }), "6 tokens of the draft", "there are 7"));
  // Values that contradict each other, behind a right checksum.
  const auto refuses = [](const std::vector<std::int32_t>& lengths, const text_type& cuts, const text_type& shared,
                          token_id begin) {
    std::vector<std::byte> wrong;
    byte_writer writes(wrong, "vocabulary map", 1);
    writes.expect("", 2);
    writes.expect("", 3);
    writes(lengths, cuts, shared, begin);
    writes.finish();
    vocabulary_map other(2, 3);
    byte_reader read(wrong, "vocabulary map", 1);
    return message_of<input_error>([&] { other.serialize(read); });
  };
  for (const std::string& fault :
       {refuses({1}, {0}, {}, -1), refuses({1, 1}, {0}, {}, -1), refuses({1, 0}, {0, 1}, {}, -1),
        refuses({1, 1}, {0, 3}, {}, -1), refuses({1, 1}, {0, 1}, {2}, -1), refuses({2, 0}, {0, 1}, {0}, -1),
        refuses({1, 1}, {1, 1}, {0, 1}, -1), refuses({-1, 1}, {0}, {}, -1), refuses({1, 1}, {0, 1}, {}, 3)})
    CHECK(says(fault, "vocabulary map is damaged", "contradict"));
}

TEST_CASE("Drafter laws: translated, against the draft's rows restricted to what both vocabularies have") {
  const vocabulary_map map(of_target, of_draft);
  check_step_drafter([&] { return translated(autoregressive(backend(6, {draft_rows}), token_kv(200)), map); },
                     [](const text_type& text, const text_type& path) {
                       text_type all = in_draft(text);
                       if (all.empty()) all.push_back(0);
                       for (const token_id t : path) {
                         const text_type cut = in_draft({t});
                         all.push_back(cut.empty() ? 0 : cut[0]);
                       }
                       return restricted(all);
                     });
}

TEST_CASE("translated: texts begin with the draft's own token for that, once") {
  vocabulary_map map(of_target, of_draft);
  map.begin_with(5);
  check_step_drafter([&] { return translated(autoregressive(backend(6, {draft_rows}), token_kv(200)), map); },
                     [](const text_type& text, const text_type& path) {
                       text_type all{5};
                       for (const token_id t : in_draft(text))
                         all.push_back(t);
                       for (const token_id t : path) {
                         const text_type cut = in_draft({t});
                         all.push_back(cut.empty() ? 0 : cut[0]);
                       }
                       return restricted(all);
                     });
  map.share(3, 5);  // now the target has it, too
  translated drafter(autoregressive(backend(6, {draft_rows}), token_kv(200)), map);
  drafter.reserve(1);
  const auto row_after = [&](const text_type& text) {
    drafter.begin(text);
    tree<> t(1);
    t.reset(text.back());
    const node_id root[] = {root_node};
    drafter.propose(t.view(), root);
    return std::vector<double>(drafter.rows().row(root_node).begin(), drafter.rows().row(root_node).end());
  };
  std::vector<double> q(6);
  const auto expected = [&](const text_type& text) {
    logits_of_rows{draft_rows}(text, q);
    double sum = 0;
    for (const std::size_t t : {0U, 2U, 3U, 5U})
      sum += q[t] = std::exp(q[t]);
    return std::vector<double>{q[2] / sum, 0, q[0] / sum, q[5] / sum, q[3] / sum};
  };
  for (const auto& [text, seen] : {std::pair<text_type, text_type>{{3, 0}, {5, 2}}, {{0, 3}, {5, 2, 5}}})
    for (std::size_t t = 0; t < 5; ++t)
      CHECK(row_after(text)[t] == Approx(expected(seen)[t]).margin(1e-12));
  CHECK(says(message_of<input_error>([&] { map.begin_with(6); }), "draft's token 6", "vocabulary of 6"));
}

TEST_CASE("translated: rows pass through a text's processor, unless it forbids every token that they have") {
  const vocabulary_map map(of_target, of_draft);
  translated drafter(autoregressive(backend(6, {draft_rows}), token_kv(200)), map);
  static_assert(ProcessingDrafter<decltype(drafter), double>);
  drafter.reserve(1);
  struct rule {
    std::vector<token_id> forbidden{};

    void process(tree_view, node_id, std::span<const double> logits, std::span<double> out) {
      std::copy(logits.begin(), logits.end(), out.begin());
      for (const token_id t : forbidden)
        out[static_cast<std::size_t>(t)] = -std::numeric_limits<double>::infinity();
    }
    std::optional<token_id> only(tree_view, node_id) { return std::nullopt; }
  };
  const auto row_under = [&](rule with) {
    drafter.begin(text_type{0, 2});
    drafter.process_rows(row_processor<double>(with));
    tree<> t(1);
    t.reset(2);
    const node_id root[] = {root_node};
    drafter.propose(t.view(), root);
    const auto row = drafter.rows().row(root_node);
    drafter.process_rows({});
    return std::vector<double>(row.begin(), row.end());
  };
  const std::vector<double> free = restricted(in_draft({0, 2}));
  const auto require_near = [](const std::vector<double>& row, const std::vector<double>& expected) {
    for (std::size_t t = 0; t < row.size(); ++t)
      CHECK(row[t] == Approx(expected[t]).margin(1e-15));
  };
  require_near(row_under({}), free);
  require_near(row_under({{1, 2}}), {free[0] / (free[0] + free[4]), 0, 0, 0, free[4] / (free[0] + free[4])});
  require_near(row_under({{0, 2, 4}}), free);
}

TEST_CASE("translated: texts are drafted together, and each is the one that it is alone") {
  const vocabulary_map map(of_target, of_draft);
  struct counting_backend : backend {
    int* passes;

    auto forward(token_kv& kv, const forward_batch_view& batch) {
      ++*passes;
      return backend::forward(kv, batch);
    }
  };
  const auto run = [&](auto verifier, const sampling_options& sampling, std::int32_t at_once, std::int32_t n_texts) {
    int passes = 0;
    token_kv kv(90, commit_mode::compact, at_once), draft_kv(90, commit_mode::compact, at_once);
    autoregressive inner(counting_backend{backend(6, {draft_rows}), &passes}, draft_kv);
    translated drafter(inner, map);
    static_assert(SharedDrafter<decltype(drafter)>);
    auto decode = make_batch_decoder(drafter, best_first({.budget = 5}), verifier, kv, backend(5, {target_rows}),
                                     {.max_texts = at_once});
    for (std::int32_t i = 0; i < n_texts; ++i)
      decode.add(text_type{i % 5, (i + 3) % 5}, {.max_tokens = 20},
                 {.sampling = sampling, .seed = 3, .stream = static_cast<std::uint32_t>(i)});
    std::vector<text_type> texts(static_cast<std::size_t>(n_texts));
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        if (e.round.state == status::running) continue;
        const auto tokens = decode.current(e.id).tokens();
        texts[static_cast<std::size_t>(e.id)].assign(tokens.begin(), tokens.end());
      }
    }
    return std::pair(texts, passes);
  };
  const auto check = [&](auto verifier, const sampling_options& sampling) {
    const auto [together, few] = run(verifier, sampling, 4, 6);
    const auto [alone, many] = run(verifier, sampling, 1, 6);
    CHECK(together == alone);
    CHECK(2 * few < many);
  };
  check(greedy(), {.temperature = 0});
  check(target_only(), {.temperature = 1});
}

TEST_CASE("translated: a text that is too long for the draft is followed from a later place") {
  const vocabulary_map map(of_target, of_draft);
  translated drafter(autoregressive(backend(6, {draft_rows}), token_kv(12)), map);
  drafter.reserve(1);
  const auto row_of = [&](const text_type& text) {
    tree<> t(1);
    t.reset(text.back());
    const node_id root[] = {root_node};
    drafter.propose(t.view(), root);
    const auto row = drafter.rows().row(root_node);
    return std::vector<double>(row.begin(), row.end());
  };
  text_type text{0, 1, 2};
  drafter.begin(text);
  for (int i = 0; i < 30; ++i) {
    const text_type whole = in_draft(text);
    const std::size_t n = whole.size(), room = 10, first = n <= room ? 0 : (n - room + 4) / 5 * 5;
    CHECK(row_of(text) == restricted({whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()}));
    tree<> t(1);
    t.reset(text.back());
    text.push_back(static_cast<token_id>(i * 7 % 5));
    drafter.commit(t.view(), {root_node, text.back()});
  }
}

TEST_CASE("translated: what is wrong is said") {
  const vocabulary_map map(of_target, of_draft);
  CHECK(says(message_of<option_error>([&] { translated(autoregressive(backend(5, {draft_rows}), token_kv(9)), map); }),
             "vocabulary of 5 tokens", "one of 6"));
  const std::vector<std::string> none{"x", "yz"};
  const vocabulary_map apart(none, of_draft);
  CHECK(
      says(message_of<option_error>([&] { translated(autoregressive(backend(6, {draft_rows}), token_kv(9)), apart); }),
           "target with 2 tokens", "draft with 6 share none"));
  translated drafter(autoregressive(backend(6, {draft_rows}), token_kv(9)), map);
  CHECK(says(message_of<input_error>([&] { drafter.begin(text_type{5}); }), "token 5", "5 tokens"));
}

TEST_CASE("two rounds over a draft of another vocabulary write the target's distribution, at every temperature") {
  const vocabulary_map map(of_target, of_draft);
  int drafted = 0;
  const auto check = [&](float temperature, const auto& policy, const auto& verifier) {
    drafted += espalier_test::accepted_of_two_rounds(
        5, target_rows, {0, 1}, temperature, translated(autoregressive(backend(6, {draft_rows}), token_kv(24)), map),
        policy, verifier);
  };
  for (const float temperature : {0.0F, 0.5F, 1.0F}) {
    check(temperature, best_first({.budget = 3, .max_depth = 2}), target_only());
    check(temperature, iid_paths({.paths = 2, .length = 1}), naive_tree());
    check(temperature, sampled_chain({.length = 2}), block_verification());
  }
  check(0, best_first({.budget = 3, .max_depth = 2}), greedy());
  CHECK(drafted > 100);
}
