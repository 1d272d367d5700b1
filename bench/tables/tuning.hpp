// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "decoding_method.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"

namespace bench {

//! Finds the fastest settings of each family on some prompts.
struct tuned_methods {
  espalier::chain_options chain;
  espalier::dynatree_options first_paper;
  espalier::dynatree_options dynatree;
};

inline std::string in_words(const espalier::dynatree_options& o) {
  return fmt::format(
      "budget {}, breadth {}/{}/{} at {:g} and {:g}, depth {} to {}, path probability {:g}, {:g}, deep {:g}, history "
      "{}",
      o.budget, o.min_breadth, o.mid_breadth, o.max_breadth, o.high_confidence, o.low_confidence, o.base_depth,
      o.max_depth, o.prune_probability, o.stop_probability, o.deep_probability, o.history ? "on" : "off");
}

namespace detail {

struct candidate {
  decoding_method method;
  double score = 0;  // sum of the speedups over prompts
};

inline std::vector<candidate> chains() {
  std::vector<candidate> list;
  for (const int length : {2, 3, 4, 5, 6, 7, 8, 10, 12})
    list.push_back({{fmt::format("chain {}", length), espalier::chain_options{.length = length}}});
  return list;
}

// A family with one breadth, one depth and one threshold.
inline std::vector<candidate> first_paper_trees() {
  std::vector<candidate> list;
  for (const int breadth : {2, 3}) {
    for (const int budget : {8, 12, 24}) {
      for (const double threshold : {0.03, 0.1, 0.2, 0.3}) {
        auto o = espalier::dynatree_options::first_paper();
        o.budget = budget;
        o.min_breadth = o.mid_breadth = o.max_breadth = breadth;
        o.prune_probability = threshold;
        list.push_back({{in_words(o), o}});
      }
    }
  }
  return list;
}

// Families with a breadth by confidence; a depth by path probability alone, or with the paper's gates and history.
inline std::vector<candidate> second_paper_trees() {
  std::vector<candidate> list;
  struct breadths {
    int least, middle, most;
    double high, low;
  };
  for (const breadths b : {breadths{1, 1, 1, 0.9, 0.4}, breadths{1, 1, 2, 0.9, 0.25}, breadths{1, 1, 2, 0.9, 0.4},
                           breadths{1, 2, 2, 0.7, 0.4}}) {
    for (const int budget : {6, 8, 12, 16}) {
      espalier::dynatree_options o;
      o.budget = budget;
      o.min_breadth = b.least, o.mid_breadth = b.middle, o.max_breadth = b.most;
      o.high_confidence = b.high, o.low_confidence = b.low;
      o.max_depth = 16;
      list.push_back({{in_words(o), o}});
      o.history = false;
      o.base_depth = 6;
      o.prune_probability = o.stop_probability = 0.02, o.deep_probability = 0.2;
      list.push_back({{in_words(o), o}});
      o.base_depth = o.max_depth;
      for (const double threshold : {0.01, 0.03, 0.1, 0.3}) {
        o.prune_probability = o.stop_probability = o.deep_probability = threshold;
        list.push_back({{in_words(o), o}});
      }
    }
  }
  return list;
}

}  // namespace detail

//! Chooses by halving. All settings write after the first prompt of each domain; after every prompt the slower half of
//! each family is dropped, until three are left.
inline tuned_methods tune(greedy_writer& writer, const std::vector<prompt_domain>& domains, int tokens) {
  std::vector<std::vector<detail::candidate>> families{detail::chains(), detail::first_paper_trees(),
                                                       detail::second_paper_trees()};
  const decoding_method plain{"plain", espalier::plain()};
  for (std::size_t p = 0; p < domains[0].prompts.size(); ++p) {
    std::size_t left = 0;
    for (const auto& family : families)
      left += family.size();
    for (const prompt_domain& domain : domains) {
      progress(fmt::format("choosing: {}, prompt {} of {}, {} settings left", domain.name, p + 1,
                           domains[0].prompts.size(), left));
      const espalier::statistics baseline = writer.write(plain, domain.prompts[p], tokens).stats;
      for (auto& family : families) {
        for (detail::candidate& c : family)
          c.score += writer.write(c.method, domain.prompts[p], tokens).stats.speedup(baseline);
      }
    }
    for (auto& family : families) {
      std::stable_sort(family.begin(), family.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
      family.resize(std::max<std::size_t>((family.size() + 1) / 2, std::min<std::size_t>(family.size(), 3)));
    }
  }
  progress("");
  return {std::get<espalier::chain_options>(families[0][0].method.policy),
          std::get<espalier::dynatree_options>(families[1][0].method.policy),
          std::get<espalier::dynatree_options>(families[2][0].method.policy)};
}

}  // namespace bench
