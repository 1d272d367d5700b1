// SPDX-License-Identifier: BSL-1.0
// Parts of one's own that are wrong: an error that says what is, and never memory that is not theirs or another text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 11;
const std::vector<token_id> prompt{3, 1, 4};

// A policy made of two functions, which are given the tree; what it asks about is `asked`.
struct made_policy {
  static constexpr regime sampling = regime::deterministic;
  std::function<std::vector<node_id>(tree<>&)> first = [](tree<>&) { return std::vector<node_id>{root_node}; };
  std::function<std::vector<node_id>(tree<>&, node_rows<float>)> next = [](tree<>&, node_rows<float>) {
    return std::vector<node_id>();
  };
  std::int32_t nodes = 4;
  std::vector<node_id> asked{};

  std::int32_t max_nodes() const { return nodes; }
  std::span<const node_id> begin(tree<>& tree) { return asked = first(tree); }
  template <class ChanceT>
  std::span<const node_id> take(tree<>& tree, node_rows<float> rows, ChanceT&) {
    return asked = next(tree, rows);
  }
  void observe(tree_view, verdict) const {}
};

struct fixed_verdict {
  static constexpr regime lossless = regime::any;
  verdict given;
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view, const DraftRowsT&, TargetRowsT&, ChanceT&) const {
    return given;
  }
};

token_id best_of(std::span<const float> row) {
  return static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin());
}

// What the first round of a decoder says, which must leave the text where it was; the next one may be as wrong.
template <class PolicyT, class VerifierT = greedy>
std::string said_by_round(PolicyT policy, VerifierT verifier = {}, std::int32_t max_tokens = 20) {
  composition<PolicyT, VerifierT> c(std::move(policy), {.draft = {.seed = 2}}, std::move(verifier));
  c.decode.begin(prompt, {.max_tokens = max_tokens});
  const std::string message = message_of<input_error>([&] { c.step(); });
  if (!message.empty()) {
    CHECK(c.copy() == prompt);
    CHECK(message_of<input_error>([&] { c.step(); }) == message);
  }
  return message;
}

made_policy asking(std::function<std::vector<node_id>(tree<>&, node_rows<float>)> next) {
  made_policy policy;
  policy.next = std::move(next);
  return policy;
}

}  // namespace

TEST_CASE("a policy that does not look whether the tree is full hears of it near the end of a text") {
  node_id u = root_node;
  int n = 0;
  made_policy top_path;
  top_path.first = [&](tree<>&) { return std::vector<node_id>{u = root_node}; };
  top_path.next = [&](tree<>& tree, node_rows<float> rows) {
    const token_id best = best_of(rows.row(u));
    u = tree.append(u, best, std::log(rows.row(u)[static_cast<std::size_t>(best)]));
    return tree.view().depth[std::max(u, 0)] < 4 ? std::vector<node_id>{u} : std::vector<node_id>();
  };
  composition<made_policy> c(top_path, {});
  c.decode.begin(prompt, {.max_tokens = 1000});
  const std::string message = message_of<input_error>([&] {
    while (c.step())
      ++n;
  });
  CHECK(n > 10);
  CHECK(says(message, "asks about node -1", "nodes 0 to ", "append()", "full"));
  CHECK(c.consistent);
}

TEST_CASE("a tree takes children of its own nodes alone") {
  for (const node_id bad : {-1, 1, 7}) {
    const std::string node = "node " + std::to_string(bad);
    CHECK(says(said_by_round(asking([bad](tree<>& tree, node_rows<float>) {
                 tree.append(bad, 2, -1.0F);
                 return std::vector<node_id>();
               })),
               node, "nodes 0 to 0"));
    CHECK(says(said_by_round(asking([bad](tree<>& tree, node_rows<float>) {
                 tree.draw(bad, 2, -1.0F);
                 return std::vector<node_id>();
               })),
               node, "nodes 0 to 0"));
  }
}

TEST_CASE("a policy asks about nodes of the tree, the root first, each once and after its parent") {
  const auto two_levels = [](std::vector<node_id> then) {
    return asking([then](tree<>& tree, node_rows<float>) {
      if (tree.size() > 1) return then;
      tree.append(tree.append(0, 1, -1.0F), 2, -1.0F);
      tree.append(0, 3, -1.0F);
      return std::vector<node_id>{1};
    });
  };
  CHECK(says(said_by_round(two_levels({1})), "node 1 twice"));
  CHECK(says(said_by_round(two_levels({2, 2})), "node 2 twice"));
  CHECK(says(said_by_round(two_levels({-1})), "node -1", "nodes 0 to 3"));
  CHECK(says(said_by_round(two_levels({4})), "node 4", "nodes 0 to 3"));
  CHECK(says(said_by_round(two_levels({0})), "root", "twice"));
  CHECK(says(said_by_round(two_levels({3, 0})), "root", "twice"));
  CHECK(says(said_by_round(asking([](tree<>& tree, node_rows<float>) {
               tree.append(tree.append(0, 1, -1.0F), 2, -1.0F);
               return std::vector<node_id>{2};
             })),
             "node 2 before its parent, node 1"));
  made_policy late;
  late.first = [](tree<>& tree) { return std::vector<node_id>{tree.append(0, 1, -1.0F)}; };
  CHECK(says(said_by_round(late), "node 1 first", "root"));
}

TEST_CASE("a policy keeps no more than it says") {
  made_policy greedy_one;
  greedy_one.nodes = 2;
  struct asks_more : made_policy {
    std::int32_t max_asked() const { return 6; }
    std::span<const node_id> was() const { return {}; }
  } policy{greedy_one};
  policy.next = [](tree<>& tree, node_rows<float>) {
    for (token_id t = 0; t < 6; ++t)
      tree.append(0, t, -1.0F);
    return std::vector<node_id>();
  };
  CHECK(says(said_by_round(policy), "6 drafted tokens", "at most 2"));
}

TEST_CASE("a drafted token outside the vocabulary reaches neither draft nor target") {
  struct runs {
    std::vector<token_id> run;
    void begin(std::span<const token_id>) {}
    void commit(tree_view, verdict) {}
    void reserve(std::int32_t) {}
    std::int32_t capacity() const { return 1 << 20; }
    token_run propose_run(std::int32_t n) {
      return {std::span<const token_id>(run).first(std::min(static_cast<std::size_t>(n), run.size()))};
    }
  };
  struct watched {
    text_backend<models::text_model> inner{vocab, {}};
    bool clean = true;
    std::int32_t vocab_size() const { return vocab; }
    logits_view forward(token_kv& kv, forward_batch_view batch) {
      for (const token_id t : batch.tokens)
        clean = clean && t >= 0 && t < vocab;
      return inner.forward(kv, batch);
    }
  };
  for (const token_id bad : {999, -5, vocab}) {
    const std::string token = "token " + std::to_string(bad);
    watched target, draft;
    token_kv kv(64), draft_kv(64);
    auto from_runs = make_decoder(runs{{1, bad}}, chain(), greedy(), kv, target);
    from_runs.begin(prompt, {.max_tokens = 9});
    CHECK(says(message_of<input_error>([&] { from_runs.step(); }), token, "node 2", "ends at 10"));
    autoregressive drafter(draft, draft_kv);
    auto policy = asking([bad](tree<>& tree, node_rows<float>) {
      return tree.size() == 1 ? std::vector<node_id>{tree.append(0, bad, -1.0F)} : std::vector<node_id>();
    });
    auto asked = make_decoder(drafter, policy, greedy(), kv, target);
    asked.begin(prompt, {.max_tokens = 9});
    CHECK(says(message_of<input_error>([&] { asked.step(); }), token, "node 1", "ends at 10"));
    CHECK(target.clean);
    CHECK(draft.clean);
  }
}

TEST_CASE("a verdict is a node of the tree and a token of the vocabulary") {
  CHECK(says(said_by_round(chain({.length = 2}), fixed_verdict{{0, -1}}), "token -1", "ends at 10"));
  CHECK(says(said_by_round(chain({.length = 2}), fixed_verdict{{1, vocab}}), "token 11", "ends at 10"));
  CHECK(says(said_by_round(chain({.length = 2}), fixed_verdict{{-1, 1}}), "node -1", "nodes 0 to 2"));
  CHECK(says(said_by_round(chain({.length = 2}), fixed_verdict{{3, 1}}), "node 3", "nodes 0 to 2"));
  CHECK(said_by_round(chain({.length = 2}), fixed_verdict{{2, 10}}).empty());
}

namespace {

// Counts its own that are gone.
struct counted_chain : chain {
  counted_chain(chain_options options, int* counter) : chain(options), gone(counter) {}
  counted_chain(const counted_chain&) = default;
  ~counted_chain() { ++*gone; }
  int* gone;
};

// As a function of one's own makes decoders: its policy and its verifier are variables that are gone when it returns.
template <class DrafterT, class BackendT>
auto made_in_a_function(DrafterT& drafter, token_kv& kv, BackendT& target, int* gone) {
  counted_chain policy({.length = 3}, gone);
  greedy verifier;
  return make_decoder(drafter, policy, verifier, kv, target);
}

}  // namespace

TEST_CASE("a decoder owns its policy and its verifier") {
  token_kv kv(64), draft_kv(64);
  const models::text_model model{.seed = 4};
  text_backend target(vocab, model), draft(vocab, models::text_model{.seed = 4, .noise = 0.2});
  autoregressive drafter(draft, draft_kv);
  int gone = 0;
  {
    auto decode = made_in_a_function(drafter, kv, target, &gone);
    const int before = gone;
    CHECK(before >= 1);
    decode.generate(prompt, {.max_tokens = 30});
    const auto text = decode.current().tokens();
    CHECK(std::vector<token_id>(text.begin(), text.end()) ==
          models::write_plain(model, vocab, prompt, 64, {.max_tokens = 30}).text);
    CHECK(gone == before);
  }
  chain policy;
  auto decode = make_decoder(drafter, policy, greedy(), kv, target);
  CHECK(&decode.policy() != &policy);
}

TEST_CASE("a policy that is exchanged for a larger one, or grows, is held to what there is room for") {
  composition<made_policy> c({}, {});
  c.decode.begin(prompt, {.max_tokens = 30});
  made_policy& policy = c.decode.policy();
  policy.nodes = 40;
  policy.next = [](tree<>& tree, node_rows<float> rows) {
    std::vector<float> row(rows.row(root_node).begin(), rows.row(root_node).end());
    for (int i = 0; i < 6; ++i) {
      const token_id best = best_of(row);
      tree.append(root_node, best, std::log(row[static_cast<std::size_t>(best)]));
      row[static_cast<std::size_t>(best)] = 0;
    }
    return std::vector<node_id>();
  };
  // The tree takes no more than there is room for.
  while (c.step())
    CHECK(c.decode.last_round().tree.n_draws <= 4);
  CHECK(c.text().size() == prompt.size() + 30);

  // That of a policy which rebuilds it is larger than what may be kept.
  text_backend target(vocab, models::text_model{}), draft(vocab, models::text_model{.seed = 2});
  token_kv kv(96);
  auto decode = make_decoder(autoregressive(draft, token_kv(96)), eagle2({.beam = 4, .depth = 4, .budget = 4}),
                             greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 30});
  decode.policy() = eagle2({.beam = 4, .depth = 4, .budget = 12});
  CHECK(says(message_of<input_error>([&] { decode.step(); }), "keeps 12 drafted tokens", "at most 4"));
}

TEST_CASE("a policy that builds its tree anew and does not say which node was which is found out") {
  made_policy swapping;
  swapping.next = [](tree<>& tree, node_rows<float> rows) {
    const auto row = rows.row(root_node);
    const token_id best = best_of(row), pending = tree.view().token[root_node];
    std::vector<float> others(row.begin(), row.end());
    others[static_cast<std::size_t>(best)] = 0;
    const auto add = [&](token_id t) { tree.append(root_node, t, std::log(row[static_cast<std::size_t>(t)])); };
    const bool is_first = tree.size() == 1;
    if (!is_first) tree.reset(pending, tree.limit());
    add(is_first ? best : best_of(others));
    add(is_first ? best_of(others) : best);
    return is_first ? std::vector<node_id>{1, 2} : std::vector<node_id>();
  };
  text_backend target(vocab, models::text_model{}), draft(vocab, models::text_model{});  // equal: the best is accepted
  token_kv kv(96);
  auto decode = make_decoder(autoregressive(draft, token_kv(96)), swapping, greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 30});
  CHECK(says(message_of<input_error>([&] { decode.step(); }), "node 2 was asked about as token", "was()"));
}

TEST_CASE("where nothing may be drafted nobody is asked, whatever the policy wants") {
  made_policy eager;
  eager.next = [](tree<>& tree, node_rows<float> rows) {
    const token_id best = best_of(rows.row(root_node));
    tree.append(root_node, best, std::log(rows.row(root_node)[static_cast<std::size_t>(best)]));
    return std::vector<node_id>();
  };
  composition<made_policy> c(eager, {.draft_context = 20});
  c.decode.begin(prompt, {.max_tokens = 60});
  while (c.step()) {
  }
  CHECK(c.text().size() == prompt.size() + 60);
}
