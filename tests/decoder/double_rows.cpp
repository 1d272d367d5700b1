// SPDX-License-Identifier: BSL-1.0
// A backend with logits in double has every row of its decoder in double.
#include <cmath>
#include <concepts>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/backend/callable.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 300;

struct double_model {
  std::uint64_t seed;
  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    std::uint64_t key = models::mixed(seed ^ text.size());
    for (const token_id t : text)
      key = models::mixed(key ^ static_cast<std::uint64_t>(t));
    for (std::size_t v = 0; v < logits.size(); ++v)
      logits[v] = 12 * models::mixed_unit(key + v);
  }
};

// What the rows of each node must be, in long double.
template <std::same_as<double> NumberT>
bool is_softmax(std::span<const NumberT> row, const double_model& model, std::span<const token_id> text) {
  std::vector<double> logits(row.size());
  model(text, logits);
  std::vector<long double> p(logits.begin(), logits.end());
  for (long double& x : p)
    x = std::exp(x);
  const long double total = std::accumulate(p.begin(), p.end(), 0.0L);
  const long double sum = std::accumulate(row.begin(), row.end(), 0.0L);
  bool right = std::abs(sum - 1) < 1e-15L;
  for (std::size_t i = 0; i < p.size(); ++i)
    right = right && std::abs(static_cast<long double>(row[i]) - p[i] / total) < 1e-14L * p[i] / total;
  return right;
}

// Looks at every row of a round before it lets target_only decide.
struct looking {
  static constexpr regime lossless = regime::any;
  const std::vector<token_id>& text;
  double_model target_model, draft_model;
  int& rows_seen;
  bool& right;

  template <class ChanceT>
  verdict verify(tree_view tree, node_rows<double> draft, lazy_rows<double>& target, ChanceT& chance) const {
    for (node_id u = 0; u < tree.n_nodes; ++u) {
      std::vector<token_id> path = text;
      for (node_id a = u; a != root_node; a = tree.parent[a])
        path.insert(path.begin() + std::ssize(text), tree.token[a]);
      right = right && is_softmax(target.row(u), target_model, path);
      right = right && (!draft.has(u) || is_softmax(draft.row(u), draft_model, path));
      rows_seen += draft.has(u) ? 2 : 1;
    }
    return target_only().verify(tree, draft, target, chance);
  }
};

// Hears of the draft's rows in double, and of no others.
struct hearing : chain {
  int target_rows = 0, draft_rows = 0;
  bool reads_states() const { return true; }
  void read(std::span<const double> logits, std::span<const float>) { target_rows += std::ssize(logits) == vocab; }
  void read_draft(const model_state<double>& root, const model_state<double>&) {
    draft_rows += std::ssize(root.row) == vocab;
  }
};

}  // namespace

TEST_CASE("a policy that reads states reads those of models in double, and says so where a drafter keeps none") {
  text_backend target(vocab, double_model{1}), draft(vocab, double_model{2});
  token_kv kv(64), draft_kv(64);
  autoregressive drafter(draft, draft_kv);
  auto decode = make_decoder(drafter, hearing(), greedy(), kv, target);
  const std::vector<token_id> prompt{5, 6};
  decode.begin(prompt);
  for (int round = 1; round <= 3; ++round) {
    REQUIRE(decode.step());
    CHECK(decode.policy().target_rows == round);
    CHECK(decode.policy().draft_rows == round);
  }
  hearing policy;
  testing::row_drafter stateless(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.25); });
  stateless.reserve(5);
  tree<> t(5);
  t.reset(0);
  philox_chance chance(1, 0, 0);
  CHECK(says(message_of<option_error>([&] { grow(policy, t, stateless, chance); }), "keeps none"));
}

TEST_CASE("rows have the number type of the model's logits: in double they sum to 1 within 1e-15") {
  const double_model target_model{1}, draft_model{2};
  text_backend target(vocab, target_model), draft(vocab, draft_model);
  token_kv kv(64), draft_kv(64);
  autoregressive drafter(draft, draft_kv);
  std::vector<token_id> text{3, 1, 4};
  int rows_seen = 0;
  bool right = true;
  auto decode = make_decoder(drafter, fixed({.depth = 3, .breadth = 2, .budget = 14}),
                             looking{text, target_model, draft_model, rows_seen, right}, kv, target,
                             {.text = {.sampling = {.temperature = 1}}});
  decode.begin(text);
  for (int i = 0; i < 8; ++i) {
    REQUIRE(decode.step());
    text.assign(decode.current().tokens().begin(), decode.current().tokens().end());
  }
  CHECK(right);
  CHECK(rows_seen > 8 * 20);
}

TEST_CASE("target and draft may differ in their number types") {
  text_backend target(vocab, double_model{1});
  text_backend draft(vocab, models::text_model{});
  token_kv kv(64), draft_kv(64);
  autoregressive drafter(draft, draft_kv);
  auto decode = make_decoder(drafter, chain({.length = 3}), greedy(), kv, target);
  const std::vector<token_id> prompt{5, 6};
  const auto written = decode.generate(prompt, {.max_tokens = 12});
  std::vector<token_id> text = prompt;
  std::vector<double> logits(vocab);
  for (const token_id t : written) {
    double_model{1}(text, logits);
    REQUIRE(t == std::max_element(logits.begin(), logits.end()) - logits.begin());
    text.push_back(t);
  }
  CHECK(written.size() == 12);
}

TEST_CASE("a callable backend may return rows of double, with tokens at minus infinity, and plus infinity is found") {
  std::vector<double> rows(3 * 4, 1.0);
  callable_backend backend(4, [&](token_kv&, forward_batch_view batch) {
    return vocab_rows<double>{rows.data(), static_cast<std::int32_t>(batch.outputs.size()), 4};
  });
  token_kv kv(16);
  auto decode =
      make_decoder(no_drafter(), plain(), target_only(), kv, backend, {.text = {.sampling = {.temperature = 1}}});
  const std::vector<token_id> prompt{1};
  decode.begin(prompt);
  REQUIRE(decode.step());
  rows[2] = 1e300;  // finite in double, and far too large for float
  REQUIRE(decode.step());
  CHECK(decode.last_round().committed[0] == 2);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  rows[2] = -infinity;
  rows[1] = 1e300;
  REQUIRE(decode.step());
  CHECK(decode.last_round().committed[0] == 1);
  rows[3] = infinity;
  CHECK(says(message_of<numeric_error>([&] { decode.step(); }),
             "the target's logit of token 3 after node 0 (the pending token) of sequence 0 is inf"));
}
