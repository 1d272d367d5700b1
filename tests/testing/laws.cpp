// SPDX-License-Identifier: BSL-1.0
// Each suite of laws catches a part that breaks one; tests/laws runs them for the library's own.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/paged.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "raises.hpp"
#include "text_models.hpp"

using namespace espalier;

namespace {

template <class CallT>
std::string broken(const CallT& call) {
  return message_of<testing::law_error>(call);
}

// Ways to be wrong of a policy that draws a chain.
enum class way { none, twice, repeats, unsaved, two_nodes };

struct wrong_chain {
  static constexpr regime sampling = regime::iid;

  way wrong = way::none;
  int rounds = 0;
  std::vector<node_id> wanted{};

  std::int32_t max_nodes() const { return wrong == way::two_nodes ? 2 : 3; }
  void reset() { rounds = 0; }
  void serialize(auto& archive) {
    if (wrong != way::unsaved) archive(rounds);
  }

  std::span<const node_id> begin(tree<>& tree) {
    wanted.assign(1, root_node);
    return tree.full() ? std::span<const node_id>() : std::span<const node_id>(wanted);
  }

  template <class NumberT, class ChanceT>
  std::span<const node_id> take(tree<>& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    const node_id u = wanted.back();
    const auto row = rows.row(u);
    if (wrong == way::unsaved && rounds % 2 == 1) return {};
    if (wrong == way::repeats) chance.index(2, {u, 0, purpose::draft});
    const token_id t = chance.pick(row, {u, 0, purpose::draft});
    if (t < 0) return {};
    tree.draw(u, t, static_cast<float>(std::log(row[static_cast<std::size_t>(t)])));
    if (tree.full() || tree.size() > 3) return {};
    wanted.assign(1, wrong == way::twice && tree.size() > 2 ? u : tree.size() - 1);
    return wanted;
  }

  void observe(tree_view, verdict) { ++rounds; }
};

// Keeps the first four rows where four were accepted, whichever these are.
struct wrong_kv : token_kv {
  using token_kv::token_kv;
  bool keeps_the_first = false;

  std::int32_t commit(std::int32_t s, std::span<const std::int32_t> kept) {
    if (!keeps_the_first || kept.size() != 4) return token_kv::commit(s, kept);
    const std::int32_t first[] = {0, 1, 2, 3};
    return token_kv::commit(s, first);
  }
};

struct token_access {
  void write(token_kv& kv, std::int32_t s, std::int32_t slot, int number) const { kv.token(s, slot) = number; }
  int read(token_kv& kv, std::int32_t s, std::int32_t slot) const { return kv.token(s, slot); }
};

// Ways to be wrong of a store of pages.
struct wrong_pages : paged_kv {
  using paged_kv::paged_kv;
  bool finds_half = false, forks_none = false;

  int adopt(int s, std::span<const token_id> tokens) {
    return paged_kv::adopt(s, finds_half ? tokens.first(tokens.size() / 2) : tokens);
  }
  void fork(int from, int to) {
    if (!forks_none || from == to) return paged_kv::fork(from, to);
    const std::vector<token_id> tokens(prefix(from).begin(), prefix(from).end());
    truncate(to, 0);
    std::vector<std::int32_t> all(tokens.size());
    std::iota(all.begin(), all.end(), 0);
    append(to, static_cast<int>(all.size()));
    commit(to, all);
    remember(to, 0, tokens);
  }
};

// Ways to be wrong of a store with a window: to keep one row too many, or what is gone.
struct wrong_window : sink_window_kv<> {
  using sink_window_kv::sink_window_kv;
  bool commits_beyond = false, keeps_what_is_gone = false;

  int commit(int s, std::span<const std::int32_t> kept) {
    const int n = sink_window_kv::commit(s, kept);
    if (commits_beyond && n < std::ssize(kept) && append(s, 1) >= 0) {
      const std::int32_t one[] = {0};
      return n + sink_window_kv::commit(s, one);
    }
    return n;
  }
  void truncate(int s, int n) {
    const bool some = keeps_what_is_gone && n > 0;
    sink_window_kv::truncate(s, some ? (std::max)(n, size(s) - held(s) + options().sinks + options().window) : n);
  }
};

struct key_access {
  void write(auto& kv, int s, int slot, int number) const { *kv.key(0, s, slot) = static_cast<float>(number); }
  int read(auto& kv, int s, int slot) const { return static_cast<int>(*kv.key(0, s, slot)); }
};

// Gives other logits in a large pass.
struct sees_all_rows {
  text_backend<models::text_model> inner{7, models::text_model{.seed = 61}};
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return 7; }
  logits_view forward(token_kv& kv, forward_batch_view batch) {
    const logits_view right = inner.forward(kv, batch);
    logits.assign(right.data, right.data + static_cast<std::ptrdiff_t>(right.n_rows) * right.vocab);
    if (batch.n_rows() > 3) {
      for (float& x : logits)
        x += static_cast<float>(batch.n_rows());
    }
    return {logits.data(), right.n_rows, right.vocab};
  }
};

// Accepts the deepest node and adds the target's argmax, possible or not.
struct accepts_all {
  static constexpr regime lossless = regime::any;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT&) const {
    return {tree.n_nodes - 1, target.argmax(tree.n_nodes - 1)};
  }
};

// Commits another token than the verdict's.
struct mishears : autoregressive<text_backend<models::text_model>, token_kv> {
  using base = autoregressive<text_backend<models::text_model>, token_kv>;
  using base::base;
  void commit(tree_view tree, verdict v) { base::commit(tree, {v.accepted, v.token == 0 ? 1 : 0}); }
};

struct short_lookup : prompt_lookup {
  using prompt_lookup::prompt_lookup;
  auto propose_run(std::int32_t n) { return prompt_lookup::propose_run(n > 4 ? n - 1 : n); }
};

// Tells of what it was asked before instead of the match.
struct counting_lookup : prompt_lookup {
  using prompt_lookup::prompt_lookup;
  std::int32_t asked = 0;
  token_run propose_run(std::int32_t n) { return {prompt_lookup::propose_run(n).tokens, ++asked}; }
};

}  // namespace

TEST_CASE("a policy that asks twice, keeps too much or does not save what it learns is caught") {
  CHECK_NOTHROW(testing::check_tree_policy(wrong_chain()));
  CHECK(says(broken([] { testing::check_tree_policy(wrong_chain{.wrong = way::twice}); }), "asks about node", "twice"));
  CHECK(says(broken([] { testing::check_tree_policy(wrong_chain{.wrong = way::unsaved}); }), "grows another tree"));
  CHECK(says(message_of<input_error>([] { testing::check_tree_policy(wrong_chain{.wrong = way::two_nodes}); }),
             "at most 2"));
}

TEST_CASE("two decisions with one key are caught, which no enumeration can see") {
  CHECK(says(broken([] { testing::check_tree_policy(wrong_chain{.wrong = way::repeats}); }),
             "the policy decides two things with one key: node 0, slot 0"));
}

TEST_CASE("a verifier that accepts what the target gives probability 0 is caught") {
  CHECK_NOTHROW(testing::check_verifier(naive_tree()));
  CHECK(says(broken([] { testing::check_verifier(accepts_all()); }), "is not lossless for trees that are"));
}

TEST_CASE("a store that keeps other rows than the accepted ones is caught") {
  token_kv right(23);
  CHECK_NOTHROW(testing::check_kv_store(right, 1, token_access()));
  wrong_kv wrong(23);
  CHECK_NOTHROW(testing::check_kv_store(wrong, 1, token_access()));
  wrong.keeps_the_first = true;
  CHECK(says(broken([&] { testing::check_kv_store(wrong, 1, token_access()); }), "slot",
             "does not hold what was written into it"));
}

TEST_CASE("a store that shares other rows than those of the tokens is caught") {
  wrong_pages kv(1, 1, 2, 23, 4);
  CHECK_NOTHROW(testing::check_kv_store(kv, 2, key_access()));
  kv.finds_half = true;
  CHECK(says(broken([&] { testing::check_kv_store(kv, 2, key_access()); }), "adopt(1, 22 tokens) is 11",
             "between 22 and 22"));
  kv = wrong_pages(1, 1, 2, 23, 4);
  kv.forks_none = true;
  CHECK(says(broken([&] { testing::check_kv_store(kv, 2, key_access()); }), "fork() takes pages"));
}

TEST_CASE("a store that keeps rows beyond a slide, or rows that are gone, is caught") {
  const sink_window_options window{.sinks = 1, .window = 6, .block = 3, .scratch = 9};
  wrong_window kv(1, 1, 2, window);
  kv.commits_beyond = true;
  CHECK(says(broken([&] { testing::check_windowed_kv_store(kv, 2, key_access()); }), "but should keep"));
  kv = wrong_window(1, 1, 2, window);
  kv.keeps_what_is_gone = true;
  CHECK(says(broken([&] { testing::check_windowed_kv_store(kv, 2, key_access()); }), "rows are committed"));
}

TEST_CASE("a backend whose trees are not plain decoding is caught") {
  const auto make_kv = [](std::int32_t n) { return token_kv(64, commit_mode::compact, n); };
  const auto read = [](token_kv& kv, std::int32_t s, std::int32_t slot) { return kv.token(s, slot); };
  sees_all_rows wrong;
  CHECK(says(broken([&] { testing::check_backend(wrong, make_kv, read); }), "the logits of node",
             "plain decoding along its path"));
}

TEST_CASE("drafters that mishear a verdict, or propose another run, are caught") {
  const models::text_model model{.seed = 62};
  const auto expected = [&](const std::vector<token_id>& text) {
    std::vector<float> logits(5), row(5);
    model(text, logits);
    sampler({.temperature = 1}).probabilities(logits, row, 0);
    return row;
  };
  const auto make = [&] {
    return mishears(text_backend<models::text_model>(5, model), token_kv(120), {.temperature = 1});
  };
  CHECK(says(broken([&] { testing::check_step_drafter(make, expected); }), "the row of node 0"));
  const auto look_up = [](const std::vector<token_id>& text, std::int32_t n) {
    prompt_lookup right;
    right.begin(text);
    const auto run = right.propose_run(n).tokens;
    return std::vector<token_id>(run.begin(), run.end());
  };
  CHECK_NOTHROW(testing::check_sequence_drafter([] { return prompt_lookup(); }, look_up));
  CHECK(says(broken([&] { testing::check_sequence_drafter([] { return short_lookup(); }, look_up); }), "propose_run("));
  CHECK(says(broken([&] { testing::check_sequence_drafter([] { return counting_lookup(); }, look_up); }), "match"));
}

TEST_CASE("a drafter of rows refuses what no policy may ask") {
  testing::row_drafter drafter(2, [](std::span<const token_id>) { return std::vector<double>{0.5, 0.5}; });
  drafter.reserve(4);
  tree<> t(4);
  t.reset(0);
  t.append(root_node, 1, 0);
  const auto ask = [&](std::vector<node_id> nodes) { return broken([&] { drafter.propose(t.view(), nodes); }); };
  CHECK(says(ask({0, 1}), "the root together with other nodes"));
  CHECK(says(ask({1, 0}), "the root together with other nodes"));
  CHECK(ask({0}).empty());
  CHECK(says(ask({1, 0}), "the root together with other nodes"));
  CHECK(ask({1}).empty());
  CHECK(says(ask({1}), "node 1 twice"));
  CHECK(ask({0}).empty());
}
