// SPDX-License-Identifier: BSL-1.0
// Chains over drafters of blocks and of runs; those over step drafters are in tests/laws.
#include "espalier/tree_policy/chain.hpp"
#include "espalier/decoder/grow.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "drafter/marginal_drafter.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/drafter/factorised.hpp"
#include "raises.hpp"
#include "text_models.hpp"

using namespace espalier;

namespace {

template <class NumberT>
using rows_type = std::vector<std::vector<NumberT>>;

template <class NumberT>
marginal_drafter<NumberT> block_of(const rows_type<NumberT>& rows) {
  return {static_cast<std::int32_t>(rows.at(0).size()), static_cast<std::int32_t>(rows.size()),
          [=](std::span<const token_id>, std::int32_t place) { return rows[static_cast<std::size_t>(place)]; }};
}

template <class DrafterT>
tree<> grown(chain policy, DrafterT&& drafter, std::int32_t limit = 64) {
  philox_chance chance(1, 0, 0);
  tree<> t(64);
  t.reset(9, limit);
  drafter.reserve(64);
  const token_id text[] = {9};
  drafter.begin(text);
  espalier::grow(policy, t, drafter, chance);
  return t;
}

std::vector<token_id> path_of(const tree<>& t) {
  const tree_view view = t;
  for (node_id u = 1; u < view.n_nodes; ++u)
    REQUIRE(view.parent[u] == u - 1);
  return {view.token + 1, view.token + view.n_nodes};
}

// Proposes the same run every round, however few are asked for.
struct reciting_drafter {
  std::vector<token_id> run;
  std::int32_t asked = -1;
  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  token_run propose_run(std::int32_t max_tokens) {
    asked = max_tokens;
    return {run};
  }
};

}  // namespace

TEST_CASE("over a block a chain is the most probable token of each marginal") {
  constexpr double none = -std::numeric_limits<double>::infinity();
  const rows_type<double> rows{{0, 1, 1, none}, {-3, none, none, none}, {5, 5, 5, 5}, {1000, 0, -1000, 999}};
  const tree<> t = grown(chain({.length = 9}), block_of(rows));
  CHECK(path_of(t) == std::vector<token_id>{1, 0, 0, 0});
  const tree_view view = t;
  CHECK(view.log_prob[1] == Approx(-std::log(std::exp(-1.0) + 2)));
  CHECK(view.log_prob[2] == 0.0F);
  CHECK(view.log_prob[3] == Approx(std::log(0.25)));
  CHECK(view.log_prob[4] == Approx(-std::log(1 + std::exp(-1.0))));
  CHECK(path_of(grown(chain({.length = 2}), block_of(rows))) == std::vector<token_id>{1, 0});
  CHECK(path_of(grown(chain({.length = 9}), block_of(rows), 3)) == std::vector<token_id>{1, 0, 0});

  auto unasked = block_of(rows);
  CHECK(path_of(grown(chain(), unasked, 0)).empty());
  CHECK(unasked.passes == 0);
}

TEST_CASE("over a block it is the chain over its rows of probabilities") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    rows_type<float> rows(6, std::vector<float>(50));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t v = 0; v < rows[r].size(); ++v)
        rows[r][v] = static_cast<float>(std::floor(9 * models::mixed_unit(seed * 1000 + r * 60 + v)));
    }
    const tree<> direct = grown(chain({.length = 6}), block_of(rows));
    const tree<> stepped = grown(chain({.length = 6}), factorised(block_of(rows)));
    REQUIRE(path_of(direct) == path_of(stepped));
    for (node_id u = 1; u < direct.size(); ++u)
      REQUIRE(std::abs(direct.view().log_prob[u] - stepped.view().log_prob[u]) < 1e-5F);
  }
}

TEST_CASE("a block's logits that are no numbers are an error that names row and token") {
  const auto message = [](float bad) {
    return message_of<numeric_error>([&] { grown(chain(), block_of<float>({{0, 1}, {0, bad}})); });
  };
  CHECK(says(message(std::numeric_limits<float>::quiet_NaN()), "token 1", "row 1", "nan"));
  CHECK(says(message(std::numeric_limits<float>::infinity()), "token 1", "row 1", "inf"));
  const float none = -std::numeric_limits<float>::infinity();
  CHECK(says(message_of<numeric_error>([&] {
               grown(chain(), block_of<float>({{none, none}}));
             }),
             "row 0", "minus infinity"));
}

TEST_CASE("a run is drafted as it is, up to the length and to what the tree holds") {
  reciting_drafter drafter{{4, 4, 7}};
  CHECK(path_of(grown(chain(), drafter)) == std::vector<token_id>{4, 4, 7});
  CHECK(drafter.asked == 5);
  CHECK(path_of(grown(chain({.length = 2}), drafter, 1)) == std::vector<token_id>{4});
  CHECK(drafter.asked == 1);
  CHECK(grown(chain(), drafter).view().path_log_prob[3] == 0.0F);
  drafter.run.clear();
  CHECK(path_of(grown(chain(), drafter)).empty());
}
