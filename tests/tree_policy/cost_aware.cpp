// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "raises.hpp"
#include "tree_policy/row_drafter.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 6;

// At every node the same row: token 0 with this probability, the others alike.
row_drafter sure_drafter(double probability) {
  return row_drafter(vocab, [=](std::span<const token_id>) {
    std::vector<double> row(vocab, (1 - probability) / (vocab - 1));
    row[0] = probability;
    return row;
  });
}

// A text that is written without models. The target's next token is the draft's best one in a share of the places.
template <class PolicyT>
struct written {
  PolicyT policy;
  cost_model costs;
  double sureness = 0.8;
  std::int32_t length = 100;  // of the text
  int unread = 0;             // tokens that the draft has not seen
  double seconds = 0;
  int tokens = 0, rounds = 0, asked_rounds = 0;
  std::vector<std::int32_t> sizes{};

  // share(place in the text): whether the target follows the draft there.
  template <class FollowsT>
  void round(const FollowsT& follows) {
    row_drafter drafter = sure_drafter(sureness);
    tree<> t(most_asked(policy));
    t.reset(0);
    drafter.reserve(t.capacity());
    philox_chance chance(3, 0, static_cast<std::uint32_t>(rounds));
    policy.open({.length = length});
    policy.grow(t, drafter, chance);
    REQUIRE(drafter.lawful);
    const tree_view view = t;
    verdict v;
    for (;;) {
      v.token = follows(length + view.depth[v.accepted]) ? 0 : vocab;
      const node_id child = view.find_child(v.accepted, v.token);
      if (child == no_node) break;
      v.accepted = child;
    }
    policy.observe(view, v);
    std::vector<int> level(static_cast<std::size_t>(view.n_nodes) + 1, 0);
    for (int pass = 0; pass < drafter.passes; ++pass)
      seconds += costs.draft_pass(1 + (pass == 0 ? unread : 0), length - 1);
    seconds += costs.target_pass(view.n_nodes, length - 1) + (drafter.passes > 0 ? costs.opening : 0);
    const int committed = view.depth[v.accepted] + 1;
    unread = drafter.passes > 0 ? 0 : unread + committed;
    length += committed;
    tokens += committed;
    ++rounds;
    asked_rounds += drafter.passes > 0 ? 1 : 0;
    sizes.push_back(view.n_nodes - 1);
  }
};

template <class PolicyT>
written<PolicyT> text(const cost_model& costs, cost_aware_options options = {}) {
  return {PolicyT(options, costs), costs};
}

cost_model usual() {
  return cost_aware_options{}.costs();
}

const auto always = [](std::int32_t) { return true; };
const auto never = [](std::int32_t) { return false; };

template <class PolicyT>
void check_useless_draft() {
  auto t = text<PolicyT>(usual());
  t.sureness = 0.95;  // it does not know how bad it is
  while (t.tokens < 256)
    t.round(never);
  INFO(t.asked_rounds << " rounds with a draft, " << t.seconds << " plain rounds");
  CHECK(t.asked_rounds >= 4);  // it is tried again
  CHECK(256 / t.seconds >= 0.97);
}

// To trees of five drafted tokens or more: more than a trial has. Draws of a draft as sure as that are accepted nine times in ten,
// for which the best path is longer than five.
template <class PolicyT>
void check_return() {
  for (const int bad : {20, 100, 300}) {
    auto t = text<PolicyT>(usual());
    t.sureness = 0.9;
    while (t.tokens < bad)
      t.round(never);
    const double seconds = t.seconds;
    const int tokens = t.tokens;
    while (t.tokens < tokens + 400)
      t.round(always);
    INFO("after " << bad << " bad tokens: " << (t.tokens - tokens) / (t.seconds - seconds));
    CHECK((t.tokens - tokens) / (t.seconds - seconds) > 1.5);
    CHECK(*std::max_element(t.sizes.end() - 5, t.sizes.end()) >= 5);
  }
}

}  // namespace

TEST_CASE("the cost-aware policies name wrong options") {
  CHECK(says(message_of<option_error>([] { cost_aware({.budget = 0}); }), "budget", "0", "1 and 1024"));
  CHECK(says(message_of<option_error>([] { cost_aware({.max_depth = 65}); }), "max_depth", "65", "1 and 64"));
  CHECK(says(message_of<option_error>([] { cost_aware_draws({.draft_cost = -1}); }), "draft_cost", "-1", "0 and 100"));
  CHECK(says(message_of<option_error>([] { cost_aware_draws({.row_cost = std::nan("")}); }), "row_cost", "0 and 100"));
  CHECK(says(message_of<option_error>([] { cost_aware_draws({.budget = 2000}, usual()); }), "budget", "2000"));
}

TEST_CASE("acceptance is calibrated by what was accepted, and rises with the draft's probability") {
  acceptance_calibration c({0.3, 1.2});
  const double before = c.probability(0.6);
  CHECK(c.probability(0.99) > c.probability(0.6));
  // A draft that says 0.9 and is right in a third of all cases; where it says 0.3, in a tenth. Only the last ones count,
  // and the prior always does.
  double sure = 0, unsure = 0;
  for (int i = 0; i < 1800; ++i) {
    c.observe(0.9, i % 3 == 0);
    c.observe(0.3, i % 10 == 0);
    if (i >= 900) sure += c.probability(0.9) / 900, unsure += c.probability(0.3) / 900;
  }
  CHECK(std::abs(sure - 1.0 / 3) < 0.15);
  CHECK(std::abs(unsure - 0.1) < 0.1);
  for (double p = 0; p < 1; p += 0.01)
    CHECK(c.probability(p) <= c.probability(p + 0.01));
  // Where more of the unlikely is accepted, the line is level, and never falls.
  for (int i = 0; i < 900; ++i) {
    c.observe(0.9, i % 10 == 0);
    c.observe(0.1, i % 10 != 0);
  }
  CHECK(c.probability(0.1) <= c.probability(0.9));
  for (const double p : {0.0, 1.0, 1e-30})
    CHECK((c.probability(p) > 0 && c.probability(p) < 1));
  c.reset();
  CHECK(c.probability(0.6) == before);
}

TEST_CASE("a few failures at the beginning of a text are enough to doubt the draft") {
  acceptance_calibration c({0.3, 1.2});
  for (int i = 0; i < 5; ++i)
    c.observe(0.9, false);
  CHECK(c.probability(0.9) < 0.35);
}

TEST_CASE("a prior that weighs more yields later, but yields") {
  acceptance_calibration light({1.5, 0.3}), heavy({1.5, 0.3}, 6);
  CHECK(heavy.probability(0.9) == light.probability(0.9));
  for (int i = 0; i < 5; ++i) {
    light.observe(0.9, false);
    heavy.observe(0.9, false);
  }
  CHECK(heavy.probability(0.9) > light.probability(0.9) + 0.1);
  for (int i = 0; i < 300; ++i)
    heavy.observe(0.9, false);
  CHECK(heavy.probability(0.9) < 0.15);
}

TEST_CASE("the price is the rate of the last rounds, and that of plain decoding at least") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};
  throughput_price price(costs, 8);
  // At first, twice that.
  price.begin_round(8);
  CHECK(price.of_rows(0) == 0);
  CHECK(price.of_rows(3) == Approx(3));
  CHECK(price.of_pass(3) == Approx(1));
  // Rounds of six tokens in 0.5 + 2 seconds.
  for (int i = 0; i < 400; ++i) {
    price.begin_round(8);
    price.add_pass(1);
    price.end_round(0);
    price.observe(6);
  }
  CHECK(price.tokens_per_second() == Approx(2.4));
  CHECK(price.round_seconds() == Approx(2.5));
  price.begin_round(8);
  CHECK(price.of_rows(3) == Approx(3 * 2.4));
  // Rounds that take long and give little count as plain ones; what they wrote is read in one pass.
  for (int i = 0; i < 400; ++i) {
    price.begin_round(8);
    price.end_round(8);
    price.observe(1);
  }
  CHECK(price.tokens_per_second() == Approx(0.1));
  price.begin_round(8);
  CHECK(price.of_rows(3) == Approx(1.5));
  CHECK(price.of_pass(2) == Approx(0.5 * 0.75));
  price.add_pass(1);
  price.end_round(0);
  CHECK(price.round_seconds() == Approx(0.5 + 400 * 0.25 + 2));
}

TEST_CASE("pauses grow until the draft has gained what a text begins with") {
  draft_pauses pauses;
  const auto pause = [&] {
    int rounds = 0;
    while (!pauses.asks())
      ++rounds;
    return rounds;
  };
  CHECK(pause() == 0);
  CHECK(!pauses.paused());
  pauses.observe(false, -3);
  for (const int length : {4, 16, 64, 128, 128}) {
    CHECK(pause() == length);
    CHECK(pauses.paused());
    pauses.observe(false, -1);
  }
  CHECK(pause() == 128);
  // A trial that succeeds is not enough.
  pauses.observe(true, -1);
  CHECK(!pauses.paused());
  CHECK(pause() == 0);
  pauses.observe(true, -1);
  CHECK(pause() == 128);
  pauses.observe(true, -1);
  for (int i = 0; i < 2; ++i) {
    CHECK(pause() == 0);
    pauses.observe(true, 1);
  }
  CHECK(pause() == 0);
  pauses.observe(false, -9);
  CHECK(pause() == 4);
}

TEST_CASE("the draft is asked until its credit and what it has gained are used up") {
  draft_pauses pauses;
  const auto asked = [&] {
    int rounds = 0;
    for (; pauses.asks(); ++rounds)
      pauses.observe(false, -0.25);
    return rounds;
  };
  const int at_once = asked();
  CHECK((at_once > 5 && at_once < 9));  // two plain rounds are lost; the credit fades, too
  pauses.reset();
  for (int i = 0; i < 1000; ++i)
    pauses.observe(true, 1);
  const int later = asked();
  CHECK((later > 20 && later < 50));  // gains fade
}

TEST_CASE("the price tells what a round has gained, and whether any can") {
  cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};
  costs.opening = 1;
  throughput_price price(costs, 8);
  price.begin_round(8);
  price.add_pass(1);
  price.end_round(1);
  price.observe(2);
  CHECK(price.gain() == Approx(2 - 4.5 / 2));
  price.begin_round(8);
  price.end_round(0);
  price.observe(1);
  CHECK(price.gain() == Approx(0));
  // Each token saves 2 seconds and takes 1.5; a second opens the round.
  price.begin_round(8);
  CHECK(!price.can_gain(0));
  CHECK(!price.can_gain(2));
  CHECK(price.can_gain(3));
  costs.opening = 4.5;
  price = throughput_price(costs, 8);
  price.begin_round(8);
  CHECK(!price.can_gain(8));
}

TEST_CASE(
    "finding out that a draft is useless, and three trials, cost a few plain rounds, however slowly rounds open") {
  for (const double opening : {0.0, 0.1, 0.3, 0.6}) {
    cost_model costs = usual();
    costs.opening = opening;
    auto t = text<cost_aware>(costs);
    t.sureness = 0.6;
    while (t.tokens < 128)
      t.round(never);
    INFO("opening " << opening << ": " << t.asked_rounds << " rounds with a draft, " << t.seconds << " plain rounds");
    CHECK(t.seconds < 128 + 3 + 5 * opening);
    CHECK(t.asked_rounds >= 2);
  }
}

TEST_CASE("a draft that gains goes on being asked, though it is unsure and a round with it opens slowly") {
  cost_model costs = usual();
  costs.opening = 0.3;
  auto t = text<cost_aware>(costs);
  t.sureness = 0.4;
  for (int i = 0; i < 60; ++i)
    t.round([](std::int32_t place) { return place % 4 != 0; });
  INFO(t.asked_rounds << " rounds with a draft, " << t.tokens / t.seconds << " tokens a plain round");
  CHECK(t.asked_rounds >= 58);
  CHECK(t.tokens / t.seconds > 1.2);
}

TEST_CASE("a useless draft costs at most 3 percent of plain decoding, and is tried again") {
  check_useless_draft<cost_aware>();
  check_useless_draft<cost_aware_draws>();
}

TEST_CASE("a draft that becomes good again is found") {
  check_return<cost_aware>();
  check_return<cost_aware_draws>();
}

TEST_CASE("nothing is drafted where a draft pass costs as much as the target's") {
  auto greedy_text = text<cost_aware>(cost_aware_options{.draft_cost = 1}.costs());
  auto drawn_text = text<cost_aware_draws>(cost_aware_options{.draft_cost = 1}.costs());
  for (int i = 0; i < 7; ++i) {
    greedy_text.round(always);
    drawn_text.round(always);
  }
  CHECK(greedy_text.asked_rounds == 0);
  CHECK(drawn_text.asked_rounds == 0);
}

TEST_CASE("trees are deep where the draft is right, shallow where it is often wrong") {
  double size[2] = {0, 0};
  for (const int often : {0, 1}) {
    auto t = text<cost_aware>(usual());
    for (int i = 0; i < 60; ++i)
      t.round([&](std::int32_t place) { return often == 1 || place % 2 == 0; });
    for (std::size_t i = 30; i < 60; ++i)
      size[often] += t.sizes[i] / 30.0;
  }
  INFO(size[0] << " and " << size[1]);
  CHECK(size[1] > 2 * size[0]);
  CHECK(size[0] > 0.5);
}

TEST_CASE("draws are a path where the first is often right, and go on from the second where the first never is") {
  // The target takes the first draw in most places, or any but token 0, which the draft nearly always draws first.
  for (const bool first : {true, false}) {
    auto t = text<cost_aware_draws>(cost_aware_options{.draft_cost = 0.05, .row_cost = 0.02}.costs());
    int deep = 0, beside = 0;
    for (std::uint32_t round = 0; round < 80; ++round) {
      row_drafter drafter = row_drafter(3, [](std::span<const token_id>) { return std::vector<double>{0.9, 0.1, 0}; });
      tree<> grown(most_asked(t.policy));
      grown.reset(0);
      drafter.reserve(grown.capacity());
      philox_chance chance(3, 0, round);
      t.policy.open({.length = 100});
      t.policy.grow(grown, drafter, chance);
      const tree_view view = grown;
      verdict v;
      for (node_id child; (child = view.find_child(v.accepted, first ? 0 : 1)) != no_node;)
        v.accepted = child;
      v.token = 2;
      t.policy.observe(view, v);
      if (round < 40) continue;
      deep += view.depth[v.accepted];
      for (node_id u = 1; u < view.n_nodes; ++u)
        beside += *view.draws(view.parent[u]).begin() == u ? 0 : 1;
    }
    INFO(deep << " accepted in 40 rounds, " << beside << " further draws");
    CHECK(deep >= 80);
    CHECK((first ? beside < 80 : beside >= 80));
  }
}

TEST_CASE("where the target's pass takes longer in steps, whole steps are weighed") {
  // Rows in eights.
  cost_model costs = cost_aware_options{.draft_cost = 0.02}.costs();
  std::vector<cost_sample> samples;
  for (std::int32_t rows = 1; rows <= 41; ++rows)
    samples.push_back({rows, 0, 1 + 0.3 * ((rows - 1) / 8)});
  costs.target_pass = cost_curve::fit(samples);
  for (const double sureness : {0.5, 0.9}) {
    auto t = text<cost_aware>(costs);
    auto drawn = text<cost_aware_draws>(costs);
    t.sureness = drawn.sureness = sureness;
    int whole = 0, beyond = 0;
    for (int i = 0; i < 60; ++i) {
      t.round(always);
      drawn.round(always);
      if (i < 20) continue;
      whole += t.sizes.back() % 8 == 7 ? 1 : 0;
      beyond += t.sizes.back() > 7 ? 1 : 0;
    }
    // The rows of a step are used up, and where all is accepted, further steps are taken.
    CHECK(whole >= 35);
    CHECK(beyond >= 20);
    CHECK(drawn.sizes.back() >= 7);
  }
}

TEST_CASE("equal texts grow equal trees, and a new text begins as the first one did") {
  const auto follows = [](std::int32_t place) { return place % 5 != 3; };
  auto a = text<cost_aware>(usual()), b = a;
  auto c = text<cost_aware_draws>(usual()), d = c;
  for (int i = 0; i < 40; ++i) {
    a.round(follows);
    c.round(follows);
  }
  b.policy.observe(tree<>(1).view(), {root_node, 1});
  for (int i = 0; i < 9; ++i) {
    b.round(never);
    d.round(never);
  }
  b.policy.reset();
  d.policy.reset();
  b = {b.policy, b.costs};
  d = {d.policy, d.costs};
  for (int i = 0; i < 40; ++i) {
    b.round(follows);
    d.round(follows);
  }
  CHECK(a.sizes == b.sizes);
  CHECK(c.sizes == d.sizes);
  CHECK(a.tokens == b.tokens);
}

TEST_CASE("budget, depth and the tree's limit are kept") {
  for (const cost_aware_options o :
       {cost_aware_options{.budget = 3, .draft_cost = 0, .row_cost = 0},
        cost_aware_options{.budget = 40, .max_depth = 2, .draft_cost = 0, .row_cost = 0}}) {
    for (const int limit : {0, 1, 2, 3, 7, 100}) {
      const auto check = [&](auto policy) {
        for (std::uint32_t round = 0; round < 6; ++round) {
          row_drafter drafter = sure_drafter(0.4);
          tree<> t(most_asked(policy));
          t.reset(0, limit);
          drafter.reserve(t.capacity());
          philox_chance chance(8, 0, round);
          policy.grow(t, drafter, chance);
          REQUIRE(drafter.lawful);
          const tree_view view = t;
          REQUIRE(view.n_draws <= std::min(o.budget, limit));
          REQUIRE(*std::max_element(view.depth, view.depth + view.n_nodes) <= o.max_depth);
          // Where nothing costs anything, all that can be had is used.
          if (o.max_depth > 2) REQUIRE(view.n_draws == std::min(o.budget, limit));
          policy.observe(view, {view.n_nodes - 1, vocab});
        }
      };
      check(cost_aware(o));
      check(cost_aware_draws(o));
    }
  }
}

TEST_CASE("rows that can give nothing end the tree") {
  const auto check = [](auto policy) {
    row_drafter nothing(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
    row_drafter certain(3, [](std::span<const token_id>) { return std::vector<double>{0, 1, 0}; });
    for (std::uint32_t round = 0; round < 30; ++round) {
      row_drafter& drafter = round % 2 == 0 ? nothing : certain;
      tree<> t(most_asked(policy));
      t.reset(0);
      drafter.reserve(t.capacity());
      philox_chance chance(8, 0, round);
      policy.grow(t, drafter, chance);
      REQUIRE(drafter.lawful);
      if (round % 2 == 0) REQUIRE(t.size() == 1);
      for (node_id u = 1; u < t.size(); ++u)
        REQUIRE(t.view().parent[u] == u - 1);
      policy.observe(t, {t.size() - 1, 0});
    }
  };
  check(cost_aware());
  check(cost_aware_draws());
}

TEST_CASE("what opens a round counts as a part of its first pass") {
  cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};
  costs.opening = 3;
  throughput_price price(costs, 8);
  price.begin_round(8);
  CHECK(price.of_pass(1) == Approx(0.5));
  price.add_pass(1);
  price.add_pass(1);
  price.end_round(0);
  CHECK(price.round_seconds() == Approx(3 + 0.5 + 0.5 + 2));
  const auto check = [&](auto kind) {
    cost_model dear = usual();
    dear.opening = 100;
    auto t = text<typename decltype(kind)::type>(dear);
    for (int i = 0; i < 8; ++i)
      t.round(always);
    CHECK(t.asked_rounds == 0);
  };
  check(std::type_identity<cost_aware>());
  check(std::type_identity<cost_aware_draws>());
}

TEST_CASE("costs that fall by a rounding error do not keep a round from ending") {
  const double a = 0.0018743108943255682, b = 0.010430559366937495;
  const cost_curve target = cost_curve::of_grid({1, 8}, {16, 80}, {a, b, std::nextafter(a, 1.0), b});
  REQUIRE(target(3, 55) < target(2, 55));
  const auto check = [&](auto policy) {
    row_drafter certain(3, [](std::span<const token_id>) { return std::vector<double>{0, 1, 0}; });
    tree<> t(most_asked(policy));
    certain.reserve(t.capacity());
    for (std::uint32_t round = 0; round < 20; ++round) {
      t.reset(0);
      policy.open({.length = 56});
      philox_chance chance(8, 0, round);
      policy.grow(t, certain, chance);
      policy.observe(t, {t.size() - 1, 0});
    }
    CHECK(t.size() > 1);
  };
  const cost_model costs{{}, {}, {}, cost_curve::linear(1e-4, 1e-5), target};
  check(cost_aware({}, costs));
  check(cost_aware_draws({}, costs));
}

TEST_CASE("a round without a verdict leaves no trace in what is drafted later") {
  const auto check = [](auto kind) {
    using policy_type = typename decltype(kind)::type;
    auto smooth = text<policy_type>(usual()), broken = text<policy_type>(usual());
    for (std::int32_t i = 0; i < 200; ++i) {
      if (i % 3 == 0) {
        row_drafter drafter = sure_drafter(0.2);
        tree<> t(most_asked(broken.policy));
        t.reset(0);
        drafter.reserve(t.capacity());
        philox_chance chance(4, 0, static_cast<std::uint32_t>(i));
        broken.policy.grow(t, drafter, chance);
      }
      const auto follows = [](std::int32_t place) { return place / 60 % 2 == 0 || place % 5 == 0; };
      smooth.round(follows);
      broken.round(follows);
    }
    CHECK(smooth.sizes == broken.sizes);
    CHECK(smooth.asked_rounds == broken.asked_rounds);
  };
  check(std::type_identity<cost_aware>());
  check(std::type_identity<cost_aware_draws>());
}

namespace {

// Always the same row, made once.
struct one_row_drafter {
  std::vector<float> data = std::vector<float>(33 * 8, 0.125F);
  std::vector<std::int32_t> row_of = std::vector<std::int32_t>(33, 0);
  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return 8; }
  vocab_rows<float> propose(tree_view, std::span<const node_id> nodes) {
    return {data.data(), static_cast<std::int32_t>(nodes.size()), 8};
  }
  void renumber(std::span<const node_id>) {}
  node_rows<float> rows() const { return {{data.data(), 33, 8}, row_of.data()}; }
};

}  // namespace

TEST_CASE("no round of a cost-aware policy allocates") {
  const auto check = [](auto policy) {
    one_row_drafter drafter;
    tree<> t(most_asked(policy));
    int drawn = 0;
    allocation_count count;
    for (std::uint32_t round = 0; round < 100; ++round) {
      t.reset(0);
      philox_chance chance(8, 0, round);
      policy.open({.length = static_cast<std::int32_t>(50 + round)});
      policy.grow(t, drafter, chance);
      drawn += t.size() - 1;
      policy.observe(t, {round % 30 < 20 ? t.size() - 1 : 0, 99});
    }
    CHECK(count.so_far() == 0);
    CHECK(drawn > 100);
  };
  const cost_aware_options cheap{.draft_cost = 0.01, .row_cost = 0.001};
  check(cost_aware(cheap));
  check(cost_aware_draws(cheap));
}
