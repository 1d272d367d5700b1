// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "espalier/sampling/sampler.hpp"
#include "interval.hpp"
#include "offline_rounds.hpp"
#include "static_tree.hpp"

namespace bench {

//! The amount of measuring.
struct verifier_run {
  int tokens = 128;  //!< tokens written after each prompt
  int spacing = 16;  //!< tokens from one root to the next
  int trials = 4;    //!< verifications of each tree
  int tune = 5;      //!< prompts of a domain by which settings are chosen
  int measure = 10;  //!< prompts of a domain in the tables
  int decode = 6;    //!< how many of these, from the first on, are also decoded whole and timed
  int repeats = 1;
};

//! The target's sampling, and the ways of drafting that are tried: at temperature 1, and sampled as the target.
struct sampling_setting {
  std::string name;
  espalier::sampling_options target;
  std::vector<espalier::sampling_options> drafts;
};

//! The sampling settings of Delayed tree expansion, or three of them.
inline std::vector<sampling_setting> paper_samplings(bool quick) {
  std::vector<sampling_setting> list;
  const auto add = [&](const std::string& name, espalier::sampling_options target) {
    const espalier::sampling_options one{.temperature = 1.0F};
    list.push_back({name, target, {one}});
    if (target.temperature != one.temperature || target.top_p != one.top_p) list.back().drafts.push_back(target);
  };
  for (const float temperature : {0.2F, 0.4F, 0.6F, 0.8F, 1.0F, 1.2F}) {
    if (!quick || temperature == 0.6F || temperature == 1.0F)
      add(fmt::format("T {:.1f}", temperature), {.temperature = temperature});
  }
  for (const float top_p : {0.9F, 0.99F}) {
    if (!quick || top_p == 0.9F) add(fmt::format("top-p {:g}", top_p), {.temperature = 1.0F, .top_p = top_p});
  }
  return list;
}

//! Whether trees have a trunk. A delayed tree has a trunk of 0 tokens or more; with a single path, up to 16.
enum class tree_kind { undelayed, delayed };

//! The settings from which to choose.
struct choice_range {
  tree_kind kind = tree_kind::undelayed;
  std::size_t drafts = 2;  //!< number of ways of drafting, from the first on
  int paths = 0;           //!< K; 0: any
};

enum class goal { block_efficiency, throughput };

//! One way of drafting and one tree, as indices in their lists.
struct static_choice {
  std::size_t draft = 0;
  std::size_t tree = 0;
  friend bool operator==(const static_choice&, const static_choice&) = default;
};

//! Everything that was measured.
struct verifier_results {
  std::vector<sampling_setting> samplings;
  std::vector<verifier_row> verifiers = verifier_rows();
  std::vector<static_tree> trees = all_static_trees();
  std::vector<std::string> domains;
  std::vector<std::size_t> n_prompts;  //!< [domains] measured prompts
  std::vector<std::size_t> n_decoded;  //!< [domains] prompts whose texts were decoded

  //! [samplings][drafts][prompts] on the prompts by which settings are chosen.
  std::vector<std::vector<std::vector<offline_sums>>> choosing;
  //! [samplings][drafts][domains][prompts]
  std::vector<std::vector<std::vector<std::vector<offline_sums>>>> offline;
  //! [samplings][domains][prompts] of plain decoding
  std::vector<std::vector<std::vector<espalier::statistics>>> plain;
  //! [samplings][verifiers][kinds][domains][prompts] with the setting chosen for throughput
  std::vector<std::vector<std::vector<std::vector<std::vector<espalier::statistics>>>>> decoded;

  bool is_in(const choice_range& range, std::size_t verifier, const static_tree& tree) const {
    return (range.kind == tree_kind::delayed || tree.trunk == 0) && (range.paths == 0 || tree.paths == range.paths) &&
           (tree.paths == 1 || verifiers[verifier].takes_paths);
  }

  //! The best setting for each sampling setting, on the prompts to choose by.
  std::vector<static_choice> choose(std::size_t verifier, goal by, const choice_range& range) const {
    std::vector<static_choice> list;
    for (std::size_t s = 0; s < samplings.size(); ++s)
      list.push_back(choose(s, verifier, by, range));
    return list;
  }

  static_choice choose(std::size_t sampling, std::size_t verifier, goal by, const choice_range& range) const {
    static_choice best;
    double best_score = -1;
    for (std::size_t d = 0; d < samplings[sampling].drafts.size() && d < range.drafts; ++d) {
      for (std::size_t t = 0; t < trees.size(); ++t) {
        if (!is_in(range, verifier, trees[t])) continue;
        double tokens = 0, seconds = 0;
        for (const offline_sums& sums : choosing[sampling][d])
          tokens += sums.tokens_of(verifier, t), seconds += sums.seconds[t];
        const double score = by == goal::throughput ? tokens / seconds : tokens;
        if (score > best_score) best_score = score, best = {d, t};
      }
    }
    return best;
  }

  //! Intervals of figure(sampling, domain, prompt), averaged over sampling settings: one for each domain, and last for
  //! the domains' mean.
  template <class FigureT>
  std::vector<interval> by_domain(const std::vector<std::size_t>& prompts, const FigureT& figure) const {
    return intervals_by_domain(prompts, [&](std::size_t d, std::size_t p) {
      double sum = 0;
      for (std::size_t s = 0; s < samplings.size(); ++s)
        sum += figure(s, d, p);
      return sum / static_cast<double>(samplings.size());
    });
  }

  //! Intervals for the domains' mean, one for each sampling setting.
  template <class FigureT>
  std::vector<interval> by_sampling(const std::vector<std::size_t>& prompts, const FigureT& figure) const {
    std::vector<interval> list;
    for (std::size_t s = 0; s < samplings.size(); ++s)
      list.push_back(
          intervals_by_domain(prompts, [&](std::size_t d, std::size_t p) { return figure(s, d, p); }).back());
    return list;
  }

  //! A figure for by_domain: of(sums, verifier, tree) of the offline rounds, with the setting chosen for a goal.
  template <class OfT>
  auto of_offline(std::size_t verifier, goal by, const choice_range& range, const OfT& of) const {
    return [this, verifier, of, chosen = choose(verifier, by, range)](std::size_t s, std::size_t d, std::size_t p) {
      return of(offline[s][chosen[s].draft][d][p], verifier, chosen[s].tree);
    };
  }
  auto block_efficiency(std::size_t verifier, const choice_range& range, goal by = goal::block_efficiency) const {
    return of_offline(verifier, by, range, [](const offline_sums& sums, std::size_t v, std::size_t tree) {
      return sums.block_efficiency(v, tree);
    });
  }

  //! A figure for by_domain: of(statistics, statistics of plain decoding) of decoded texts, with the setting chosen for
  //! throughput.
  template <class OfT>
  auto of_decoded(std::size_t verifier, tree_kind kind, const OfT& of) const {
    return [this, verifier, kind, of](std::size_t s, std::size_t d, std::size_t p) {
      return of(decoded[s][verifier][static_cast<std::size_t>(kind)][d][p], plain[s][d][p]);
    };
  }

  template <class OfT>
  auto of_plain(const OfT& of) const {
    return [this, of](std::size_t s, std::size_t d, std::size_t p) { return of(plain[s][d][p], plain[s][d][p]); };
  }

  //! Intervals over the single nodes of the main path with the first way of drafting, by depth.
  template <class OfT>
  std::vector<interval> by_depth(const OfT& of) const {
    std::vector<interval> list;
    for (int depth = 0; depth < n_depths; ++depth) {
      list.push_back(by_domain(n_prompts, [&](std::size_t s, std::size_t d, std::size_t p) {
                       return of(offline[s][0][d][p], depth);
                     }).back());
    }
    return list;
  }
  std::vector<interval> acceptance(std::size_t verifier, int paths) const {
    return by_depth([&](const offline_sums& sums, int depth) { return sums.acceptance(verifier, paths, depth); });
  }
  std::vector<interval> distance() const {
    return by_depth([](const offline_sums& sums, int depth) {
      return sums.distance[static_cast<std::size_t>(depth)] / sums.roots;
    });
  }

  double roots() const {
    double sum = 0;
    for (const auto& sampling : offline) {
      for (const auto& domain : sampling[0]) {
        for (const offline_sums& sums : domain)
          sum += sums.roots;
      }
    }
    return sum;
  }
};

}  // namespace bench
