// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/decoder/grow.hpp"

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
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "raises.hpp"
#include "tree_policy/written_text.hpp"

using namespace espalier;
using namespace written_text;

namespace {

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

// To trees of five drafted tokens or more: more than a trial has. Draws of a draft as sure as that are accepted nine
// times in ten, for which the best path is longer than five.
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
          testing::row_drafter drafter = sure_drafter(0.4);
          tree<> t(most_asked(policy));
          t.reset(0, limit);
          drafter.reserve(t.capacity());
          philox_chance chance(8, 0, round);
          espalier::grow(policy, t, drafter, chance);
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
    testing::row_drafter nothing(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
    testing::row_drafter certain(3, [](std::span<const token_id>) { return std::vector<double>{0, 1, 0}; });
    for (std::uint32_t round = 0; round < 30; ++round) {
      testing::row_drafter& drafter = round % 2 == 0 ? nothing : certain;
      tree<> t(most_asked(policy));
      t.reset(0);
      drafter.reserve(t.capacity());
      philox_chance chance(8, 0, round);
      espalier::grow(policy, t, drafter, chance);
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
  round_budget budget(costs, 8);
  budget.begin(1, 0);
  CHECK(budget.of_pass(1) == Approx(0.5));
  budget.add_nodes(0, 1);
  budget.add_nodes(1, 1);
  CHECK(budget.round_seconds() == Approx(3 + 0.5 + 0.5 + 2));
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
    testing::row_drafter certain(3, [](std::span<const token_id>) { return std::vector<double>{0, 1, 0}; });
    tree<> t(most_asked(policy));
    certain.reserve(t.capacity());
    for (std::uint32_t round = 0; round < 20; ++round) {
      t.reset(0);
      policy.open({.length = 56});
      philox_chance chance(8, 0, round);
      espalier::grow(policy, t, certain, chance);
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
        testing::row_drafter drafter = sure_drafter(0.2);
        tree<> t(most_asked(broken.policy));
        t.reset(0);
        drafter.reserve(t.capacity());
        philox_chance chance(4, 0, static_cast<std::uint32_t>(i));
        espalier::grow(broken.policy, t, drafter, chance);
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
  void propose(tree_view, std::span<const node_id>) {}
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
      espalier::grow(policy, t, drafter, chance);
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
