// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/decoder/shared_rows.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/same_text.cuh"
#include "cuda/device_trees.cuh"
#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/round_size.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/eagle2.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/target_only.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::device_sequences;
using espalier_test::device_text_backend;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

// A tree of so many drafted nodes, whose paths have probabilities of all sizes, many of them equal.
tree<> some_tree(std::int32_t n, std::uint32_t seed) {
  tree<> t(n);
  t.reset(1, n);
  std::uint32_t x = seed;
  for (std::int32_t u = 1; u <= n; ++u) {
    x = x * 1664525U + 1013904223U;
    const auto above = static_cast<node_id>((x >> 8) % static_cast<std::uint32_t>(u));
    t.append(above, 100 + u, std::log(std::ldexp(1.0F, -static_cast<int>((x >> 20) % 4))));
  }
  return t;
}

// What a tree is after the cut to some of its nodes: the host's own appending.
tree<> cut_to(tree_view from, const std::vector<bool>& stays) {
  tree<> t(from.n_nodes);
  t.reset(from.token[0], from.n_nodes);
  std::vector<node_id> now(static_cast<std::size_t>(from.n_nodes), root_node);
  for (node_id u = 1; u < from.n_nodes; ++u) {
    if (!stays[static_cast<std::size_t>(u)]) continue;
    const node_id above = now[static_cast<std::size_t>(from.parent[u])];
    now[static_cast<std::size_t>(u)] = t.append(above, from.token[u], from.log_prob[u]);
  }
  return t;
}

template <class ElementT>
bool same(const ElementT* a, const ElementT* b, std::int32_t n) {
  return std::equal(a, a + n, b);
}

bool same_tree(tree_view a, tree_view b) {
  return a.n_nodes == b.n_nodes && a.n_draws == b.n_draws && same(a.token, b.token, a.n_nodes) &&
         same(a.parent, b.parent, a.n_nodes) && same(a.depth, b.depth, a.n_nodes) &&
         same(a.first_draw, b.first_draw, a.n_nodes) && same(a.next_draw, b.next_draw, a.n_draws) &&
         same(a.drawn_node, b.drawn_node, a.n_draws) && same(a.path_log_prob, b.path_log_prob, a.n_nodes);
}

// The trees of the device, by place.
std::vector<std::int32_t> words_of(const device::text_batch& texts, std::int32_t n_places) {
  const auto* first = reinterpret_cast<const std::int32_t*>(texts.trees.size);
  return to_host(first, static_cast<std::size_t>(texts.tree_words) * static_cast<std::size_t>(n_places));
}

}  // namespace

TEST_CASE("Rows go to the nodes that gain most, whosever they are, and trees are cut to them") {
  constexpr std::int32_t capacity = 300, n_texts = 4;
  const auto drafted = GENERATE(0, 1, 7, 60, 250, 410, 600);
  const std::vector<std::int32_t> sizes{280, 0, 40, 90};
  device_sequences sequences(n_texts, capacity);
  std::vector<tree<>> trees;
  for (std::int32_t i = 0; i < n_texts; ++i) {
    trees.push_back(some_tree(sizes[static_cast<std::size_t>(i)], static_cast<std::uint32_t>(i) + 5));
    sequences.set(i, trees.back(), 10);
  }
  // Lanes in another order than places, one of them empty.
  const std::vector<std::int32_t> places{2, 0, 3, 1, -1};
  const auto place_of = to_device(places);
  device::text_batch texts = sequences.texts();
  texts.n = 5;
  texts.place_of = place_of.data();

  device::detail::shared_rows<false> shared(capacity, n_texts);
  for (std::int32_t i = 0; i < n_texts; ++i)
    shared.forget(i, nullptr);
  constexpr std::int32_t n_sizes = 8;
  const auto expected = to_device(std::vector<float>(n_sizes, -1.0F));
  shared.share(texts, drafted + n_texts, expected.data(), 1, n_sizes, nullptr);
  const device::moved_nodes moved = shared.cut(texts, nullptr);

  // The reference: all nodes sorted by bins, those of equal bins by lane and node.
  struct node {
    std::int32_t bin, lane;
    node_id u;
  };
  std::vector<node> all;
  for (std::int32_t lane = 0; lane < n_texts; ++lane) {
    const tree_view t = trees[static_cast<std::size_t>(places[static_cast<std::size_t>(lane)])].view();
    for (node_id u = 1; u < t.n_nodes; ++u)
      all.push_back({device::detail::gain_bin(t.path_log_prob[u]), lane, u});
  }
  std::stable_sort(all.begin(), all.end(), [](const node& a, const node& b) { return a.bin < b.bin; });
  std::vector<std::vector<bool>> stays;
  for (const tree<>& t : trees)
    stays.emplace_back(static_cast<std::size_t>(t.size()), false);
  for (std::size_t i = 0; i < all.size() && i < static_cast<std::size_t>(drafted); ++i) {
    const auto place = static_cast<std::size_t>(places[static_cast<std::size_t>(all[i].lane)]);
    stays[place][static_cast<std::size_t>(all[i].u)] = true;
  }
  auto words = words_of(texts, n_texts);
  for (std::int32_t i = 0; i < n_texts; ++i) {
    INFO("text " << i);
    const auto at = static_cast<std::size_t>(i);
    const tree<> wanted = cut_to(trees[at].view(), stays[at]);
    const tree_view found =
        device::tree::at(words.data() + at * static_cast<std::size_t>(texts.tree_words), capacity).view();
    CHECK(same_tree(found, wanted.view()));
    const auto was = to_host(moved.of(i), static_cast<std::size_t>(found.n_nodes));
    for (node_id v = 0; v < found.n_nodes; ++v)
      CHECK(trees[at].view().token[was[static_cast<std::size_t>(v)]] == found.token[v]);
  }
  const auto gains = to_host(expected.data(), static_cast<std::size_t>(n_sizes));
  for (std::int32_t i = 0; i < n_sizes; ++i) {
    double sum = 0;
    for (std::int32_t k = 0; k < std::min<std::int32_t>((5 << i) - n_texts, static_cast<std::int32_t>(all.size())); ++k)
      sum += std::exp2(-(all[static_cast<std::size_t>(k)].bin + 0.5) / 8);
    CHECK(static_cast<double>(gains[static_cast<std::size_t>(i)]) == Approx(sum).epsilon(1e-4));
  }
}

TEST_CASE("A text whose drafts are accepted gets more rows than one whose drafts are not") {
  constexpr std::int32_t capacity = 8;
  const bool draws = GENERATE(false, true);
  CAPTURE(draws);
  device_sequences sequences(2, capacity);
  const auto chain = [] {
    tree<> t(capacity);
    t.reset(1, capacity);
    for (node_id u = 0; u < capacity; ++u)
      t.append(u, u + 2, std::log(0.7F));
    return t;
  }();
  const device::text_batch texts = sequences.texts();
  const auto put = [&](bool grown) {
    tree<> root(capacity);
    root.reset(1, capacity);
    for (std::int32_t i = 0; i < 2; ++i)
      sequences.set(i, grown ? chain.view() : root.view(), 10);
  };
  const auto run = [&]<bool DrawsV>(std::bool_constant<DrawsV>) {
    device::detail::shared_rows<DrawsV> shared(capacity, 2);
    shared.forget(0, nullptr), shared.forget(1, nullptr);
    const auto expected = to_device(std::vector<float>(1));
    const auto rows_of = [&] {
      put(!DrawsV);
      shared.share(texts, 8 + 2, expected.data(), 1, 1, nullptr);
      if constexpr (!DrawsV) (void)shared.cut(texts, nullptr);
      auto words = words_of(texts, 2);
      std::vector<std::int32_t> rows;
      for (std::size_t i = 0; i < 2; ++i) {
        const auto w = device::tree::at(words.data() + i * static_cast<std::size_t>(texts.tree_words), capacity);
        rows.push_back(DrawsV ? w.size->limit : w.size->n_draws);
      }
      return rows;
    };
    const auto before = rows_of();
    CHECK(before[0] + before[1] == 8);
    CHECK(std::abs(before[0] - before[1]) <= 1);
    const auto decisions = to_device(std::vector<verdict>{{root_node, 5}, {capacity, 5}});
    for (int round = 0; round < 10; ++round) {
      put(true);
      shared.observe(texts, decisions.data(), nullptr);
    }
    const auto after = rows_of();
    CHECK(after[0] + after[1] == 8);
    CHECK(after[0] <= 1);
    // Whoever begins in the place knows nothing of the last text.
    shared.forget(0, nullptr), shared.forget(1, nullptr);
    CHECK(rows_of() == before);
  };
  draws ? run(std::true_type()) : run(std::false_type());
}

TEST_CASE("Levels that are drawn side by side share what one of them gains") {
  constexpr std::int32_t capacity = 64;
  device_sequences sequences(2, capacity);
  // One text is drawn in eight paths, the other in one.
  tree<> wide(capacity), narrow(capacity);
  wide.reset(1, capacity), narrow.reset(1, capacity);
  for (std::int32_t i = 0; i < 16; ++i) {
    wide.append(i < 8 ? root_node : i - 7, 2 + i, -1.0F);
    if (i < 8) narrow.append(i, 2 + i, -1.0F);
  }
  const device::text_batch texts = sequences.texts();
  sequences.set(0, wide.view(), 10), sequences.set(1, narrow.view(), 10);
  device::detail::shared_rows<true> shared(capacity, 2);
  shared.forget(0, nullptr), shared.forget(1, nullptr);
  const auto decisions = to_device(std::vector<verdict>{{1, 5}, {1, 5}});
  shared.observe(texts, decisions.data(), nullptr);
  tree<> root(capacity);
  root.reset(1, capacity);
  sequences.set(0, root.view(), 10), sequences.set(1, root.view(), 10);
  const auto expected = to_device(std::vector<float>(1));
  shared.share(texts, 6 + 2, expected.data(), 1, 1, nullptr);
  auto words = words_of(texts, 2);
  const auto limit = [&](std::size_t i) {
    return device::tree::at(words.data() + i * static_cast<std::size_t>(texts.tree_words), capacity).size->limit;
  };
  CHECK(limit(0) + limit(1) == 6);
  CHECK(limit(1) > limit(0));
  // With room for all that may be drawn, nothing is held back, whatever was drawn before.
  sequences.set(0, root.view(), 10), sequences.set(1, root.view(), 10);
  const auto room = GENERATE(2 * capacity, 2 * capacity + 5);
  shared.share(texts, room + 2, expected.data(), 1, 1, nullptr);
  words = words_of(texts, 2);
  CHECK(limit(0) == capacity);
  CHECK(limit(1) == capacity);
}

TEST_CASE("A round has as many rows as pay") {
  // A row costs nothing up to 16, and much from there on.
  const auto costs = [](double draft) {
    return cost_model{"", "", "", cost_curve::linear(draft, 0),
                      cost_curve::of_grid({1, 16, 17, 18}, {0}, {1, 1, 5, 9})};
  };
  std::vector<device::detail::round_outcome> outcomes(6);
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    outcomes[i].expected = 4 * static_cast<float>(i);  // of four texts: 1 token more each for twice as many rows
  const std::vector<std::int32_t> asked{1, 1};
  const auto sized = [&](double draft) {
    device::detail::round_size size(costs(draft), 20, 1 << 20);
    CHECK(size.choose(4, 4, 10, 0) == 4 * 21);  // nothing is known
    size.draft_as(asked);
    size.observe(4, outcomes);
    return size;
  };
  CHECK(sized(0.01).choose(4, 4, 10, 0) == 16);
  CHECK(sized(0.01).choose(16, 16, 10, 0) == 16);  // plain decoding
  CHECK(sized(0.01).choose(2, 2, 10, 0) == 16);
  CHECK(sized(0.01).choose(4, 4, 10, 8) == 8);  // beside a prompt's rows
  CHECK(sized(5).choose(4, 4, 10, 0) == 4);     // the draft takes too long
  // What does not pay is tried now and then.
  auto size = sized(5);
  int trials = 0;
  for (int round = 0; round < 200; ++round) {
    const bool drafts = size.choose(4, 4, 10, 0) > 4;
    trials += drafts ? 1 : 0;
    size.begin(drafts);
  }
  CHECK(trials == 3);
  // A lane without a text reads no context: drafts of one text in eight lanes pay, of eight texts not.
  const auto beside = [&](std::int32_t n_texts) {
    cost_model with_context = costs(0.01);
    with_context.draft_pass = cost_curve::of_grid({1, 2}, {0, 10}, {0.01, 0.21, 0.01, 0.21});
    device::detail::round_size shared(with_context, 20, 1 << 20);
    shared.draft_as(asked);
    shared.observe(4, outcomes);
    return shared.choose(8, n_texts, 10, 0);
  };
  CHECK(beside(1) == 16);
  CHECK(beside(8) == 8);
  device::detail::round_size all(std::nullopt, 20, 50);
  CHECK(all.choose(4, 4, 10, 0) == 50);
  CHECK(all.choose(2, 2, 10, 0) == 42);
}

namespace {

// Rows that cost nothing up to so many, and much from there on.
cost_model free_rows(std::int32_t n) {
  return {"", "", "", cost_curve::linear(0.001, 0), cost_curve::of_grid({1, n, n + 1, n + 2}, {0}, {1, 1, 3, 5})};
}

std::vector<token_id> prompt_of(std::int32_t i) {
  std::vector<token_id> prompt;
  for (std::int32_t j = 0; j < 3 + 2 * i; ++j)
    prompt.push_back((j * 7 + i) % 11);
  return prompt;
}

// The draft is the target, so that a greedy text follows each tree to a leaf, if what either cache holds is right. The
// policy asks about 12 nodes at most.
template <class PolicyT>
void check_cut_trees(PolicyT policy, std::int32_t max_rows, node_order order, bool costs) {
  const auto& model = espalier_test::target_model;
  device_text_backend target(37, model, 4 * 13), draft(37, model, 4 * 13);
  device::contiguous_kv<float> kv(1, 1, 4, 150), draft_kv(1, 1, 4, 150);
  batch_options options{.order = order, .max_texts = 4, .max_rows = max_rows};
  if (costs) options.costs = free_rows(max_rows);
  auto decode = device::make_batch_decoder(device::autoregressive(draft, draft_kv), std::move(policy), greedy(), kv,
                                           target, options);
  std::vector<text_id> ids;
  for (std::int32_t i = 0; i < 5; ++i)
    ids.push_back(decode.add(prompt_of(i), {.max_tokens = 20 + 3 * i}));
  std::vector<std::int32_t> nodes;
  std::map<tree_limit, int> limits;
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      REQUIRE(!e.error);
      const tree_view t = e.round.tree;
      ++limits[e.round.limited_by];
      if (t.n_draws == 12) CHECK(e.round.limited_by == tree_limit::budget);
      if (e.round.state == status::running) CHECK(t.is_leaf(e.round.decision.accepted));
      for (node_id u = 1; u < t.n_nodes; ++u)
        CHECK((t.parent[u] < u && t.depth[u] == t.depth[t.parent[u]] + 1));
      nodes.push_back(t.n_nodes);
    }
    CHECK(decode.last_step().target_rows <= 2 * max_rows + decode.last_step().prompt_rows);
  }
  const auto [least, most] = std::minmax_element(nodes.begin(), nodes.end());
  CHECK(*least < *most);
  // Thirty rows are seldom too few.
  if (max_rows < 30) CHECK(limits[tree_limit::shared_rows] + limits[tree_limit::price] > 0);
  if (!costs) CHECK(limits[tree_limit::price] == 0);
  CHECK(limits[tree_limit::last_token] <= 5);
  for (std::int32_t i = 0; i < 5; ++i) {
    espalier_test::setting s;
    s.prompt = prompt_of(i);
    s.stop.max_tokens = 20 + 3 * i;
    const auto expected = espalier_test::host_text(part<plain>{"plain", ""}, "greedy", s);
    std::vector<token_id> tokens;
    for (const auto& round : expected.rounds)
      tokens.insert(tokens.end(), round.begin(), round.end());
    const auto found = decode.current(ids[static_cast<std::size_t>(i)]).written();
    CHECK(std::vector<token_id>(found.begin(), found.end()) == tokens);
  }
}

}  // namespace

TEST_CASE("Trees that are cut to what a pass has room for are verified and committed as they are then") {
  const auto max_rows = GENERATE(7, 14, 30);
  const auto order = GENERATE(node_order::insertion, node_order::heavy_path, node_order::breadth_first);
  const bool costs = GENERATE(false, true);
  check_cut_trees(device::dynatree({.budget = 12, .max_depth = 5}), max_rows, order, costs);
  // Built anew first, and then cut.
  check_cut_trees(device::eagle2({.beam = 4, .depth = 3, .budget = 12}), max_rows, order, costs);
}

TEST_CASE("Texts that share rows before their trees are drawn are distributed as the target alone would write them") {
  // Four tokens; of two written ones, each pair as often as the target says.
  espalier_test::text_model target_model = espalier_test::target_model, other = espalier_test::draft_model;
  target_model.n_tokens = other.n_tokens = 4;
  target_model.sharpness = other.sharpness = 3;
  constexpr std::int32_t n_texts = 800;
  device_text_backend target(5, target_model, 8 * 9), draft(5, other, 8 * 9);
  device::contiguous_kv<float> kv(1, 1, 8, 30), draft_kv(1, 1, 8, 30);
  auto decode = device::make_batch_decoder(device::autoregressive(draft, draft_kv),
                                           device::iid_paths({.paths = 3, .length = 2}), naive_tree(), kv, target,
                                           {.max_texts = 8, .max_waiting = 8, .max_ended = 8, .max_rows = 20});
  const std::vector<token_id> prompt{1, 2};
  std::vector<std::int32_t> counts(16);
  std::int32_t added = 0, drafted = 0;
  while (added < n_texts || !decode.idle()) {
    while (added < n_texts && decode.n_waiting() < 8) {
      text_options o{.sampling = {.temperature = 1}};
      o.seed = 1000 + static_cast<std::uint64_t>(added++);
      decode.add(prompt, {.max_tokens = 3}, o);
    }
    for (const text_event& e : decode.step()) {
      REQUIRE(!e.error);
      if (e.round.state == status::running) continue;
      const auto written = decode.current(e.id).written();
      ++counts[static_cast<std::size_t>(written[0] * 4 + written[1])];
    }
    drafted += decode.last_step().drafted;
  }
  CHECK(drafted > n_texts);
  double chi = 0;
  for (token_id a = 0; a < 4; ++a) {
    const auto weights = [&](std::span<const token_id> text) {
      std::vector<float> logits(5);
      target_model(text, logits);
      std::vector<double> p;
      double sum = 0;
      for (std::size_t i = 0; i < 4; ++i)
        p.push_back(std::exp(static_cast<double>(logits[i]))), sum += p.back();
      for (double& x : p)
        x /= sum;
      return p;
    };
    const double first = weights(prompt)[static_cast<std::size_t>(a)];
    const std::vector<token_id> longer{1, 2, a};
    for (token_id b = 0; b < 4; ++b) {
      const double expected = n_texts * first * weights(longer)[static_cast<std::size_t>(b)];
      const double found = counts[static_cast<std::size_t>(a * 4 + b)];
      chi += (found - expected) * (found - expected) / expected;
    }
  }
  CHECK(chi < 37.7);  // one in a thousand is larger
}

TEST_CASE("Where drafts do not pay, texts are written without") {
  device_text_backend target(37, espalier_test::target_model, 4 * 13), draft(37, espalier_test::draft_model, 4 * 13);
  std::int32_t n_dear = 0;
  const auto drafted_with = [&](double draft_pass) {
    n_dear = 0;
    device::contiguous_kv<float> kv(1, 1, 4, 150), draft_kv(1, 1, 4, 150);
    cost_model costs = free_rows(60);
    costs.draft_pass = cost_curve::linear(draft_pass, 0);
    auto decode = device::make_batch_decoder(device::autoregressive(draft, draft_kv),
                                             device::dynatree({.budget = 12, .max_depth = 5}), target_only(), kv,
                                             target, {.max_texts = 4, .costs = costs});
    std::vector<text_id> ids;
    for (std::int32_t i = 0; i < 4; ++i)
      ids.push_back(decode.add(prompt_of(i), {.max_tokens = 30}, {.sampling = {.temperature = 1}, .seed = 3}));
    std::int32_t drafted = 0, rounds = 0;
    while (!decode.idle()) {
      for (const text_event& e : decode.step())
        n_dear += e.round.limited_by == tree_limit::price;
      drafted += decode.last_step().drafted;
      rounds += decode.last_step().rounds;
    }
    std::vector<std::vector<token_id>> texts;
    for (const text_id id : ids) {
      const auto written = decode.current(id).written();
      texts.emplace_back(written.begin(), written.end());
    }
    return std::pair(texts, drafted);
  };
  const auto cheap = drafted_with(0.001), dear = drafted_with(10);
  CHECK(n_dear > 50);  // of the latter
  CHECK(cheap.first == dear.first);
  CHECK(cheap.second > 4 * dear.second);
  CHECK(dear.second <= 4 * 12 * 3);  // until it is known
}

TEST_CASE("What was learnt of a text, and options of its own, go with it where it loses its place") {
  // A draft that is often wrong, so that histories differ; pages for all texts, or for half of them.
  const dynatree_options usual{.budget = 12, .base_depth = 3, .max_depth = 5};
  dynatree_options narrow = usual, small = usual;
  narrow.max_breadth = narrow.mid_breadth = 1;
  small.budget = 3;
  const auto max_rows = GENERATE(52 + 64, 20);  // with room for all, or shared
  // The trees of each text, round by round.
  using trees = std::vector<std::vector<std::int32_t>>;
  const auto written_with = [&](std::int32_t n_pages, int& preempted) {
    device_text_backend target(37, espalier_test::target_model, 116), draft(37, espalier_test::draft_model, 4 * 13);
    device::paged_kv<float> kv(1, 1, 4, 90, 4, n_pages), draft_kv(1, 1, 4, 90, 4, n_pages);
    auto decode = device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::dynatree(usual), greedy(),
                                             kv, target, {.max_texts = 4, .max_rows = max_rows});
    for (std::int32_t i = 0; i < 4; ++i) {
      const stop_conditions stop{.max_tokens = 26};
      const auto prompt = prompt_of(8 + i);
      if (i == 1) {
        decode.add(prompt, stop, {}, {.policy = narrow});
      } else if (i == 2) {
        decode.add(prompt, stop, {}, {.policy = small});
      } else {
        decode.add(prompt, stop);
      }
    }
    trees all(4);
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        auto& own = all[static_cast<std::size_t>(e.id)];
        const tree_view t = e.round.tree;
        own.push_back(t.n_nodes);
        for (node_id u = 1; u < t.n_nodes; ++u) {
          own.push_back(t.token[u]);
          if (e.id == 1) CHECK(t.parent[u] == u - 1);
        }
        if (e.id == 2) CHECK(t.n_nodes <= 4);
      }
      preempted += decode.last_step().preempted;
    }
    return all;
  };
  int before = 0, after = 0;
  const trees roomy = written_with(200, before), tight = written_with(40, after);
  CHECK(before == 0);
  CHECK(after > 0);
  if (max_rows > 52) CHECK(roomy == tight);
  device_text_backend target(37, espalier_test::target_model, 13), draft(37, espalier_test::draft_model, 13);
  device::contiguous_kv<float> kv(1, 1, 1, 90), draft_kv(1, 1, 1, 90);
  auto decode = device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::dynatree(usual), greedy(),
                                           kv, target, {.max_texts = 1});
  small.budget = 13;
  CHECK_THROWS_AS(decode.add(prompt_of(1), {}, {}, {.policy = small}), option_error);
  CHECK(decode.idle());
}
