// SPDX-License-Identifier: BSL-1.0
// Tested by tests/testing/lossless.cpp
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "espalier/concepts/round_start.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tested_parts.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "espalier/testing/traced_chance.hpp"

namespace espalier::testing::detail {

// The start of round i of a check: with i, the text becomes longer and the options by which the target samples change.
inline round_start any_start(int i) {
  constexpr float temperatures[] = {1, 0.6F, 1.4F};
  round_start start{.length = 10 + 97 * i * i};
  start.sampling.temperature = temperatures[i % 3];
  if (i % 4 == 2) start.sampling.top_p = 0.9F;
  return start;
}

// A function of a path that computes each row once.
class remembered_rows {
 public:
  explicit remembered_rows(const tiny_model::row_function& row) : row_(row) {}
  const std::vector<double>& operator()(std::span<const token_id> path) const {
    key_.assign(path.begin(), path.end());
    const auto known = rows_.find(key_);
    return known != rows_.end() ? known->second : rows_.emplace(key_, row_(path)).first->second;
  }

 private:
  const tiny_model::row_function& row_;
  mutable std::vector<token_id> key_;
  mutable std::map<std::vector<token_id>, std::vector<double>> rows_;
};

// Rounds over one model: drafter, tree and rows of the target.
template <class NumberT>
class rounds {
 public:
  rounds(const tiny_model& model, std::int32_t most_nodes)
      : model_(model),
        target_row_(model.target),
        draft_row_(model.draft),
        drafter_(model.vocab, [this](std::span<const token_id> path) { return draft_row_(path.subspan(1)); }),
        tree_(most_nodes) {
    drafter_.reserve(most_nodes);
  }

  // Runs every outcome of a round in which the tree has room for `limit` drafted tokens, and adds to `emitted` the
  // probabilities of the texts that the round emits. Subtracts the number of outcomes from n_left; returns false, with
  // texts missing, if n_left is too small.
  bool run_all(const tested_policy<NumberT>& policy, tested_verifier<NumberT>& verifier, std::int32_t limit,
               const round_start& start, text_distribution& emitted, coverage& covered, std::int64_t& n_left) {
    traced_chance drafts;
    do {
      const auto fresh = policy.copy();
      grow(*fresh, limit, drafts, start);
      covered.depth = (std::max)(covered.depth, depth());
      covered.draws = (std::max)(covered.draws, most_draws());
      if (!run_verdicts(verifier, drafts.probability(), emitted, covered, n_left)) return false;
    } while (drafts.next());
    return true;
  }

  // Grows the tree of a round.
  void grow(tested_policy<NumberT>& policy, std::int32_t limit, traced_chance& chance, const round_start& start) {
    tree_.reset(0, limit);
    policy.grow(tree_, drafter_, chance, start);
    const tree_view view = tree_;
    target_.rows.resize(static_cast<std::size_t>(view.n_nodes));
    paths_.assign(1, {});
    for (node_id u = 0; u < view.n_nodes; ++u) {
      if (u != root_node) {
        std::vector<token_id> path = paths_[static_cast<std::size_t>(view.parent[u])];
        require_law(view.token[u] >= 0 && view.token[u] < model_.vocab, "the policy drafts token ", view.token[u],
                    " of a vocabulary of ", model_.vocab, ".");
        path.push_back(view.token[u]);
        paths_.push_back(std::move(path));
      }
      const std::vector<double>& row = target_row_(paths_[static_cast<std::size_t>(u)]);
      std::vector<NumberT>& kept = target_.rows[static_cast<std::size_t>(u)];
      kept.resize(row.size());
      std::transform(row.begin(), row.end(), kept.begin(), [](double p) { return static_cast<NumberT>(p); });
    }
  }

  // Runs every outcome of the verification of the tree, and adds to `emitted` the probabilities of the texts, times
  // `weight`. Subtracts the number of outcomes from n_left; returns false if n_left is too small.
  bool run_verdicts(tested_verifier<NumberT>& verifier, double weight, text_distribution& emitted, coverage& covered,
                    std::int64_t& n_left) {
    traced_chance verdicts;
    do {
      if (--n_left < 0) return false;
      ++covered.n_outcomes;
      const verdict v = verify(verifier, verdicts);
      text_ = paths_[static_cast<std::size_t>(v.accepted)];
      text_.push_back(v.token);
      emitted[text_] += weight * verdicts.probability();
    } while (verdicts.next());
    return true;
  }

  verdict verify(tested_verifier<NumberT>& verifier, traced_chance& chance) {
    const tree_view view = tree_;
    const verdict v = verifier.verify(view, drafter_.rows(), target_, chance);
    require_law(v.accepted >= 0 && v.accepted < view.n_nodes && v.token >= 0 && v.token < model_.vocab,
                "the verifier accepts node ", v.accepted, " and adds token ", v.token, "; the tree has ", view.n_nodes,
                " nodes and the vocabulary ", model_.vocab, " tokens.");
    return v;
  }

  tree_view drafted() const { return tree_; }
  const std::vector<token_id>& path(node_id u) const { return paths_[static_cast<std::size_t>(u)]; }
  const remembered_rows& target_row() const { return target_row_; }
  const remembered_rows& draft_row() const { return draft_row_; }
  const tiny_model& model() const { return model_; }

  std::int32_t depth() const {
    const tree_view view = tree_;
    return *std::max_element(view.depth, view.depth + view.n_nodes);
  }
  std::int32_t most_draws() const {
    const tree_view view = tree_;
    std::int32_t most = 0;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      std::int32_t n = 0;
      for ([[maybe_unused]] const node_id child : view.draws(u))
        ++n;
      most = (std::max)(most, n);
    }
    return most;
  }

 private:
  tiny_model model_;
  remembered_rows target_row_, draft_row_;
  basic_row_drafter<NumberT> drafter_;
  tree<> tree_;
  target_rows<NumberT> target_;
  std::vector<std::vector<token_id>> paths_;  // tokens below the root that lead to each node
  std::vector<token_id> text_;
};

// Sums, over rounds drawn at random, of a difference that is 0 in the mean if texts are distributed as the target
// writes them: the probability that a round emits a path and then a token, minus a product, namely the probability that
// the round emits the path and goes on, times the target's probability of the token. The differences of all tokens
// after paths of one depth are added up if the tokens' ranks in the draft's row are alike and the same model, target or
// draft, gives them the greater probability.
class deviations {
  static constexpr std::size_t n_ranks = 6, n_depths = 6;

 public:
  // Adds the texts of one round, whose probabilities add up to 1.
  template <class NumberT>
  void add(const text_distribution& emitted, const rounds<NumberT>& of) {
    now_.fill(0);
    text_.clear();
    walk(emitted.begin(), emitted.end(), 1.0, of);
    for (std::size_t i = 0; i < now_.size(); ++i) {
      if (std::abs(now_[i]) < 1e-6) continue;  // rounding
      sums_[i].total += now_[i];
      sums_[i].squares += now_[i] * now_[i];
    }
  }

  // Returns the largest deviation in standard errors, and writes to `what` which tokens deviate. A deviation's variance
  // is taken as the sum of squares so far, plus 1, plus a quarter of by_target or by_draft, whichever is smaller: rare
  // tokens may not have been drawn yet, and then the squares alone are too small.
  double largest(std::string& what) const {
    double largest = 0;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const double rare = (std::min)(sums_[i].by_target, sums_[i].by_draft);
      const double z = std::abs(sums_[i].total) / std::sqrt(sums_[i].squares + 0.25 * rare + 1);
      if (!(z > largest)) continue;
      largest = z;
      const std::size_t depth = i / (2 * n_ranks), rank = i / 2 % n_ranks;
      const char* const ranks[n_ranks] = {
          "first", "second", "third or fourth", "fifth to eighth", "ninth to sixteenth", "seventeenth or later"};
      what = std::string("after ") + std::to_string(depth) + (depth + 1 == n_depths ? " or more" : "") +
             " accepted tokens, a token that is the " + ranks[rank] + " of the draft's row and which the " +
             (i % 2 == 0 ? "target" : "draft") + " gives more is written too " +
             (sums_[i].total > 0 ? "often" : "seldom");
    }
    return largest;
  }

 private:
  struct sum {
    double total = 0, squares = 0;
    double by_target = 0, by_draft = 0;  // expected number of these tokens, if the target or the draft draws them
  };
  using iterator = text_distribution::const_iterator;

  template <class NumberT>
  void walk(iterator first, iterator last, double reached, const rounds<NumberT>& of) {
    const std::size_t n = text_.size();
    if (first != last && first->first.size() == n) reached -= (first++)->second;
    if (first == last) return;
    const std::vector<double>& p = of.target_row()(text_);
    const std::vector<double>& q = of.draft_row()(text_);
    order_.resize(q.size());
    for (std::size_t t = 0; t < q.size(); ++t)
      order_[t] = static_cast<token_id>(t);
    std::stable_sort(order_.begin(), order_.end(), [&](token_id a, token_id b) {
      return q[static_cast<std::size_t>(a)] > q[static_cast<std::size_t>(b)];
    });
    std::vector<std::size_t> rank(q.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      rank[static_cast<std::size_t>(order_[i])] = i == 0 ? 0 : i == 1 ? 1 : i < 4 ? 2 : i < 8 ? 3 : i < 16 ? 4 : 5;
    const std::size_t depth = (std::min)(n, n_depths - 1);
    for (std::size_t t = 0; t < p.size(); ++t) {
      const auto token = static_cast<token_id>(t);
      const iterator end = std::find_if(first, last, [&](const auto& entry) { return entry.first[n] > token; });
      double emitted = 0;
      for (iterator i = first; i != end; ++i)
        emitted += i->second;
      const std::size_t i = (depth * n_ranks + rank[t]) * 2 + (p[t] > q[t] ? 0 : 1);
      now_[i] += emitted - reached * p[t];
      sums_[i].by_target += reached * p[t];
      sums_[i].by_draft += reached * q[t];
      text_.push_back(token);
      walk(first, end, emitted, of);
      text_.pop_back();
      first = end;
    }
  }

  std::array<sum, 2 * n_ranks * n_depths> sums_{};
  std::array<double, 2 * n_ranks * n_depths> now_{};
  std::vector<token_id> text_, order_;
};

// Runs n_rounds rounds over models of 32 tokens, with decisions drawn at random, and checks their keys, that equal
// chances give equal verdicts, and that texts are the target's in the mean: within 6 standard errors. If the verdicts
// on a tree have at most 400 outcomes, all of these are run. The policy sees the rounds' verdicts, as in a text.
template <class NumberT>
void check_drawn_rounds(tested_policy<NumberT>& policy, tested_verifier<NumberT>& verifier, std::int32_t limit,
                        int n_rounds, coverage& covered) {
  constexpr std::int64_t most_verdicts = 400;
  deviations sums;
  verifier.reserve(policy.max_nodes(), 32);
  std::vector<tiny_model> models = wide_models();
  if (verifier.argmax_only()) {
    for (tiny_model& m : models)
      m.target = argmax_only(m.target);
  }
  std::vector<std::unique_ptr<rounds<NumberT>>> over;
  for (const tiny_model& m : models)
    over.push_back(std::make_unique<rounds<NumberT>>(m, policy.most_asked()));
  for (int i = 0; i < n_rounds; ++i) {
    rounds<NumberT>& round = *over[static_cast<std::size_t>(i) % over.size()];
    traced_chance chance{philox_chance(17, 0, static_cast<std::uint32_t>(i))}, again = chance;
    round.grow(policy, limit, chance, any_start(i));
    covered.n_picks += static_cast<std::int64_t>(chance.picks().size());
    chance.start_verifying();
    const verdict v = round.verify(verifier, chance);
    covered.n_keys += chance.n_keys();
    again.start_verifying();
    require_law(round.verify(verifier, again) == v,
                "the verifier says another thing when it is asked again with equal chances.");
    text_distribution emitted;
    coverage uncounted;
    std::int64_t n_left = most_verdicts;
    if (!round.run_verdicts(verifier, 1, emitted, uncounted, n_left)) {
      emitted.clear();
      std::vector<token_id> text = round.path(v.accepted);
      text.push_back(v.token);
      emitted[text] = 1;
    }
    sums.add(emitted, round);
    covered.drawn_depth = (std::max)(covered.drawn_depth, round.depth());
    covered.drawn_draws = (std::max)(covered.drawn_draws, round.most_draws());
    policy.observe(round.drafted(), v);
  }
  covered.n_rounds += n_rounds;
  covered.drawn_vocabulary = 32;
  std::string what;
  const double z = sums.largest(what);
  covered.largest_z = (std::max)(covered.largest_z, z);
  require_law(z < 6, "the parts are not lossless over models of 32 tokens: ", what, ", by ", z, " standard errors of ",
              n_rounds, " rounds.");
}

}  // namespace espalier::testing::detail
