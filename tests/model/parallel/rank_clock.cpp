// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/parallel/rank_clock.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/parallel/parallel_backend.hpp"
#include "thread_ranks.hpp"

using namespace espalier;
using thread_ranks::thread_rank;

TEST_CASE("ranks that measure by one clock make the same passes and find the same costs") {
  std::vector<std::optional<cost_model>> found(3);
  const auto errors = thread_ranks::run(3, [&](thread_rank& rank) {
    auto target =
        parallel_backend<thread_rank>::load(std::string(ESPALIER_TEST_DATA) + "/golden/llama", rank, {.max_rows = 16});
    contiguous_kv kv(target.layers(), target.cache_row(), 1, 64);
    found[static_cast<std::size_t>(rank.rank())] = measure_costs(
        target, kv, {.most_rows = 8, .contexts = {16}, .seconds = 0.05}, [](double, std::string_view) {},
        rank_clock(rank));
  });
  for (const std::string& error : errors)
    CHECK(error == "");
  CHECK(found[0]->target_pass(1, 16) > 0);
  CHECK((found[1] == found[0]));
  CHECK((found[2] == found[0]));
}
