// SPDX-License-Identifier: BSL-1.0
// Every outcome of drafting and verifying, with its exact probability, over tiny vocabularies: what is emitted must be
// distributed as the target alone writes.
#include <boost/hana.hpp>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/core/enumerating_chance.hpp"
#include "tree_policy/row_drafter.hpp"

using namespace espalier;
namespace hana = boost::hana;

namespace {

using text_type = std::vector<token_id>;
using law_type = std::map<text_type, double>;
using row_function = std::function<std::vector<double>(std::span<const token_id> path)>;

// A tiny world: target and draft, each a row for each path below the root (whose token is not a part of it).
struct world {
  std::string name;
  std::int32_t vocab;
  row_function target;
  row_function draft;
};

std::vector<double> normalised(std::vector<double> row) {
  double total = 0;
  for (const double x : row)
    total += x;
  for (double& x : row)
    x /= total;
  return row;
}

// An irregular row of the path; about one in `zeros` weights is zero (0: none), `levels` values make ties.
row_function irregular(std::uint64_t seed, std::int32_t vocab, unsigned zeros, unsigned levels) {
  return [=](std::span<const token_id> path) {
    std::uint64_t key = seed;
    for (const token_id t : path)
      key = models::mix(key ^ static_cast<std::uint64_t>(t + 1));
    std::vector<double> row;
    for (std::int32_t t = 0; t < vocab; ++t) {
      const std::uint64_t x = models::mix(key + static_cast<std::uint64_t>(t) * 77);
      const bool zero = zeros > 0 && x % zeros == 0;
      row.push_back(zero ? 0.0 : levels > 0 ? 1.0 + static_cast<double>((x >> 20) % levels) : 0.05 + models::unit(x));
    }
    double total = 0;
    for (const double p : row)
      total += p;
    if (total == 0) row[key % row.size()] = 1;
    return normalised(row);
  };
}

std::vector<world> worlds() {
  std::vector<world> all;
  for (const std::int32_t vocab : {2, 3, 4}) {
    const std::string v = ", vocabulary " + std::to_string(vocab);
    const row_function p = irregular(100, vocab, 0, 0);
    all.push_back({"unlike" + v, vocab, p, irregular(200, vocab, 0, 0)});
    all.push_back({"p = q" + v, vocab, p, p});
    all.push_back({"zeros in p" + v, vocab, irregular(101, vocab, 2, 0), irregular(201, vocab, 0, 0)});
    all.push_back({"zeros in q" + v, vocab, p, irregular(202, vocab, 2, 0)});
    all.push_back({"zeros in both" + v, vocab, irregular(103, vocab, 2, 0), irregular(203, vocab, 2, 0)});
    all.push_back({"ties" + v, vocab, irregular(104, vocab, 0, 2), irregular(204, vocab, 0, 1)});
    all.push_back({"disjoint" + v, vocab,
                   [=](std::span<const token_id>) {
                     std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
                     row[0] = 1;
                     return row;
                   },
                   [=](std::span<const token_id> path) {
                     std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
                     row[1 + path.size() % (row.size() - 1)] = 1;
                     return row;
                   }});
  }
  all.push_back({"one token", 1, irregular(1, 1, 0, 0), irregular(2, 1, 0, 0)});
  return all;
}

dynatree_options shallow(dynatree_options o) {
  o.base_depth = std::min(o.base_depth, 2);
  o.max_depth = 2;
  return o;
}

// The compatible pairs, from two lists. `f` is called with a policy and a verifier.
const auto policies = hana::make_tuple(
    plain(), chain({.length = 1}), chain({.length = 3}), fixed({.depth = 2, .breadth = 2, .budget = 6}),
    fixed({.depth = 3, .breadth = 3, .budget = 5}), dynatree(shallow({})), dynatree(shallow(first_paper(12))));
const auto sampling_verifiers = hana::make_tuple(target_only());

template <class PolicyT, class VerifierT>
constexpr bool is_pair = compatible(PolicyT::sampling, VerifierT::lossless);

template <class VerifiersT, class CallT>
void for_each_pair(const VerifiersT& verifiers, const CallT& f) {
  hana::for_each(hana::cartesian_product(hana::make_tuple(policies, verifiers)), [&](const auto& pair) {
    auto policy = pair[hana::size_c<0>];
    auto verifier = pair[hana::size_c<1>];
    if constexpr (is_pair<decltype(policy), decltype(verifier)>) f(policy, verifier);
  });
}

// Target rows by node, in double.
struct exact_rows {
  std::vector<std::vector<double>> law;
  std::span<const double> row(node_id u) { return law[static_cast<std::size_t>(u)]; }
  token_id argmax(node_id u) {
    const auto r = row(u);
    return static_cast<token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

// Probabilities of the first n tokens when each comes from row(text so far).
void continue_with(const row_function& row, text_type text, double probability, std::size_t n, law_type& law) {
  if (text.size() >= n) {
    text.resize(n);
    law[text] += probability;
    return;
  }
  const std::vector<double> next = row(text);
  for (std::size_t t = 0; t < next.size(); ++t) {
    if (next[t] == 0) continue;
    text.push_back(static_cast<token_id>(t));
    continue_with(row, text, probability * next[t], n, law);
    text.pop_back();
  }
}

double distance(const law_type& a, const law_type& b) {
  double most = 0;
  for (const auto& [text, p] : a) {
    const auto found = b.find(text);
    most = std::max(most, std::abs(p - (found == b.end() ? 0.0 : found->second)));
  }
  for (const auto& [text, p] : b)
    most = std::max(most, a.count(text) == 0 ? p : 0.0);
  return most;
}

// The law of the first n tokens: one round, then the target alone. And how many outcomes a round has.
template <class PolicyT, class VerifierT>
law_type emitted(const world& w, PolicyT policy, VerifierT verifier, std::size_t n, int& outcomes) {
  law_type law;
  enumerating_chance chance;
  do {
    PolicyT fresh = policy;
    row_drafter drafter(w.vocab, [&](std::span<const token_id> path) { return w.draft(path.subspan(1)); });
    drafter.reserve(policy.max_nodes());
    tree<> t(policy.max_nodes());
    t.reset(0);
    fresh.grow(t, drafter, chance);
    const tree_view view = t;
    exact_rows target;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      text_type path;
      for (node_id a = u; a != root_node; a = view.parent[a])
        path.insert(path.begin(), view.token[a]);
      target.law.push_back(w.target(path));
    }
    const verdict v = verifier.verify(view, drafter.rows(), target, chance);
    text_type text{v.token};
    for (node_id a = v.accepted; a != root_node; a = view.parent[a])
      text.insert(text.begin(), view.token[a]);
    continue_with(w.target, text, chance.probability(), n, law);
    ++outcomes;
  } while (chance.next());
  return law;
}

// Wrong on purpose: trusts the draft's own order and takes a drafted token with probability min(1, p / q), as if it had
// been drawn from q. Right for draws, biased for a tree of best tokens.
struct naive_on_anything {
  static constexpr regime lossless = regime::any;
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    node_id u = root_node;
    while (!tree.is_leaf(u)) {
      const node_id child = *tree.draws(u).begin();
      const auto x = static_cast<std::size_t>(tree.token[child]);
      if (!chance.accept(target.row(u)[x], draft.row(u)[x], {})) {
        std::vector<double> residual;
        for (std::size_t t = 0; t < target.row(u).size(); ++t)
          residual.push_back(std::max(0.0, target.row(u)[t] - draft.row(u)[t]));
        return {u, chance.pick(std::span<const double>(residual), {})};
      }
      u = child;
    }
    return {u, chance.pick(target.row(u), {})};
  }
};

// A text_backend's model that gives a world's rows as logits; the text before the path is `prompt` tokens long.
struct world_model {
  row_function row;
  std::size_t prompt;
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    const std::vector<double> p = row(text.subspan(prompt));
    for (std::size_t t = 0; t < p.size(); ++t)
      logits[t] = p[t] > 0 ? static_cast<float>(std::log(p[t])) : -200.0F;  // beyond 87 below: exactly 0
  }
};

}  // namespace

TEST_CASE("one round, continued by the target, writes the target's distribution to 1e-12") {
  int outcomes = 0;
  for (const world& w : worlds()) {
    const std::size_t n = w.vocab > 2 ? 4 : 5;
    law_type expected;
    continue_with(w.target, {}, 1.0, n, expected);
    for_each_pair(sampling_verifiers, [&](auto policy, auto verifier) {
      INFO(w.name);
      const law_type law = emitted(w, policy, verifier, n, outcomes);
      REQUIRE(distance(law, expected) < 1e-12);
    });
  }
  CHECK(outcomes > 500);
}

TEST_CASE("the proof catches a verifier that is biased") {
  double worst = 0;
  int outcomes = 0;
  for (const world& w : worlds()) {
    law_type expected;
    continue_with(w.target, {}, 1.0, 3, expected);
    worst = std::max(worst, distance(emitted(w, chain({.length = 2}), naive_on_anything(), 3, outcomes), expected));
  }
  CHECK(worst > 0.05);
}

TEST_CASE("greedy verification writes the target's argmax text") {
  int outcomes = 0;
  for (const world& w : worlds()) {
    // The target of a greedy verifier puts everything on its argmax.
    world sharp = w;
    sharp.target = [&](std::span<const token_id> path) {
      std::vector<double> row = w.target(path);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      std::fill(row.begin(), row.end(), 0.0);
      row[static_cast<std::size_t>(best)] = 1;
      return row;
    };
    law_type expected;
    continue_with(sharp.target, {}, 1.0, 5, expected);
    REQUIRE(expected.size() == 1);
    for_each_pair(hana::make_tuple(greedy(), target_only()), [&](auto policy, auto verifier) {
      INFO(w.name);
      REQUIRE(distance(emitted(sharp, policy, verifier, 5, outcomes), expected) == 0.0);
    });
  }
}

TEST_CASE("two rounds of a whole decoder write the distribution of its float rows to 1e-12") {
  const text_type prompt{0, 0, 0};
  const sampling_options sampling{.temperature = 1};
  double rounding = 0;
  for (const world& w : worlds()) {
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      // What the sampler makes of the logits, and what the chance makes of that: the rows in float, normalised in double.
      const row_function rows = [&](std::span<const token_id> path) {
        text_type text = prompt;
        text.insert(text.end(), path.begin(), path.end());
        std::vector<float> logits(static_cast<std::size_t>(w.vocab)), row(logits.size());
        world_model{w.target, prompt.size()}(text, logits);
        sampler(sampling).probabilities(logits, row, 0);
        return normalised({row.begin(), row.end()});
      };
      constexpr std::size_t n = 3;
      law_type expected, ideal;
      continue_with(rows, {}, 1.0, n, expected);
      continue_with(w.target, {}, 1.0, n, ideal);
      rounding = std::max(rounding, distance(expected, ideal));
      for_each_pair(sampling_verifiers, [&](auto policy, auto verifier) {
        INFO(w.name);
        token_kv kv(16, mode), draft_kv(16, mode);
        text_backend target(w.vocab, world_model{w.target, prompt.size()});
        text_backend draft(w.vocab, world_model{w.draft, prompt.size()});
        autoregressive drafter(draft, draft_kv);
        auto decode = make_decoder(drafter, policy, verifier, kv, target, {.sampling = sampling});
        law_type law;
        enumerating_chance chance;
        do {
          decode.begin(prompt);
          decode.step_with(chance);
          decode.step_with(chance);
          const auto written = decode.current().written();
          continue_with(rows, {written.begin(), written.end()}, chance.probability(), n, law);
        } while (chance.next());
        REQUIRE(distance(law, expected) < 1e-12);
      });
    }
  }
  CHECK(rounding < 1e-6);
}
