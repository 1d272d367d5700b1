// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/autoregressive.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
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

namespace {

// After token 3 comes 4, and after it 5; nothing else is said of any row.
struct runs_after_three {
  template <class NumberT>
  void process(tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) const {
    std::copy(logits.begin(), logits.end(), out.begin());
    if (u != root_node) CHECK(!only(tree, u));
  }
  std::optional<token_id> only(tree_view tree, node_id u) const {
    if (tree.token[u] == 3) return 4;
    if (tree.token[u] == 4) return 5;
    return std::nullopt;
  }
};

// Names this token after every node.
struct forces {
  std::optional<token_id> token;
  template <class NumberT>
  void process(tree_view, node_id, std::span<const NumberT> logits, std::span<NumberT> out) const {
    std::copy(logits.begin(), logits.end(), out.begin());
  }
  std::optional<token_id> only(tree_view, node_id) const { return token; }
};

}  // namespace

TEST_CASE("a row of one token costs no pass, and its node is forwarded with the first one below it that does") {
  models::probe_backend backend(6, {.seed = 71}), other(6, {.seed = 71});
  token_kv kv(60), other_kv(60);
  autoregressive drafter(backend, kv), asking(other, other_kv);
  using number = std::remove_cvref_t<decltype(drafter.rows().row(0)[0])>;
  runs_after_three process;
  drafter.process_rows(row_processor<number>(process));
  const std::vector<token_id> text{1, 2};
  tree<> t(10);
  t.reset(2);
  const std::vector<node_id> root{0}, first{1}, forced{2, 3}, below{4, 5};
  for (const bool spares : {true, false}) {
    auto& d = spares ? drafter : asking;
    d.reserve(10);
    d.begin(text);
    d.propose(t, root);
    if (spares) {
      t.append(0, 1, 0);
      t.append(1, 3, 0);
      t.append(2, 4, 0);
      t.append(3, 0, 0);
      t.append(3, 5, 0);
    }
    d.propose(t, first);
    d.propose(t, forced);
    d.propose(t, below);
  }
  CHECK(backend.calls == other.calls - 1);
  CHECK(backend.rows == other.rows);
  const auto rows = drafter.rows(), asked = asking.rows();
  for (const node_id u : {0, 1, 4, 5})
    CHECK(std::ranges::equal(rows.row(u), asked.row(u)));
  CHECK(std::ranges::equal(rows.row(2), std::vector<number>{0, 0, 0, 0, 1, 0}));
  CHECK(std::ranges::equal(rows.row(3), std::vector<number>{0, 0, 0, 0, 0, 1}));
  CHECK(says(message_of<input_error>([&] { drafter.propose(t, forced); }), "node 2 twice"));
  drafter.commit(t, {4, 1});
  asking.commit(t, {4, 1});
  CHECK(kv.size(0) == 6);
  CHECK(other_kv.size(0) == 6);
}

TEST_CASE("the row of a root that one token is left after costs no pass, and the text is read when one is needed") {
  models::probe_backend backend(6, {.seed = 71}), other(6, {.seed = 71});
  token_kv kv(60), other_kv(60);
  autoregressive drafter(backend, kv), asking(other, other_kv);
  using number = std::remove_cvref_t<decltype(drafter.rows().row(0)[0])>;
  // 4 is left after the text alone, anything after a path.
  struct forces_first : forces {
    std::optional<token_id> only(tree_view, node_id u) const { return u == root_node ? token : std::nullopt; }
  };
  forces_first process{{4}};
  const std::vector<token_id> text{1, 2};
  const std::vector<node_id> root{0}, child{1};
  drafter.reserve(10);
  asking.reserve(10);
  drafter.process_rows(row_processor<number>(process));
  drafter.begin(text);
  asking.begin(text);
  tree<> t(10);
  t.reset(2);
  drafter.propose(t, root);
  CHECK(backend.calls == 0);
  CHECK(std::ranges::equal(drafter.rows().row(0), std::vector<number>{0, 0, 0, 0, 1, 0}));
  t.append(0, 4, 0);
  drafter.propose(t, child);
  asking.propose(t, root);
  asking.propose(t, child);
  CHECK(backend.rows == 3);
  CHECK(std::ranges::equal(drafter.rows().row(1), asking.rows().row(1)));
  drafter.commit(t, {1, 0});
  asking.commit(t, {1, 0});
  CHECK(kv.size(0) == other_kv.size(0));
  // A round without a pass leaves the text unread, which the next one makes up for.
  t.reset(0);
  const auto calls = backend.calls;
  drafter.propose(t, root);
  t.append(0, 4, 0);
  drafter.commit(t, {1, 3});
  CHECK(backend.calls == calls);
  asking.propose(t, root);
  asking.commit(t, {1, 3});
  t.reset(3);
  process.token.reset();
  drafter.propose(t, root);
  asking.propose(t, root);
  CHECK(std::ranges::equal(drafter.rows().row(0), asking.rows().row(0)));
  CHECK(kv.size(0) == 6);
  // A drafter that keeps hidden states asks its model.
  autoregressive keeping(backend, token_kv(60));
  keeping.keep_states();
  keeping.reserve(10);
  keeping.process_rows(row_processor<number>(process));
  keeping.begin(text);
  process.token = 4;
  t.reset(2);
  const auto before = backend.calls;
  keeping.propose(t, root);
  CHECK(backend.calls == before + 1);
}

TEST_CASE("a forced token that the draft does not know is no row") {
  models::probe_backend backend(6, {.seed = 71});
  autoregressive drafter(backend, token_kv(60));
  using number = std::remove_cvref_t<decltype(drafter.rows().row(0)[0])>;
  drafter.reserve(4);
  const std::vector<token_id> text{1, 2};
  const std::vector<node_id> root{0}, child{1};
  for (const token_id unknown : {-1, 6}) {
    forces process{unknown};
    drafter.begin(text);
    tree<> t(4);
    t.reset(2);
    drafter.process_rows(row_processor<number>(process));
    drafter.propose(t, root);
    t.append(0, 3, 0);
    const auto calls = backend.calls;
    drafter.propose(t, child);
    CHECK(backend.calls == calls + 1);
  }
}

TEST_CASE("forced nodes that nothing was asked below are read with the text") {
  models::probe_backend backend(6, {.seed = 71});
  token_kv kv(60);
  autoregressive drafter(backend, kv);
  using number = std::remove_cvref_t<decltype(drafter.rows().row(0)[0])>;
  runs_after_three process;
  drafter.process_rows(row_processor<number>(process));
  drafter.reserve(10);
  const std::vector<token_id> text{1, 2};
  drafter.begin(text);
  tree<> t(10);
  t.reset(2);
  const std::vector<node_id> root{0}, forced{1};
  drafter.propose(t, root);
  t.append(0, 3, 0);
  t.append(1, 4, 0);
  drafter.propose(t, forced);
  CHECK(backend.rows == 2);
  drafter.commit(t, {2, 5});
  CHECK(kv.size(0) == 2);
  t.reset(5);
  drafter.propose(t, root);
  CHECK(backend.rows == 5);  // 3, 4 and 5
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
  drafter.propose(t, root);
  const auto row = drafter.rows().row(root_node);
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

TEST_CASE("a drafter is asked about nodes that there is room for, each once and after its parent") {
  autoregressive drafter(text_backend(6, models::text_model{}), token_kv(40));
  const auto said = [&](tree_view t, std::vector<node_id> nodes) {
    return message_of<input_error>([&] { drafter.propose(t, nodes); });
  };
  tree<> t(9);
  t.reset(2);
  CHECK(says(said(t, {0}), "reserve()"));
  drafter.reserve(3);
  drafter.begin(std::vector<token_id>{1, 2});
  t.append(t.append(0, 1, 0), 2, 0);
  CHECK(says(said(t, {1}), "node 1 before its parent, node 0"));
  CHECK(said(t, {0}).empty());
  CHECK(says(said(t, {-1}), "node -1", "nodes 0 to 2"));
  CHECK(says(said(t, {3}), "node 3", "nodes 0 to 2"));
  CHECK(says(said(t, {0, 1}), "the root", "alone"));
  CHECK(says(said(t, {2}), "node 2 before its parent, node 1"));
  CHECK(said(t, {1}).empty());
  CHECK(says(said(t, {1}), "node 1 twice"));
  CHECK(says(said(t, {2, 2}), "node 2 twice"));
  t.append(0, 4, 0);
  const node_id beyond = t.append(0, 5, 0);
  CHECK(says(said(t, {beyond}), "node 4", "nodes 0 to 3"));
  const node_id unknown = t.append(0, 6, 0);
  CHECK(unknown == 5);
  for (const std::vector<node_id>& was : {std::vector<node_id>{0, 4}, {0, -2}, {0, 1, 2, 3, -1}})
    CHECK(says(message_of<input_error>([&] { drafter.renumber(was); }), "said to have been", "nodes 0 to 3"));
  // None of it does harm.
  CHECK(said(t, {0}).empty());
  CHECK(said(t, {1, 2}).empty());
  CHECK(drafter.rows().has(2));
}

TEST_CASE("a token that the draft model does not know is not forwarded") {
  autoregressive drafter(text_backend(6, models::text_model{}), token_kv(40));
  drafter.reserve(3);
  drafter.begin(std::vector<token_id>{1, 2});
  for (const token_id bad : {6, -1}) {
    tree<> t(3);
    t.reset(2);
    const node_id child = t.append(0, bad, 0), root = root_node;
    drafter.propose(t, std::span(&root, 1));
    CHECK(says(message_of<input_error>([&] { drafter.propose(t, std::span(&child, 1)); }),
               "token " + std::to_string(bad), "node 1", "ends at 5"));
  }
}

namespace {

// A model with columns for tokens 1, 3 and 4 alone; its logits are 0.
struct narrow_model {
  std::vector<token_id> few{1, 3, 4};
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return 6; }
  std::span<const token_id> tokens() const { return few; }
  vocab_rows<float> forward(token_kv&, forward_batch_view batch) {
    logits.assign(batch.outputs.size() * few.size(), 0.0F);
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), static_cast<std::int32_t>(few.size())};
  }
};

// Leaves tokens 2 and 3 after every node.
struct leaves_two_and_three {
  template <class NumberT>
  void process(tree_view, node_id, std::span<const NumberT> logits, std::span<NumberT> out) const {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = i == 2 || i == 3 ? logits[i] : -std::numeric_limits<NumberT>::infinity();
  }
  std::optional<token_id> only(tree_view tree, node_id u) const {
    return u != root_node && tree.token[u] == 3 ? std::optional<token_id>(2) : std::nullopt;
  }
};

}  // namespace

TEST_CASE("rows of a model with columns for some tokens are over the vocabulary, with a processor and after it") {
  autoregressive drafter(narrow_model{}, token_kv(60));
  drafter.reserve(4);
  drafter.begin(std::vector<token_id>{1, 2});
  const std::vector<node_id> root{0}, child{1};
  const std::vector<float> plain{0, 1.0F / 3, 0, 1.0F / 3, 1.0F / 3, 0};
  const auto after_root = [&](auto&& also) {
    tree<> t(4);
    t.reset(2);
    drafter.propose(t, root);
    t.append(0, 3, 0);
    drafter.propose(t, child);
    also();
    drafter.commit(t, {0, 2});
  };
  after_root([&] {
    CHECK(std::ranges::equal(drafter.rows().row(0), plain));
    CHECK(std::ranges::equal(drafter.rows().row(1), plain));
  });
  leaves_two_and_three process;
  drafter.process_rows(row_processor<float>(process));
  after_root([&] {
    CHECK(std::ranges::equal(drafter.rows().row(0), std::vector<float>{0, 0, 0, 1, 0, 0}));
    CHECK(std::ranges::equal(drafter.rows().row(1), std::vector<float>{0, 0, 1, 0, 0, 0}));  // without a pass
  });
  drafter.process_rows({});
  after_root([&] {
    CHECK(std::ranges::equal(drafter.rows().row(0), plain));
    CHECK(std::ranges::equal(drafter.rows().row(1), plain));
  });
}

TEST_CASE("a target whose logits are of some tokens alone is refused") {
  narrow_model target;
  token_kv kv(60);
  auto decode = make_decoder(no_drafter(), plain(), greedy(), kv, target);
  CHECK_THROWS_WITH(decode.generate(std::vector<token_id>{1, 2}, {.max_tokens = 2}),
                    "the backend returned 1 rows of 3 logits, but was asked for 1 rows of 6.");
}
