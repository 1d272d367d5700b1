// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "espalier/tree_policy/sequoia.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "text_writer.hpp"
#include "tree_rounds.hpp"

namespace bench {

//! Temperature at which DySpec's draft samples, whatever the target does (section 5.1).
inline constexpr espalier::sampling_options dyspec_draft{.temperature = 0.6F};

//! A policy with its verifier, for single rounds and whole texts.
struct tree_method {
  std::string settings;
  std::function<round_sums(tree_rounds&)> round;
  std::function<espalier::statistics(text_writer&, std::span<const espalier::token_id>, const text_options&,
                                     const round_watcher&)>
      write;
};

template <class PolicyT, class VerifierT>
tree_method method_of(std::string settings, PolicyT policy, VerifierT verifier) {
  return {std::move(settings), [policy, verifier](tree_rounds& rounds) mutable { return rounds.run(policy, verifier); },
          [policy, verifier](text_writer& writer, std::span<const espalier::token_id> prompt, const text_options& how,
                             const round_watcher& watch) mutable {
            return writer.write(writer.draft(dyspec_draft), policy, verifier, prompt, how, watch).stats;
          }};
}

inline tree_method dyspec_greedy_method(int budget) {
  return method_of("", espalier::dyspec_greedy({.budget = budget}), espalier::residual_walk());
}

inline tree_method dyspec_threshold_method(int budget, double threshold, bool fill) {
  return method_of(fmt::format("{:g}", threshold),
                   espalier::dyspec_threshold(
                       {.budget = budget, .max_depth = 32, .threshold = threshold, .fill = fill, .adapt = false}),
                   espalier::residual_walk());
}

//! The threshold that goes with the budget, from round to round.
inline tree_method dyspec_adapting_method(int budget) {
  return method_of("", espalier::dyspec_threshold({.budget = budget, .max_depth = 32, .threshold = 0}),
                   espalier::residual_walk());
}

inline tree_method sequoia_method(int budget, std::span<const double> acceptance) {
  const espalier::sequoia policy({.budget = budget, .max_depth = 32, .acceptance = acceptance});
  // Level by level: the number of nodes and how many of them have children, from the root on.
  std::string shape;
  std::size_t begin = 0, end = 1;
  const auto children = policy.children();
  while (begin < end) {
    std::size_t next = end;
    for (; begin < end; ++begin)
      next += static_cast<std::size_t>(children[begin]);
    if (next > end) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", next - end);
    end = next;
  }
  return method_of(shape, policy, espalier::residual_walk());
}

//! The method that draws from each node, level by level.
using branch_counts = std::array<int, 8>;

inline tree_method specinfer_method(int budget, const branch_counts& n) {
  std::string shape;
  for (const int draws : n)
    shape += draws == 0 ? "" : fmt::format("{}{}", shape.empty() ? "" : ", ", draws);
  return method_of(shape, espalier::specinfer_static({budget, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]}),
                   espalier::specinfer());
}

//! The method that leaves out draws that are unlikely to be needed.
inline constexpr double dyspec_thresholds[] = {0.3, 0.1, 0.03, 0.01};

//! SpecInfer's trees for a budget: K paths of L tokens, with which Sequoia's authors compare; and trees that branch
//! more often or later, like SpecInfer's own of 20 nodes (1, 1, 3, 1, 1, 1, 1, 1). Some would need more draws than the
//! budget has if all draws of each node were different; draws beyond the budget are cut off.
inline std::vector<branch_counts> specinfer_shapes(int budget) {
  constexpr branch_counts all[] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                   {4, 1},
                                   {2, 1, 1, 1},
                                   {2, 1, 1, 1, 1, 1, 1, 1},
                                   {1, 2, 1, 1, 1, 1, 1, 1},
                                   {3, 2, 1},
                                   {1, 1, 3, 1, 1, 1, 1, 1},
                                   {4, 1, 1, 1},
                                   {2, 2, 1, 1, 1, 1, 1, 1},
                                   {3, 2, 1, 1, 1},
                                   {2, 2, 2, 1, 1},
                                   {4, 1, 1, 1, 1, 1, 1, 1},
                                   {8, 1, 1, 1},
                                   {4, 2, 1, 1},
                                   {3, 2, 2, 1, 1},
                                   {2, 2, 2, 1, 1, 1, 1, 1},
                                   {4, 2, 1, 1, 1, 1, 1, 1},
                                   {4, 2, 2, 1, 1},
                                   {2, 2, 2, 2, 1, 1, 1, 1},
                                   {8, 1, 1, 1, 1, 1, 1, 1},
                                   {16, 1, 1, 1},
                                   {8, 2, 1, 1, 1},
                                   {4, 2, 2, 1, 1, 1, 1, 1},
                                   {16, 1, 1, 1, 1, 1, 1, 1},
                                   {4, 4, 2, 1, 1, 1, 1, 1},
                                   {8, 4, 2, 1, 1},
                                   {4, 4, 4, 2, 1, 1, 1, 1},
                                   {8, 4, 2, 2, 1, 1, 1, 1},
                                   {16, 4, 2, 1, 1, 1, 1, 1},
                                   {32, 4, 2, 1, 1}};
  std::vector<branch_counts> shapes;
  for (const branch_counts& shape : all) {
    int draws = 0, level = 1;
    for (const int n : shape)
      level *= n, draws += level;
    if (4 * draws > 3 * budget && draws <= 3 * budget) shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace bench
