// SPDX-License-Identifier: BSL-1.0
// What is learnt of runs, and what cost_aware makes of it: texts that are known beforehand, priced by the cost model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware/round_budget.hpp"

using namespace espalier;

namespace {

using tokens = std::vector<token_id>;

// A round whose run has these tokens and match, and what was written instead: `drafted` of them stand in the tree.
void round(run_acceptance& runs, const tokens& run, std::int32_t match, std::int32_t drafted, const tokens& written) {
  runs.begin_round();
  runs.worth({run, match}, 32, [](std::int32_t) { return 0.0; });
  tree<> t(32);
  t.reset(0);
  node_id u = root_node;
  for (std::int32_t i = 0; i < drafted; ++i)
    u = t.append(u, run[static_cast<std::size_t>(i)], 0.0F);
  runs.observe(t, {static_cast<node_id>(written.size()) - 1, written.back()});
}

// A text that is known beforehand: the first tokens are the prompt.
struct known_text {
  tokens all;
  std::size_t prompt = 300;
};

tokens any_tokens(std::mt19937& random, std::size_t n, unsigned vocab) {
  tokens text(n);
  for (token_id& t : text)
    t = static_cast<token_id>(random() % vocab);
  return text;
}

// After the prompt `n` tokens that mean nothing.
known_text noise(unsigned seed, std::size_t n, unsigned vocab) {
  std::mt19937 random(seed);
  return {any_tokens(random, 300 + n, vocab)};
}

// After the prompt the prompt again, but for another token now and then.
known_text edited(unsigned seed, unsigned edit_every) {
  std::mt19937 random(seed);
  tokens text = any_tokens(random, 800, 500);
  for (std::size_t i = 0; i < 800; ++i)
    text.push_back(random() % edit_every == 0 ? static_cast<token_id>(random() % 500) : text[i]);
  return {text, 800};
}

// Tokens that mean nothing, and parts of the prompt, in turns.
known_text quoting(unsigned seed) {
  std::mt19937 random(seed);
  tokens text = any_tokens(random, 300, 40);
  for (int turn = 0; turn < 6; ++turn) {
    const tokens own = any_tokens(random, 100, 40);
    text.insert(text.end(), own.begin(), own.end());
    const std::size_t from = random() % 220;
    for (std::size_t i = 0; i < 80; ++i)
      text.push_back(text[from + i]);
  }
  return {text};
}

struct written_so {
  double seconds = 0;
  int tokens = 0, drafted = 0;
};

// Writes the text, and prices each round.
template <class DrafterT, class PolicyT>
written_so write(const known_text& text, DrafterT& drafter, PolicyT& policy, const cost_model& costs) {
  const std::span<const token_id> all = text.all;
  std::size_t size = text.prompt;
  drafter.begin(all.first(size));
  tree<> t(policy.max_nodes());
  philox_chance chance(1, 0, 0);
  written_so out;
  while (size + 1 < all.size()) {
    t.reset(all[size - 1]);
    if constexpr (OpeningPolicy<PolicyT>) policy.open({.length = static_cast<std::int32_t>(size)});
    grow(policy, t, drafter, chance);
    const tree_view view = t;
    verdict v{root_node, all[size]};
    for (node_id next; size + 1 < all.size() && (next = view.find_child(v.accepted, v.token)) != no_node;)
      v = {next, all[++size]};
    ++size;
    out.seconds += costs.target_pass(view.n_nodes, static_cast<std::int32_t>(size));
    out.tokens += view.depth[v.accepted] + 1;
    out.drafted += view.n_nodes - 1;
    drafter.commit(view, v);
    policy.observe(view, v);
  }
  return out;
}

// Rows of 0.06 plain rounds: a chain of 8 of which nothing is accepted writes at 0.67 of plain decoding, as over
// quantised weights on two cores. And passes as docs/benchmarks/micro_cost_model.md has them, after 255 tokens.
const std::vector<cost_model>& recorded() {
  static const std::vector<cost_model> costs{
      {{}, {}, {}, cost_curve::linear(0, 0), cost_curve::linear(1, 0.06)},
      {{},
       {},
       {},
       cost_curve::linear(0, 0),
       cost_curve::of_grid({1, 2, 4, 8, 16, 32, 64}, {255},
                           {2.371e-3, 2.371e-3, 2.823e-3, 2.965e-3, 4.973e-3, 9.810e-3, 19.603e-3})}};
  return costs;
}

// Tokens a plain round of cost_aware over all texts, and of the best chain for all of them.
struct rates {
  double own = 0, best_chain = 0;
};

template <class DrafterT>
rates rates_of(const std::vector<known_text>& texts, const cost_model& costs) {
  DrafterT drafter;
  const auto rate = [&](const auto& policy) {
    double seconds = 0;
    int n = 0;
    for (const known_text& text : texts) {
      auto own = policy;
      const written_so w = write(text, drafter, own, costs);
      seconds += w.seconds;
      n += w.tokens;
    }
    return n * costs.target_pass(1, 255) / seconds;
  };
  rates out{.own = rate(cost_aware({}, costs))};
  for (const std::int32_t length : {1, 2, 4, 8, 16, 32})
    out.best_chain = (std::max)(out.best_chain, rate(chain({.length = length})));
  return out;
}

template <class MakeT>
std::vector<known_text> eight(const MakeT& make) {
  std::vector<known_text> texts;
  for (unsigned seed = 0; seed < 8; ++seed)
    texts.push_back(make(seed));
  return texts;
}

}  // namespace

TEST_CASE("a longer match is likelier to go on, until the text tells") {
  const run_acceptance runs(8);
  for (std::int32_t match = 1; match < 100; ++match) {
    CHECK(runs.probability(match) >= runs.probability(match - 1));
    CHECK((runs.probability(match) > 0.1 && runs.probability(match) < 0.99));
  }
}

TEST_CASE("each token that was compared counts for the match before it, drafted or not") {
  run_acceptance runs(32);
  const auto changed = [&](const run_acceptance& before) {
    std::vector<std::int32_t> matches;
    for (const std::int32_t m : {0, 1, 2, 3, 4, 8, 16, 32}) {
      if (runs.probability(m) != before.probability(m)) matches.push_back(m);
    }
    return matches;
  };
  run_acceptance before = runs;
  round(runs, {5, 6, 7}, 1, 0, {5});  // nothing was drafted, and the first token was right
  CHECK(changed(before) == std::vector<std::int32_t>{1});
  CHECK(runs.probability(1) > before.probability(1));
  before = runs;
  round(runs, {5, 6, 7}, 1, 1, {5, 9});  // the second was wrong, and was not drafted
  CHECK(changed(before) == std::vector<std::int32_t>{1, 2});
  CHECK(runs.probability(2) < before.probability(2));
  before = runs;
  round(runs, {5, 6, 7}, 2, 3, {9});  // what comes after a wrong one is not compared
  CHECK(changed(before) == std::vector<std::int32_t>{2});
  before = runs;
  round(runs, {5, 6}, 15, 2, {5, 6, 4});  // nor what comes after the run
  CHECK(changed(before) == std::vector<std::int32_t>{8, 16});
  before = runs;
  round(runs, {}, 0, 0, {5});
  CHECK(changed(before).empty());
}

TEST_CASE("a round without a verdict teaches nothing, and a new text begins as the first one did") {
  run_acceptance runs(32), fresh(32);
  runs.begin_round();
  runs.worth({tokens{1, 2, 3}, 3}, 32, [](std::int32_t) { return 0.0; });
  CHECK(runs.is_known());
  runs.begin_round();
  CHECK(!runs.is_known());
  CHECK(runs.probability(3) == fresh.probability(3));
  for (int i = 0; i < 300; ++i)
    round(runs, {1, 2}, 3, 2, {1, 2, 9});
  CHECK(runs.probability(3) > 0.9);
  for (int i = 0; i < 20; ++i)
    round(runs, {1, 2}, 3, 2, {4});
  CHECK(runs.probability(3) < 0.75);  // what came long ago counts less
  runs.reset();
  CHECK(runs.probability(3) == fresh.probability(3));
}

TEST_CASE("a run is cut where its rows cost more than they are expected to gain, and steps are weighed whole") {
  run_acceptance runs(32);
  const tokens run(32, 1);
  const auto worth = [&](std::int32_t match, std::int32_t limit, double row) {
    return runs.worth({run, match}, limit, [=](std::int32_t n) { return row * n; });
  };
  CHECK(worth(32, 32, 0) == 32);
  CHECK(worth(32, 5, 0) == 5);
  CHECK(worth(32, 0, 0) == 0);
  CHECK(worth(1, 32, 0.5) == 0);
  CHECK(worth(32, 32, 1) == 0);
  CHECK(worth(3, 32, 0.05) > worth(1, 32, 0.05));
  CHECK(worth(16, 32, 0.05) > worth(3, 32, 0.05));
  CHECK(worth(16, 32, 0.05) > worth(16, 32, 0.2));
  // Seven rows for the price of one: the first is not worth it, all of them are.
  CHECK(runs.worth({run, 3}, 32, [](std::int32_t n) { return 0.5 * ((n + 6) / 7); }) % 7 == 0);
  CHECK(runs.worth({run, 3}, 32, [](std::int32_t n) { return 0.5 * ((n + 6) / 7); }) > 0);
  // Longer than what is kept of it.
  run_acceptance short_runs(4);
  CHECK(short_runs.worth({run, 32}, 32, [](std::int32_t) { return 0.0; }) == 4);
}

TEST_CASE("cost_aware over runs: within 3 percent of the best chain for texts that copy, or far above it") {
  for (const cost_model& costs : recorded()) {
    const auto little = eight([](unsigned seed) { return edited(seed, 100); });
    const auto more = eight([](unsigned seed) { return edited(100 + seed, 12); });
    const auto turns = eight([](unsigned seed) { return quoting(200 + seed); });
    const rates copied = rates_of<prompt_lookup>(little, costs), half = rates_of<prompt_lookup>(more, costs),
                quoted = rates_of<prompt_lookup>(turns, costs);
    INFO(copied.own << " and " << copied.best_chain << ", " << half.own << " and " << half.best_chain << ", "
                    << quoted.own << " and " << quoted.best_chain);
    CHECK(copied.own >= 0.97 * copied.best_chain);
    CHECK(half.own >= 0.97 * half.best_chain);
    // No chain suits both.
    CHECK(quoted.own >= 1.1 * quoted.best_chain);
    const rates counted = rates_of<ngram>(little, costs), counted_half = rates_of<ngram>(more, costs),
                counted_turns = rates_of<ngram>(turns, costs);
    INFO(counted.own << " and " << counted.best_chain << ", " << counted_half.own << " and " << counted_half.best_chain
                     << ", " << counted_turns.own << " and " << counted_turns.best_chain);
    CHECK(counted.own >= 0.97 * counted.best_chain);
    CHECK(counted_half.own >= 0.97 * counted_half.best_chain);
    CHECK(counted_turns.own >= 0.97 * counted_turns.best_chain);
  }
}

TEST_CASE("cost_aware over runs: at least 0.98 of plain decoding where nothing pays, also in short texts") {
  // A chain of 8 loses a third.
  const cost_model& costs = recorded()[0];
  for (const unsigned vocab : {20U, 50U, 500U, 5000U}) {
    for (const std::size_t n : {128U, 1000U}) {
      const auto texts = eight([&](unsigned seed) { return noise(300 + seed, n, vocab); });
      const rates looked_up = rates_of<prompt_lookup>(texts, costs), counted = rates_of<ngram>(texts, costs);
      INFO(n << " tokens of " << vocab << ": " << looked_up.own << " and " << counted.own);
      CHECK(looked_up.own >= 0.98);
      CHECK(counted.own >= 0.98);
    }
  }
}

TEST_CASE("cost_aware over runs finds at once that a text begins to copy, however long it did not") {
  const cost_model& costs = recorded()[0];
  std::mt19937 random(4);
  for (const std::size_t bad : {50U, 500U, 3000U}) {
    known_text text{any_tokens(random, 300 + bad, 60)};
    prompt_lookup drafter;
    cost_aware policy({}, costs);
    write(text, drafter, policy, costs);
    const tokens beginning(text.all.begin(), text.all.begin() + 120);
    known_text longer{text.all, text.all.size()};
    longer.all.insert(longer.all.end(), beginning.begin(), beginning.end());
    const written_so copied = write(longer, drafter, policy, costs);
    INFO("after " << bad << " tokens: " << copied.tokens / copied.seconds);
    CHECK(copied.tokens / copied.seconds > 2);
  }
}

TEST_CASE("cost_aware over runs whose match is not known") {
  struct silent : prompt_lookup {
    token_run propose_run(std::int32_t n) { return {prompt_lookup::propose_run(n).tokens}; }
  };
  const cost_model& costs = recorded()[0];
  const auto copying = eight([](unsigned seed) { return edited(seed, 100); });
  const rates copied = rates_of<silent>(copying, costs);
  INFO(copied.own << " and " << copied.best_chain);
  CHECK(copied.own >= 0.85 * copied.best_chain);
  CHECK(rates_of<silent>(eight([](unsigned seed) { return noise(seed, 300, 50); }), costs).own >= 0.98);
}

TEST_CASE("cost_aware over runs: a policy that was saved goes on as the one that saved it, and a reset one from new") {
  const cost_model& costs = recorded()[1];
  const known_text text = quoting(9), other = edited(3, 12);
  prompt_lookup drafter;
  cost_aware policy({}, costs), loaded({}, costs), fresh({}, costs);
  write(text, drafter, policy, costs);
  std::vector<std::byte> bytes;
  {
    byte_writer archive(bytes, "a policy", 1);
    policy.serialize(archive);
    archive.finish();
  }
  byte_reader archive(bytes, "a policy", 1);
  loaded.serialize(archive);
  const written_so a = write(other, drafter, policy, costs), b = write(other, drafter, loaded, costs);
  CHECK(a.drafted == b.drafted);
  CHECK(a.seconds == b.seconds);
  policy.reset();
  CHECK(write(other, drafter, policy, costs).drafted == write(other, drafter, fresh, costs).drafted);
  CHECK(a.drafted != write(other, drafter, fresh, costs).drafted);
}

TEST_CASE("cost_aware over runs: budget and limit are kept, no draft is paid for, and nothing allocates") {
  prompt_lookup drafter;
  drafter.begin(tokens(200, 3));
  // A draft model would cost as much as half a plain round.
  cost_aware policy({.budget = 5, .max_depth = 3, .draft_cost = 0.5, .row_cost = 0});
  tree<> t(5);
  philox_chance chance(1, 0, 0);
  const allocation_count count;
  for (int i = 0; i < 50; ++i) {
    const std::int32_t limit = i % 7;
    t.reset(3, limit);
    policy.open({.length = 200 + i});
    grow(policy, t, drafter, chance);
    // A run is one answer: its tokens are no levels that were asked about.
    REQUIRE(t.size() - 1 == (std::min)(limit, 5));
    policy.observe(t, {t.size() - 1, 3});
  }
  CHECK(count.so_far() == 0);
  CHECK(policy.tokens_per_second() > 3);
}

TEST_CASE("cost_aware over runs: texts that share a budget share out the rows of a pass") {
  // Eight rows for the price of one, and then each as much as a pass.
  const cost_model costs{{}, {}, {}, cost_curve::linear(0, 0), cost_curve::of_grid({1, 8, 9, 40}, {0}, {1, 1, 2, 33})};
  prompt_lookup drafter;
  drafter.begin(tokens(200, 3));
  for (const std::int32_t n_texts : {1, 2, 4, 8}) {
    round_budget budget(costs, 32);
    std::vector<cost_aware> policies(static_cast<std::size_t>(n_texts), cost_aware({}, costs));
    std::vector<tree<>> trees(policies.size(), tree<>(32));
    std::int32_t rows = 0;
    for (int round = 0; round < 40; ++round) {
      budget.begin(n_texts, 200);
      rows = 0;
      philox_chance chance(1, 0, 0);
      for (std::size_t i = 0; i < policies.size(); ++i) {
        trees[i].reset(3);
        policies[i].open({.length = 201});
        policies[i].join(budget);
        grow(policies[i], trees[i], drafter, chance);
        rows += trees[i].size();
      }
      for (std::size_t i = 0; i < policies.size(); ++i)
        policies[i].observe(trees[i], {trees[i].size() - 1, 3});
      budget.end();
    }
    INFO(n_texts << " texts");
    CHECK(rows <= 8 + (n_texts > 1 ? n_texts : 0));  // each goes by what the others lately had
    CHECK(rows >= (n_texts == 8 ? 8 : 6));
  }
}
