// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/autoregressive.hpp"

#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "raises.hpp"
#include "text_models.hpp"

using namespace espalier;

TEST_CASE("a draft pass has as many rows as nodes, and an accepted path is not forwarded again") {
  models::probe_backend backend(6, {.seed = 71});
  token_kv kv(60);
  autoregressive drafter(backend, kv);
  drafter.reserve(10);
  const std::vector<token_id> text{1, 2, 3, 4};
  drafter.begin(text);
  tree<> t(10);
  t.reset(4);
  const std::vector<node_id> root{0}, layer{1, 2, 3};
  drafter.propose(t, root);
  CHECK(backend.rows == 4);
  t.append(0, 1, 0);
  t.append(0, 2, 0);
  t.append(1, 3, 0);
  t.append(3, 0, 0);
  drafter.propose(t, layer);
  CHECK(backend.calls == 2);
  CHECK(backend.rows == 7);
  drafter.commit(t, {4, 5});  // tokens 1, 3, 0, then 5; node 4 was never asked about
  CHECK(kv.size(0) == 6);
  tree<> next(10);
  next.reset(5);
  drafter.propose(next, root);
  CHECK(backend.rows == 9);  // 0 and 5
  CHECK(drafter.forward_seconds() > 0);
}

TEST_CASE("the rows are those of the draft's own sampler") {
  models::text_model model{.seed = 72};
  autoregressive drafter(text_backend(6, model), token_kv(20), {.temperature = 0});
  drafter.reserve(4);
  const std::vector<token_id> text{1, 2};
  drafter.begin(text);
  tree<> t(4);
  t.reset(2);
  const std::vector<node_id> root{0};
  const auto row = drafter.propose(t, root).row(0);
  CHECK(std::count(row.begin(), row.end(), 0.0F) == 5);
  CHECK(std::count(row.begin(), row.end(), 1.0F) == 1);
}

TEST_CASE("a drafter says what it cannot follow") {
  autoregressive drafter(text_backend(6, models::text_model{}), token_kv(4));
  drafter.reserve(3);
  CHECK(drafter.capacity() == 4);
  CHECK(says(message_of<input_error>([&] { drafter.begin({}); }), "context is empty"));
  const std::vector<node_id> root{0}, child{1};
  tree<> t(3);
  t.reset(1);
  drafter.begin(std::vector<token_id>{1, 1, 1, 1, 1});
  CHECK(says(message_of<input_error>([&] { drafter.propose(t, root); }), "5 tokens", "cache of 4"));
  drafter.begin(std::vector<token_id>{1, 1, 1, 1});
  drafter.propose(t, root);
  t.append(0, 2, 0);
  CHECK(says(message_of<input_error>([&] { drafter.propose(t, child); }), "cache of 4 tokens is full"));
  CHECK(says(message_of<option_error>(
                 [] { autoregressive d(text_backend(6, models::text_model{}), token_kv(4), {.top_p = 0}); }),
             "top_p"));
}
