// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/parallel/agreement.hpp"

#include <array>
#include <string>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "thread_ranks.hpp"

namespace {

using namespace espalier;
using thread_ranks::thread_rank;

void require_all_name(const std::vector<std::string>& errors, const std::string& what) {
  for (const std::string& error : errors) {
    INFO(error);
    REQUIRE(error.find(what) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("equal rounds and batches pass, and any difference is an error on every rank") {
  const auto with = [](auto&& change) {
    return thread_ranks::run(3, [&](thread_rank& rank) {
      agreement agree(rank);
      tree<> grown(8);
      grown.reset(5);
      const node_id child = grown.append(root_node, 7, -0.5F);
      grown.append(child, rank.rank() == 1 && change == 1 ? 8 : 9, -0.5F);
      round_record r;
      r.tree = grown.view();
      r.decision = {rank.rank() == 1 && change == 2 ? root_node : child, 3};
      const std::array<token_id, 2> committed{7, rank.rank() == 1 && change == 3 ? 4 : 3};
      r.committed = committed;
      agree(r);
      forward_batch_view batch;
      const std::array<token_id, 1> tokens{rank.rank() == 1 && change == 4 ? 2 : 1};
      batch.tokens = tokens;
      agree(batch);
    });
  };
  require_all_name(with(0), "");
  for (const std::string& error : with(0))
    REQUIRE(error == "");
  for (const int change : {1, 2, 3}) {
    INFO(change);
    require_all_name(with(change), "the tree or verdict of rank 1 is not that of the others");
  }
  require_all_name(with(4), "the batch of rank 1 is not that of the others");
}

TEST_CASE("ranks that have parted meet in the next comparison") {
  const auto errors = thread_ranks::run(3, [](thread_rank& rank) {
    agreement agree(rank);
    if (rank.rank() == 2) {
      agree(round_record{});
    } else {
      agree(forward_batch_view{});
    }
  });
  require_all_name(errors, "rank 2 is not that of the others");
}
