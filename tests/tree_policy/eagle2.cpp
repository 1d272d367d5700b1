// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/random_tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "raises.hpp"
#include "tree_policy/path_rows.hpp"
#include "vectors.hpp"

using namespace espalier;
using nlohmann::json;

static_assert(TreePolicy<eagle2, testing::row_drafter, philox_chance>);

namespace {

using prefix_type = std::vector<token_id>;

tree<> grow(eagle2 policy, testing::row_drafter& drafter, int limit = 1 << 20) {
  tree<> t(most_asked(policy));
  t.reset(9, limit);
  drafter.reserve(most_asked(policy));
  drafter.passes = 0;
  philox_chance chance(0, 0, 0);
  espalier::grow(policy, t, drafter, chance);
  return t;
}

std::vector<prefix_type> prefixes_of(tree_view view) {
  std::vector<prefix_type> out;
  for (node_id u = 1; u < view.n_nodes; ++u) {
    out.emplace_back();
    for (const node_id a : testing::path_to(view, u)) {
      if (a != root_node) out.back().push_back(view.token[a]);
    }
  }
  return out;
}

struct scored_prefix {
  prefix_type tokens;
  double score;
};

// The first k in falling order of the scores, ties in the order given.
std::vector<scored_prefix> best(std::vector<scored_prefix> all, std::size_t k) {
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  all.resize(std::min(all.size(), k));
  return all;
}

// Beam search that records all it sees, written out with lists of prefixes.
std::vector<prefix_type> naive_eagle2(const testing::row_drafter::row_function& row_of, eagle2_options o) {
  const auto beam_size = static_cast<std::size_t>(o.beam);
  std::vector<scored_prefix> beam{{{}, 0.0}}, recorded;
  for (int level = 0; level <= o.depth; ++level) {
    std::vector<scored_prefix> layer;
    for (const scored_prefix& parent : beam) {
      prefix_type path = parent.tokens;
      path.insert(path.begin(), 9);
      const std::vector<double> row = row_of(path);
      std::vector<scored_prefix> children;
      for (std::size_t t = 0; t < row.size(); ++t) {
        if (row[t] == 0) continue;
        children.push_back({parent.tokens, parent.score + std::log(row[t])});
        children.back().tokens.push_back(static_cast<token_id>(t));
      }
      children = best(children, beam_size);
      layer.insert(layer.end(), children.begin(), children.end());
    }
    recorded.insert(recorded.end(), layer.begin(), layer.end());
    beam = best(layer, beam_size);
  }
  const std::vector<scored_prefix> kept = best(recorded, static_cast<std::size_t>(o.budget));
  std::vector<prefix_type> out;
  for (const scored_prefix& p : recorded) {
    if (std::any_of(kept.begin(), kept.end(), [&](const auto& k) { return k.tokens == p.tokens; }))
      out.push_back(p.tokens);
  }
  return out;
}

// The rows that the drafter has by node are those of the nodes' paths, and inner nodes have one.
void check_rows(const testing::row_drafter& drafter, const testing::row_drafter::row_function& row_of, tree_view view) {
  const auto rows = drafter.rows();
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

TEST_CASE("EAGLE-2 vectors: prefixes agree in order, and scores") {
  int trees = 0;
  const json all = load_vectors("builders.json");
  for (const json& e : all.at("eagle2")) {
    INFO("tree " << trees++);
    const auto rows = e.at("markov").at("Q").get<std::vector<std::vector<double>>>();
    testing::row_drafter drafter(static_cast<std::int32_t>(rows[0].size()), markov_rows(rows));
    const tree<> t = grow(eagle2({.beam = e.at("top_k"), .depth = e.at("depth"), .budget = e.at("total")}), drafter);
    REQUIRE(drafter.passes == e.at("depth").get<int>() + 1);
    REQUIRE(prefixes_of(t) == e.at("prefixes").get<std::vector<prefix_type>>());
    for (node_id u = 1; u < t.size(); ++u) {
      const auto score = static_cast<double>(t.view().path_log_prob[u]);
      REQUIRE(std::abs(score - e.at("scores").at(static_cast<std::size_t>(u) - 1).get<double>()) < 1e-5);
    }
  }
  CHECK(trees >= 12);
}

TEST_CASE("eagle2 is beam search over all that was seen, whatever the ties") {
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    const auto vocab = static_cast<std::int32_t>(seed % 6) + 1;
    const auto row_of = path_rows(seed, vocab);
    testing::row_drafter drafter(vocab, row_of);
    for (const int beam : {1, 2, 3, 8}) {
      for (const int depth : {0, 1, 4}) {
        for (const int budget : {1, 4, 11, 300}) {
          const eagle2_options o{.beam = beam, .depth = depth, .budget = budget};
          const tree<> t = grow(eagle2(o), drafter);
          REQUIRE(prefixes_of(t) == naive_eagle2(row_of, o));
          REQUIRE(drafter.passes == depth + 1);
          REQUIRE(drafter.rows().rows.n_rows <= depth * beam + 1);
          check_rows(drafter, row_of, t);
        }
      }
    }
  }
}

TEST_CASE("where there is no room for a beam, its best nodes are asked about and growth ends") {
  const auto row_of = path_rows(3, 5);
  testing::row_drafter drafter(5, row_of);
  const eagle2 policy({.beam = 3, .depth = 6, .budget = 30});
  CHECK(policy.max_nodes() == 30);
  CHECK(policy.max_asked() == 30);
  CHECK(eagle2().max_asked() == 59);
  CHECK(eagle2({.beam = 20, .depth = 5, .budget = 59}).max_asked() == 100);
  const int whole = grow(policy, drafter).size();
  CHECK(whole == 31);
  for (int limit = 0; limit < 40; ++limit) {
    const tree<> t = grow(policy, drafter, limit);
    REQUIRE(t.size() <= std::min(limit, 30) + 1);
    if (limit == 0) {
      REQUIRE(drafter.passes == 0);
      continue;
    }
    // The first beam of 3 needs room for 3, each later one for as many more.
    REQUIRE(drafter.passes == std::min(6, (limit + 2) / 3) + 1);
    REQUIRE(drafter.rows().rows.n_rows == std::min(18, limit) + 1);
    check_rows(drafter, row_of, t);
  }
}

TEST_CASE("eagle2 drafts no token of probability 0") {
  testing::row_drafter silent(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.0); });
  CHECK(grow(eagle2(), silent).size() == 1);
  CHECK(silent.passes == 1);
  testing::row_drafter sure(4, [](std::span<const token_id> path) {
    std::vector<double> row(4, 0.0);
    row[path.size() % 4] = 1;
    return row;
  });
  CHECK(prefixes_of(grow(eagle2({.beam = 2, .depth = 2}), sure)) == std::vector<prefix_type>{{1}, {1, 2}, {1, 2, 3}});
}

TEST_CASE("eagle2 allocates nothing once it is built") {
  // A drafter that does not allocate either.
  struct still_drafter {
    std::vector<double> data = std::vector<double>(51 * 12);
    std::vector<std::int32_t> row_of = std::vector<std::int32_t>(60);
    std::int32_t n = 0;
    void begin(std::span<const token_id>) {}
    void commit(tree_view, verdict) {}
    void reserve(std::int32_t) {}
    std::int32_t capacity() const { return 1 << 20; }
    std::int32_t vocab_size() const { return 12; }
    void propose(tree_view, std::span<const node_id> nodes) {
      if (nodes[0] == root_node) n = 0;
      for (const node_id u : nodes) {
        for (std::size_t token = 0; token < 12; ++token)
          data[static_cast<std::size_t>(n) * 12 + token] =
              static_cast<double>((u + 1) * 7 % 5 + 1) / (20.0 + static_cast<double>(token));
        row_of[static_cast<std::size_t>(u)] = n++;
      }
    }
    node_rows<double> rows() const { return {{data.data(), n, 12}, row_of.data()}; }
    void renumber(std::span<const node_id>) {}
  };
  still_drafter drafter;
  eagle2 policy;
  tree<> t(most_asked(policy));
  philox_chance chance(0, 0, 0);
  const allocation_count count;
  for (int round = 0; round < 3; ++round) {
    t.reset(0);
    espalier::grow(policy, t, drafter, chance);
  }
  CHECK(count.so_far() == 0);
  CHECK(t.size() == 60);
}

TEST_CASE("options of eagle2 out of range are errors that name option, value and range") {
  const auto message = [](eagle2_options o) { return message_of<option_error>([&] { eagle2 e(o); }); };
  CHECK(message({}).empty());
  CHECK(message({.beam = 1, .depth = 0, .budget = 1}).empty());
  CHECK(message({.beam = 64, .depth = 64, .budget = 1024}).empty());
  for (const int bad : {0, -1, 65})
    CHECK(says(message({.beam = bad}), "option beam is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const int bad : {-1, 65})
    CHECK(says(message({.depth = bad}), "option depth is " + std::to_string(bad) + ",", "between 0 and 64"));
  for (const int bad : {0, -1, 1025})
    CHECK(says(message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 1 and 1024"));
}
