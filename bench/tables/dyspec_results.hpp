// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "dyspec_methods.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "interval.hpp"
#include "timed_texts.hpp"
#include "tree_rounds.hpp"

namespace bench {

//! The amount of measuring.
struct dyspec_run {
  int tokens = 128;  //!< tokens written after each prompt
  int spacing = 20;  //!< tokens from one position of single rounds to the next
  int trials = 4;    //!< verifications of each tree
  int tune = 4;      //!< prompts of a domain by which settings are chosen
  int measure = 10;  //!< prompts of a domain in the tables
  int decode = 3;    //!< how many of these, from the first on, are also decoded whole, timed, and drafted for with
                     //!< large budgets
  int repeats = 1;
  std::vector<int> budgets{8, 16, 64};
  std::vector<double> thresholds{0.1, 0.03, 0.01, 0.003};  //!< thresholds at which the use of a large budget is
                                                           //!< measured
};

inline constexpr std::array<float, 2> dyspec_temperatures = {0.0F, 0.6F};

enum dyspec_method : std::size_t { by_greedy, by_threshold, by_filling, by_adapting, by_sequoia, by_specinfer };
inline constexpr std::array<const char*, 6> dyspec_method_names = {
    "DySpec, greedy", "DySpec, threshold", "DySpec, filled", "DySpec, adapted threshold", "Sequoia", "SpecInfer"};

using sums_by_prompt = std::vector<std::vector<round_sums>>;  // [domains][prompts]

//! The share of a large budget that a threshold uses.
struct budget_share {
  float target;  //!< temperatures
  float draft;
  int budget;
  double threshold;
  bool fill;
  bool verified;
  sums_by_prompt sums;
};

//! Numbers of first draws that were tested, and accepted, by the draft's probability of the drawn token: less than 0.1,
//! 0.2, ...
struct draws_by_probability {
  std::array<double, 10> made{};
  std::array<double, 10> accepted{};
  std::array<double, 10> target{};  //!< sums of the target's probabilities of the drawn tokens

  //! Counts the first draws of the nodes on the accepted path. target_probability(node, token) gives the target's
  //! probability of a token after a node.
  template <class ProbabilityT>
  void count(espalier::tree_view tree, espalier::verdict v, const ProbabilityT& target_probability) {
    espalier::node_id below = tree.find_child(v.accepted, v.token);
    for (espalier::node_id u = v.accepted; u != espalier::no_node; below = u, u = tree.parent[u]) {
      if (tree.is_leaf(u)) continue;
      const espalier::node_id first = *tree.draws(u).begin();
      const double probability = std::exp(static_cast<double>(tree.log_prob[first]));
      const auto bin = static_cast<std::size_t>(std::min(9.0, 10 * probability));
      made[bin] += 1;
      target[bin] += target_probability(u, tree.token[first]);
      accepted[bin] += first == below ? 1 : 0;
    }
  }
};

//! Counts of the blocks that are not empty in the masks of drafted trees.
struct tree_blocks {
  int nodes;
  double paper_original, paper_reordered;  //!< the counts of the paper, Figures 8 and 9
  double trees = 0;
  double reached = 0;  //!< sum of the numbers of nodes
  //! [orders: as drawn, depth first, heavy path][no prefix, 128 tokens, the text] sums
  std::array<std::array<double, 3>, 3> sums{};
};

//! Sizes of trees, and tokens committed, by the number of the round in its text, first 0.
struct round_sizes {
  std::vector<double> texts, drafted, committed;

  void count(const espalier::round_record& r) {
    if (r.committed.empty()) return;
    const auto i = static_cast<std::size_t>(r.index);
    if (i >= texts.size()) texts.resize(i + 1), drafted.resize(i + 1), committed.resize(i + 1);
    texts[i] += 1, drafted[i] += r.tree.n_draws, committed[i] += static_cast<double>(r.committed.size());
  }
};

//! Everything that was measured.
struct dyspec_results {
  std::vector<std::string> domains;
  std::vector<std::size_t> n_prompts;  //!< [domains] prompts of single rounds
  std::vector<std::size_t> n_decoded;  //!< [domains] prompts of whole texts
  std::vector<int> budgets;

  //! [temperatures][budgets][methods]
  std::vector<std::vector<std::vector<tree_method>>> methods;
  //! [temperatures][ranks] how often the accepted draw had this rank
  std::vector<std::vector<double>> acceptance;
  //! [temperatures]
  std::vector<draws_by_probability> first_draws;
  //! [temperatures][budgets][methods]
  std::vector<std::vector<std::vector<sums_by_prompt>>> rounds;
  std::vector<budget_share> shares;
  std::vector<tree_blocks> blocks{{768, 366.12, 218.31}, {1024, 580.07, 295.59}};
  //! [temperatures] rounds of the threshold method at the largest budget
  std::vector<round_sizes> steps;

  //! Index of a method among those that wrote texts; plain decoding comes last.
  std::size_t text_of(std::size_t temperature, std::size_t budget, std::size_t method) const {
    return (temperature * budgets.size() + budget) * dyspec_method_names.size() + method;
  }
  std::size_t plain_text_of(std::size_t temperature) const {
    return text_of(dyspec_temperatures.size(), 0, temperature);
  }

  //! Intervals over the prompts of each domain, and last the interval of the domains' mean. The number of a prompt is
  //! figure(sums).
  template <class FigureT>
  static std::vector<interval> by_domain(const sums_by_prompt& sums, const FigureT& figure) {
    std::vector<std::size_t> prompts;
    for (const auto& domain : sums)
      prompts.push_back(domain.size());
    return intervals_by_domain(prompts, [&](std::size_t d, std::size_t p) { return figure(sums[d][p]); });
  }

  std::vector<interval> tokens(std::size_t temperature, std::size_t budget, std::size_t method) const {
    return by_domain(rounds[temperature][budget][method], [](const round_sums& s) { return s.tokens_per_round(); });
  }

  //! The tokens a round that method `more` has above method `less`, prompt by prompt.
  std::vector<interval> difference(std::size_t temperature, std::size_t budget, std::size_t more,
                                   std::size_t less) const {
    const auto& of = rounds[temperature][budget];
    return intervals_by_domain(n_prompts, [&](std::size_t d, std::size_t p) {
      return of[more][d][p].tokens_per_round() - of[less][d][p].tokens_per_round();
    });
  }
};

}  // namespace bench
