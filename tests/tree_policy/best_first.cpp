// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/testing/random_tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"
#include "tree_policy/path_rows.hpp"
#include "vectors.hpp"

using namespace espalier;
using nlohmann::json;

namespace {

constexpr float none = -std::numeric_limits<float>::infinity();

using rows_type = std::vector<std::vector<float>>;
using prefix_type = std::vector<token_id>;

// A BlockDrafter of given logits.
template <class NumberT>
struct block_of {
  std::int32_t vocab = 0;
  std::vector<NumberT> logits{};
  int passes = 0;

  explicit block_of(const rows_type& rows, std::int32_t vocab_size = 0) : vocab(vocab_size) {
    for (const auto& row : rows) {
      vocab = static_cast<std::int32_t>(row.size());
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }

  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab; }
  std::int32_t block_length() const { return vocab == 0 ? 0 : static_cast<std::int32_t>(logits.size()) / vocab; }
  vocab_rows<NumberT> propose_block() {
    ++passes;
    return {logits.data(), block_length(), vocab};
  }
};
using given_block = block_of<float>;
static_assert(BlockDrafter<given_block> && TreePolicy<best_first, given_block, philox_chance>);
static_assert(TreePolicy<best_first, testing::row_drafter, philox_chance>);

template <class DrafterT>
tree<> grow(best_first& policy, DrafterT& drafter, int limit = 1 << 20) {
  tree<> t(most_asked(policy));
  t.reset(9, limit);
  drafter.reserve(most_asked(policy));
  philox_chance chance(0, 0, 0);
  espalier::grow(policy, t, drafter, chance);
  return t;
}

prefix_type prefix_of(tree_view view, node_id u) {
  prefix_type tokens;
  for (const node_id a : testing::path_to(view, u)) {
    if (a != root_node) tokens.push_back(view.token[a]);
  }
  return tokens;
}

std::vector<prefix_type> prefixes_of(tree_view view) {
  std::vector<prefix_type> out;
  for (node_id u = 1; u < view.n_nodes; ++u)
    out.push_back(prefix_of(view, u));
  return out;
}

// Lists of the most probable tokens, ties by lower id, as a policy takes them.
struct ranked_rows {
  std::vector<token_id> tokens;
  std::vector<float> log_probs;
  std::int32_t n_rows = 0;
  std::int32_t ranks = 0;

  ranked_rows(const rows_type& rows, std::int32_t budget) : n_rows(static_cast<std::int32_t>(rows.size())) {
    for (const auto& row : rows) {
      std::vector<token_id> order(row.size());
      for (std::size_t t = 0; t < row.size(); ++t)
        order[t] = static_cast<token_id>(t);
      std::stable_sort(order.begin(), order.end(), [&](token_id a, token_id b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      ranks = std::min(std::max(budget, 1), static_cast<std::int32_t>(row.size()));
      for (std::int32_t k = 0; k < ranks; ++k) {
        tokens.push_back(order[static_cast<std::size_t>(k)]);
        log_probs.push_back(row[static_cast<std::size_t>(tokens.back())]);
      }
    }
  }
};

tree<> take(const rows_type& log_q, int budget) {
  const ranked_rows lists(log_q, budget);
  best_first policy({.budget = std::max(budget, 1), .max_depth = 64});
  tree<> t(std::max(budget, 0));
  t.reset(9, budget);
  policy.take_best(t, lists.tokens, lists.log_probs, lists.n_rows, lists.ranks);
  return t;
}

// All prefixes with a probability, best first by the float sum, then by ranks.
std::vector<prefix_type> all_prefixes(const rows_type& log_q) {
  struct ranked_prefix {
    float score;
    std::vector<std::int32_t> ranks;
    prefix_type tokens;
  };
  const ranked_rows lists(log_q, 1 << 20);
  std::vector<ranked_prefix> all{{0.0F, {}, {}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto depth = static_cast<std::int32_t>(all[i].ranks.size());
    for (std::int32_t k = 0; depth < lists.n_rows && k < lists.ranks; ++k) {
      const auto place = static_cast<std::size_t>(depth * lists.ranks + k);
      if (lists.log_probs[place] == none) break;
      ranked_prefix longer = all[i];
      longer.score += lists.log_probs[place];
      longer.ranks.push_back(k);
      longer.tokens.push_back(lists.tokens[place]);
      all.push_back(longer);
    }
  }
  all.erase(all.begin());
  std::sort(all.begin(), all.end(), [](const ranked_prefix& a, const ranked_prefix& b) {
    return a.score != b.score ? a.score > b.score : a.ranks < b.ranks;
  });
  std::vector<prefix_type> out;
  for (const ranked_prefix& p : all)
    out.push_back(p.tokens);
  return out;
}

// Algorithm 1 of the paper, with scores summed from the left.
std::vector<prefix_type> plain_algorithm(const rows_type& log_q, int budget) {
  const ranked_rows lists(log_q, budget);
  using prefix = std::pair<float, std::vector<std::int32_t>>;  // score and negative ranks: the largest comes first
  std::priority_queue<prefix> heap;
  const auto push = [&](const std::vector<std::int32_t>& ranks) {
    float score = 0;
    for (std::size_t d = 0; d < ranks.size(); ++d)
      score += lists.log_probs[d * static_cast<std::size_t>(lists.ranks) + static_cast<std::size_t>(-ranks[d])];
    if (score > none) heap.push({score, ranks});
  };
  push({0});
  std::vector<prefix_type> out;
  while (!heap.empty() && static_cast<int>(out.size()) < budget) {
    std::vector<std::int32_t> ranks = heap.top().second;
    heap.pop();
    out.emplace_back();
    for (std::size_t d = 0; d < ranks.size(); ++d)
      out.back().push_back(
          lists.tokens[d * static_cast<std::size_t>(lists.ranks) + static_cast<std::size_t>(-ranks[d])]);
    if (1 - ranks.back() < lists.ranks) {
      --ranks.back();
      push(ranks);
      ++ranks.back();
    }
    ranks.push_back(0);
    if (static_cast<std::int32_t>(ranks.size()) <= lists.n_rows) push(ranks);
  }
  return out;
}

rows_type rows_of(const json& log_q) {
  rows_type rows;
  for (const json& row : log_q) {
    rows.emplace_back();
    for (const json& x : row)
      rows.back().push_back(x.is_null() ? none : static_cast<float>(x.get<double>()));
  }
  return rows;
}

struct argmax_rows {
  std::vector<token_id> best;
  token_id argmax(node_id u) const { return best[static_cast<std::size_t>(u)]; }
};

// Which rows of the pass are accepted, what follows, and where a cache of 3 rows then has its rows from.
void check_walk(const json& walk, tree_view view) {
  const argmax_rows posterior{walk.at("posterior").get<std::vector<token_id>>()};
  philox_chance chance(0, 0, 0);
  const verdict v = greedy().verify(view, 0, posterior, chance);
  const std::vector<node_id> accepted = testing::path_to(view, v.accepted);
  REQUIRE(accepted == walk.at("accepted_rows").get<std::vector<node_id>>());
  REQUIRE(v.token == walk.at("next_token").get<token_id>());
  constexpr int past = 3;
  contiguous_kv kv(1, 1, 1, past + view.n_nodes);
  std::vector<std::int32_t> kept(past);
  for (int i = 0; i < past; ++i)
    kept[static_cast<std::size_t>(i)] = i;
  REQUIRE(kv.append(0, past) == 0);
  REQUIRE(kv.commit(0, kept) == past);
  REQUIRE(kv.append(0, view.n_nodes) == past);
  for (int slot = 0; slot < past + view.n_nodes; ++slot)
    *kv.key(0, 0, slot) = *kv.value(0, 0, slot) = static_cast<float>(slot);
  REQUIRE(kv.commit(0, accepted) == static_cast<int>(accepted.size()));
  std::vector<int> gathered;
  for (int slot = 0; slot < kv.size(0); ++slot) {
    REQUIRE(*kv.key(0, 0, slot) == *kv.value(0, 0, slot));
    gathered.push_back(static_cast<int>(*kv.key(0, 0, slot)));
  }
  REQUIRE(gathered == walk.at("compact_gather").get<std::vector<int>>());
}

struct weighted_prefix {
  prefix_type tokens;
  double probability;
};

// OPT-Tree as it is defined: each layer the n best of all the children of the layer before. Also how many layers there
// are.
std::pair<std::vector<weighted_prefix>, int> naive_opt_tree(const testing::row_drafter::row_function& row_of,
                                                            std::size_t n, double delta, int max_depth) {
  const auto cut = [&](std::vector<weighted_prefix> all) {
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.probability > b.probability; });
    all.resize(std::min(all.size(), n));
    return all;
  };
  std::vector<weighted_prefix> layer{{{}, 1.0}}, all, best;
  double expected = 0;
  int depth = 0;
  while (depth < max_depth) {
    ++depth;
    std::vector<weighted_prefix> children;
    for (const weighted_prefix& parent : layer) {
      prefix_type path = parent.tokens;
      path.insert(path.begin(), 9);
      const std::vector<double> row = row_of(path);
      for (std::size_t t = 0; t < row.size(); ++t) {
        if (!(row[t] > 0)) continue;
        children.push_back({parent.tokens, parent.probability * row[t]});
        children.back().tokens.push_back(static_cast<token_id>(t));
      }
    }
    layer = cut(children);
    all.insert(all.end(), layer.begin(), layer.end());
    best = cut(all);
    double sum = 0;
    for (const weighted_prefix& p : best)
      sum += p.probability;
    if (sum - expected <= delta) break;
    expected = sum;
  }
  return {best, depth};
}

// The n most probable of all prefixes up to a depth.
std::vector<weighted_prefix> brute_force(const testing::row_drafter::row_function& row_of, std::size_t n,
                                         std::size_t max_depth) {
  std::vector<weighted_prefix> all{{{}, 1.0}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].tokens.size() == max_depth) continue;
    prefix_type path = all[i].tokens;
    path.insert(path.begin(), 9);
    const std::vector<double> row = row_of(path);
    for (std::size_t t = 0; t < row.size(); ++t) {
      if (!(row[t] > 0)) continue;
      weighted_prefix longer = all[i];
      longer.tokens.push_back(static_cast<token_id>(t));
      longer.probability *= row[t];
      all.push_back(longer);
    }
  }
  all.erase(all.begin());
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.probability > b.probability; });
  all.resize(std::min(all.size(), n));
  return all;
}

// The rows that the drafter has by node are those of the nodes' paths.
void check_rows(const testing::row_drafter& drafter, const testing::row_drafter::row_function& row_of, tree_view view) {
  const auto rows = drafter.rows();
  REQUIRE(rows.has(root_node));
  for (node_id u = 0; u < view.n_nodes; ++u) {
    if (!view.is_leaf(u)) REQUIRE(rows.has(u));
    if (!rows.has(u)) continue;
    std::vector<token_id> path;
    for (const node_id a : testing::path_to(view, u))
      path.push_back(view.token[a]);
    const auto row = rows.row(u);
    REQUIRE(std::vector<double>(row.begin(), row.end()) == row_of(path));
  }
}

}  // namespace

TEST_CASE("DDTree vectors: trees, masks, positions, walks and compaction agree exactly") {
  int trees = 0, walks = 0;
  const json all = load_vectors("ddtree.json");
  for (const json& e : all) {
    INFO("tree " << trees++);
    const tree<> t = take(rows_of(e.at("log_q")), e.at("budget"));
    const tree_view view = t;
    REQUIRE(std::vector<token_id>(view.token + 1, view.token + view.n_nodes) ==
            e.at("tokens").get<std::vector<token_id>>());
    REQUIRE(std::vector<std::int32_t>(view.depth + 1, view.depth + view.n_nodes) ==
            e.at("depths").get<std::vector<std::int32_t>>());
    REQUIRE(std::vector<node_id>(view.parent, view.parent + view.n_nodes) ==
            e.at("parents").get<std::vector<node_id>>());
    if (e.contains("surrogate")) {
      double sum = 0;
      for (node_id u = 1; u < view.n_nodes; ++u)
        sum += std::exp(static_cast<double>(view.path_log_prob[u]));
      REQUIRE(std::abs(sum - e.at("surrogate").get<double>()) < 1e-5);
    }
    tree_order order(view.n_nodes);
    order.compute(view, node_order::insertion);
    forward_batch batch;
    batch.begin_sequence(0, 3, view.n_nodes);
    batch.add_row(view.token[0], e.at("start"), 0, true);
    batch.add_tree(view, order, 0);
    const forward_batch_view rows = batch.view();
    REQUIRE(std::vector<std::int32_t>(rows.positions.begin(), rows.positions.end()) ==
            e.at("position_ids").get<std::vector<std::int32_t>>());
    const auto words = static_cast<std::size_t>(mask_words(view.n_nodes));
    std::vector<std::uint32_t> mask(words * static_cast<std::size_t>(view.n_nodes));
    write_tree_mask(view, order, mask);
    REQUIRE(std::equal(mask.begin(), mask.end(), rows.mask.begin(), rows.mask.end()));
    for (node_id u = 0; u < view.n_nodes; ++u) {
      const mask_row row{mask.data() + static_cast<std::size_t>(u) * words, static_cast<std::int32_t>(words)};
      std::string text;
      for (node_id a = 0; a < view.n_nodes; ++a)
        text += row.test(a) ? '1' : '0';
      REQUIRE(text == e.at("mask").at(static_cast<std::size_t>(u)).get<std::string>());
    }
    for (const json& walk : e.at("walks")) {
      check_walk(walk, view);
      ++walks;
    }
  }
  CHECK(trees >= 30);
  CHECK(walks >= 60);
}

TEST_CASE("DDTree vectors: the trees come from logits, too, whatever is added to a row") {
  int trees = 0;
  for (const json& e : load_vectors("ddtree.json")) {
    if (e.at("kind") != "random" || e.at("budget") < 1) continue;
    rows_type logits = rows_of(e.at("log_q"));
    float shift = -3;
    for (auto& row : logits) {
      for (float& x : row)
        x += shift;
      shift += 2;
    }
    best_first policy({.budget = e.at("budget")});
    given_block drafter(logits);
    const tree<> t = grow(policy, drafter);
    const tree_view view = t;
    REQUIRE(std::vector<token_id>(view.token + 1, view.token + view.n_nodes) ==
            e.at("tokens").get<std::vector<token_id>>());
    REQUIRE(std::vector<node_id>(view.parent, view.parent + view.n_nodes) ==
            e.at("parents").get<std::vector<node_id>>());
    REQUIRE(drafter.passes == 1);
    block_of<double> in_double(logits);
    const tree<> same = grow(policy, in_double);
    REQUIRE(prefixes_of(same) == prefixes_of(t));
    ++trees;
  }
  CHECK(trees >= 16);
}

TEST_CASE("the best of all prefixes are taken, in order, whatever the ties") {
  std::mt19937 random(3);
  const std::array<float, 5> values{0.0F, -0.25F, -0.5F, -1.0F, none};
  int trees = 0, ties = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto vocab = random() % 5 + 1;
    rows_type log_q(random() % 5, std::vector<float>(vocab));
    for (auto& row : log_q) {
      for (float& x : row) {
        x = round % 3 == 0   ? values[random() % 5]
            : round % 3 == 1 ? values[2]
                             : -static_cast<float>(random() % 999) / 99;
      }
    }
    const std::vector<prefix_type> all = all_prefixes(log_q);
    const auto budget = static_cast<int>(random() % 150);
    const std::vector<prefix_type> expected(all.begin(),
                                            all.begin() + std::min<std::ptrdiff_t>(budget, std::ssize(all)));
    REQUIRE(prefixes_of(take(log_q, budget)) == expected);
    trees += expected.empty() ? 0 : 1;
    ties += round % 3 == 1 && expected.size() > 3 ? 1 : 0;
  }
  CHECK(trees > 700);
  CHECK(ties > 200);
}

TEST_CASE("wide rows give what the paper's algorithm gives, whatever their shape") {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    const auto vocab = static_cast<int>(random() % 400 + 1);
    rows_type log_q(random() % 8 + 1, std::vector<float>(static_cast<std::size_t>(vocab)));
    for (auto& row : log_q) {
      for (int t = 0; t < vocab; ++t) {
        float& x = row[static_cast<std::size_t>(t)];
        const float uneven = -std::abs(normal(random));
        switch (round % 5) {
          case 0:
            x = 5 * uneven;
            break;
          case 1:
            x = -static_cast<float>(random() % 40) / 8;
            break;  // many ties
          case 2:
            x = t == 0 ? -1e-4F : -20 + 1e-3F * uneven;
            break;  // nearly sure
          case 3:
            x = -6 + 1e-6F * uneven;
            break;  // nearly even
          default:
            x = t % 7 == 0 ? none : -1.5F * std::log(static_cast<float>(t));
            break;
        }
      }
    }
    const auto budget = static_cast<int>(random() % 600 + 1);
    REQUIRE(prefixes_of(take(log_q, budget)) == plain_algorithm(log_q, budget));
  }
}

TEST_CASE("deep ties are in lexicographic order of ranks") {
  // Two equal tokens a row, 10 rows: all prefixes of a depth are equally probable.
  const rows_type log_q(10, std::vector<float>{-0.5F, -0.5F});
  const std::vector<prefix_type> all = all_prefixes(log_q);
  REQUIRE(all.size() == 2046);
  CHECK(prefixes_of(take(log_q, 1024)) == std::vector<prefix_type>(all.begin(), all.begin() + 1024));
  // Sure tokens: depth first, as each prefix is as probable as its extension.
  const rows_type sure(3, std::vector<float>{0.0F, 0.0F});
  CHECK(prefixes_of(take(sure, 6)) == std::vector<prefix_type>{{0}, {0, 0}, {0, 0, 0}, {0, 0, 1}, {0, 1}, {0, 1, 0}});
}

TEST_CASE("a block's tree is the best of its size under the surrogate") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 60; ++round) {
    const auto vocab = random() % 4 + 2;
    rows_type logits(random() % 4 + 1, std::vector<float>(vocab));
    std::vector<double> reach{1.0}, all;
    for (auto& row : logits) {
      double total = 0;
      for (float& x : row) {
        x = 3 * normal(random);
        total += std::exp(static_cast<double>(x));
      }
      std::vector<double> longer;
      for (const double p : reach) {
        for (const float x : row)
          longer.push_back(p * std::exp(static_cast<double>(x)) / total);
      }
      all.insert(all.end(), longer.begin(), longer.end());
      reach = longer;
    }
    std::sort(all.rbegin(), all.rend());
    const auto budget = static_cast<int>(random() % 40 + 1);
    best_first policy({.budget = budget});
    given_block drafter(logits);
    const tree<> t = grow(policy, drafter);
    const tree_view view = t;
    const std::size_t n = std::min(all.size(), static_cast<std::size_t>(budget));
    REQUIRE(view.n_draws == static_cast<int>(n));
    double expected = 0, found = 0;
    for (std::size_t i = 0; i < n; ++i)
      expected += all[i];
    for (node_id u = 1; u < view.n_nodes; ++u)
      found += std::exp(static_cast<double>(view.path_log_prob[u]));
    REQUIRE(std::abs(found - expected) < 1e-5);
  }
}

TEST_CASE("blocks at the edge: no budget, no rows, less than the budget, one token, equal values") {
  best_first policy({.budget = 5});
  const rows_type logits{{1, 3, 2}, {0, 0, 0}};
  given_block drafter(logits);
  CHECK(grow(policy, drafter, 0).size() == 1);
  CHECK(drafter.passes == 0);
  CHECK(prefixes_of(grow(policy, drafter, 2)) == std::vector<prefix_type>{{1}, {2}});
  CHECK(take(logits, 0).size() == 1);
  CHECK(take({}, 5).size() == 1);

  given_block no_rows({}, 7);
  CHECK(grow(policy, no_rows).size() == 1);

  // The vocabulary is smaller than the budget, and there are 12 prefixes.
  best_first large({.budget = 1000});
  CHECK(prefixes_of(grow(large, drafter)).size() == 12);
  best_first shallow({.budget = 1000, .max_depth = 1});
  CHECK(prefixes_of(grow(shallow, drafter)) == std::vector<prefix_type>{{1}, {2}, {0}});

  given_block one_finite({{none, 7, none}, {none, none, -1e30F}, {0, none, none}});
  const tree<> sure = grow(large, one_finite);
  CHECK(prefixes_of(sure) == std::vector<prefix_type>{{1}, {1, 2}, {1, 2, 0}});
  CHECK(sure.view().path_log_prob[3] == 0);

  given_block equal({{4, 4, 4}, {-2, -2, -2}});
  CHECK(prefixes_of(grow(policy, equal)) == std::vector<prefix_type>{{0}, {1}, {2}, {0, 0}, {0, 1}});

  given_block single(rows_type{{5}, {6}});
  CHECK(prefixes_of(grow(policy, single)) == std::vector<prefix_type>{{0}, {0, 0}});
}

TEST_CASE("logits of a block that no token may be drawn from are errors that name the row") {
  best_first policy({.budget = 4});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, -none}) {
    for (const std::size_t row : {0U, 1U, 2U}) {
      rows_type logits(3, std::vector<float>(100, 0.5F));
      logits[row][77] = bad;
      given_block drafter(logits);
      const std::string message = message_of<numeric_error>([&] { grow(policy, drafter); });
      INFO(message);
      CHECK(says(message, "row " + std::to_string(row)));
    }
  }
  given_block impossible({{1, 2}, {none, none}});
  CHECK(says(message_of<numeric_error>([&] { grow(policy, impossible); }), "row 1", "minus infinity"));
  // Rows that are too deep are not looked at.
  rows_type logits(3, std::vector<float>(100, 0.5F));
  logits[2][0] = nan;
  given_block drafter(logits);
  best_first shallow({.budget = 4, .max_depth = 2});
  CHECK(grow(shallow, drafter).size() == 5);
}

TEST_CASE("OPT-Tree vectors: prefixes, weights and expected acceptance agree") {
  int trees = 0;
  const json all = load_vectors("builders.json");
  for (const json& e : all.at("opt_tree")) {
    INFO("tree " << trees++);
    const auto row_of = markov_rows(e.at("markov").at("Q").get<std::vector<std::vector<double>>>());
    testing::row_drafter drafter(e.at("markov").at("V"), row_of);
    best_first policy({.budget = e.at("n"), .max_depth = e.at("max_depth"), .min_gain = e.at("delta")});
    const tree<> t = grow(policy, drafter);
    REQUIRE(drafter.passes <= e.at("max_depth").get<int>());
    std::vector<std::pair<prefix_type, double>> found, expected;
    double sum = 0;
    for (node_id u = 1; u < t.size(); ++u) {
      found.emplace_back(prefix_of(t, u), std::exp(static_cast<double>(t.view().path_log_prob[u])));
      sum += found.back().second;
    }
    for (std::size_t i = 0; i < e.at("prefixes").size(); ++i)
      expected.emplace_back(e.at("prefixes").at(i).get<prefix_type>(), e.at("weights").at(i).get<double>());
    std::sort(found.begin(), found.end());
    std::sort(expected.begin(), expected.end());
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      REQUIRE(found[i].first == expected[i].first);
      REQUIRE(std::abs(found[i].second - expected[i].second) < 1e-6);
    }
    REQUIRE(std::abs(sum - e.at("E").get<double>()) < 1e-5);
    check_rows(drafter, row_of, t);
  }
  CHECK(trees >= 16);
}

TEST_CASE("a step drafter's tree is OPT-Tree's, and with no least gain the best of all trees") {
  int differing = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const auto row_of = path_rows(seed, static_cast<std::int32_t>(seed % 5) + 2);
    for (const int budget : {1, 2, 5, 13, 40}) {
      for (const int depth : {1, 2, 5}) {
        for (const double gain : {0.0, 0.1, 0.6}) {
          testing::row_drafter drafter(static_cast<std::int32_t>(seed % 5) + 2, row_of);
          best_first policy({.budget = budget, .max_depth = depth, .min_gain = gain});
          const tree<> t = grow(policy, drafter);
          const auto [naive, layers] = naive_opt_tree(row_of, static_cast<std::size_t>(budget), gain, depth);
          std::vector<prefix_type> expected;
          std::vector<double> probabilities, best;
          for (const weighted_prefix& p : naive) {
            expected.push_back(p.tokens);
            probabilities.push_back(p.probability);
          }
          REQUIRE(prefixes_of(t) == expected);
          REQUIRE(drafter.passes == layers);
          check_rows(drafter, row_of, t);
          for (const weighted_prefix& p :
               brute_force(row_of, static_cast<std::size_t>(budget), static_cast<std::size_t>(depth)))
            best.push_back(p.probability);
          if (gain == 0) REQUIRE(probabilities == best);
          differing += probabilities == best ? 0 : 1;
        }
      }
    }
  }
  CHECK(differing > 50);
}

TEST_CASE("only nodes among the best so far are asked about, and no more than there is room for") {
  const auto row_of = path_rows(7, 6);
  for (const int budget : {6, 20, 60}) {
    best_first policy({.budget = budget, .max_depth = 12});
    CHECK(policy.max_nodes() == budget);
    CHECK(policy.max_asked() == std::min(budget * 11, 256));
    testing::row_drafter drafter(6, row_of);
    grow(policy, drafter);
    const int asked = drafter.rows().rows.n_rows;
    CHECK(asked <= budget * 3);
    for (const int limit : {0, 1, 2, 5, 9, 30, 70}) {
      const tree<> t = grow(policy, drafter, limit);
      REQUIRE(t.size() - 1 <= std::min(limit, budget));
      if (limit == 0) continue;
      REQUIRE(drafter.rows().rows.n_rows <= limit + 1);
      REQUIRE(t.size() - 1 == std::min(limit, budget));
      check_rows(drafter, row_of, t);
    }
  }
  CHECK(best_first({.budget = 7, .max_depth = 1}).max_asked() == 7);
  CHECK(best_first({.budget = 64, .max_depth = 16}).max_asked() == 256);
  CHECK(best_first({.budget = 1024, .max_depth = 64}).max_asked() == 4096);
}

TEST_CASE("a step drafter at the edge: no probability, one token, probabilities that vanish, numbers that are none") {
  best_first policy({.budget = 10, .max_depth = 40});
  testing::row_drafter silent(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.0); });
  CHECK(grow(policy, silent).size() == 1);
  CHECK(silent.passes == 1);
  testing::row_drafter sure(4, [](std::span<const token_id> path) {
    std::vector<double> row(4, 0.0);
    row[path.size() % 4] = 1;
    return row;
  });
  const tree<> chain = grow(policy, sure);
  CHECK(chain.view().depth[10] == 10);
  CHECK(chain.view().path_log_prob[10] == 0);
  testing::row_drafter vanishing(2, [](std::span<const token_id>) { return std::vector<double>{1e-200, 1e-180}; });
  CHECK(prefixes_of(grow(policy, vanishing)) == std::vector<prefix_type>{{1}, {0}});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  testing::row_drafter broken(3, [nan](std::span<const token_id>) { return std::vector<double>{nan, 0.5, nan}; });
  CHECK(grow(policy, broken).view().depth[10] == 10);
}

TEST_CASE("a row that wide blocks of tokens are skipped in gives the same tree") {
  // 1000 tokens, the best of which are anywhere.
  const auto row_of = [](std::span<const token_id> path) {
    std::mt19937 random(static_cast<std::uint32_t>(path.size() * 1000) + static_cast<std::uint32_t>(path.back()));
    std::vector<double> row(1000);
    double total = 0;
    for (double& p : row)
      total += p = std::pow(static_cast<double>(random() % 1000 + 1), 4);
    for (double& p : row)
      p /= total;
    return row;
  };
  testing::row_drafter drafter(1000, row_of);
  best_first policy({.budget = 100, .max_depth = 2});
  std::vector<prefix_type> expected;
  for (const weighted_prefix& p : naive_opt_tree(row_of, 100, 0, 2).first)
    expected.push_back(p.tokens);
  CHECK(prefixes_of(grow(policy, drafter)) == expected);
}

TEST_CASE("best_first allocates nothing once it is built") {
  std::mt19937 random(11);
  rows_type logits(15, std::vector<float>(3000));
  for (auto& row : logits) {
    for (float& x : row)
      x = static_cast<float>(random() % 1000) / 100;
  }
  given_block block(logits);
  best_first policy({.budget = 300, .max_depth = 20});
  tree<> t(most_asked(policy));
  philox_chance chance(0, 0, 0);
  t.reset(0);
  espalier::grow(policy, t, block, chance);
  {
    const allocation_count count;
    t.reset(0);
    espalier::grow(policy, t, block, chance);
    CHECK(count.so_far() == 0);
  }
  CHECK(t.size() == 301);

  // A drafter that does not allocate either.
  struct still_drafter {
    std::vector<double> data = std::vector<double>(6001 * 5);
    std::vector<std::int32_t> row_of = std::vector<std::int32_t>(6001);
    std::vector<std::int32_t> renumbered = row_of;
    std::int32_t n = 0;
    void begin(std::span<const token_id>) {}
    void commit(tree_view, verdict) {}
    void reserve(std::int32_t) {}
    std::int32_t capacity() const { return 1 << 20; }
    std::int32_t vocab_size() const { return 5; }
    void propose(tree_view, std::span<const node_id> nodes) {
      if (nodes[0] == root_node) n = 0;
      for (const node_id u : nodes) {
        for (std::size_t token = 0; token < 5; ++token)
          data[static_cast<std::size_t>(n) * 5 + token] =
              (static_cast<double>((u + 1) * 7 % 5) + static_cast<double>(token)) / 30;
        row_of[static_cast<std::size_t>(u)] = n++;
      }
    }
    node_rows<double> rows() const { return {{data.data(), n, 5}, row_of.data()}; }
    void renumber(std::span<const node_id> was) {
      for (std::size_t i = 0; i < was.size(); ++i)
        renumbered[i] = was[i] < 0 ? -1 : row_of[static_cast<std::size_t>(was[i])];
      row_of.swap(renumbered);
    }
  };
  still_drafter still;
  const allocation_count count;
  t.reset(0);
  espalier::grow(policy, t, still, chance);
  CHECK(count.so_far() == 0);
  CHECK(t.size() == 301);
  CHECK(t.view().depth[300] > 2);
}

TEST_CASE("options of best_first out of range are errors that name option, value and range") {
  const auto message = [](best_first_options o) { return message_of<option_error>([&] { best_first b(o); }); };
  CHECK(message({}).empty());
  CHECK(message({.budget = 1, .max_depth = 1, .min_gain = 0}).empty());
  CHECK(message({.budget = 1024, .max_depth = 64, .min_gain = 1}).empty());
  for (const int bad : {0, -1, 1025})
    CHECK(says(message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 1 and 1024"));
  for (const int bad : {0, -1, 65})
    CHECK(says(message({.max_depth = bad}), "option max_depth is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const double bad : {-0.5, 1.5, std::numeric_limits<double>::quiet_NaN()})
    CHECK(says(message({.min_gain = bad}), "option min_gain is ", "between 0 and 1"));
}
