// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>

#include "espalier/registry.hpp"

namespace espalier {

// Settings small enough to run every outcome. A new policy needs its own.
inline std::array<no_options, 1> tiny(no_options) {
  return {};
}
inline std::array<chain_options, 1> tiny(chain_options) {
  return {{{.length = 3}}};
}
inline std::array<fixed_options, 2> tiny(fixed_options) {
  return {{{.depth = 2, .breadth = 2, .budget = 6}, {.depth = 3, .breadth = 3, .budget = 5}}};
}
inline std::array<dynatree_options, 1> tiny(dynatree_options o) {
  o.base_depth = std::min(o.base_depth, 2);
  o.max_depth = 2;
  o.budget = 12;
  return {o};
}
inline std::array<sampled_chain_options, 1> tiny(sampled_chain_options) {
  return {{{.length = 3}}};
}
inline std::array<iid_paths_options, 2> tiny(iid_paths_options) {
  return {{{.paths = 2, .length = 2}, {.paths = 3, .length = 1}}};
}
inline std::array<delayed_options, 3> tiny(delayed_options) {
  return {{{.paths = 2, .trunk = 1, .length = 2}, {.trunk = 1, .length = 0}, {.paths = 2, .trunk = 1, .length = 1}}};
}
inline std::array<neural_delayed_options, 1> tiny(neural_delayed_options) {
  return {{{.paths = 2, .trunk = 1, .length = 1}}};
}
inline std::array<adaptive_chain_options, 1> tiny(adaptive_chain_options) {
  return {{{.length = 3, .confidence = 0.3}}};
}
inline std::array<eagle2_options, 1> tiny(eagle2_options) {
  return {{{.beam = 2, .depth = 2, .budget = 4}}};
}
inline std::array<best_first_options, 1> tiny(best_first_options) {
  return {{{.budget = 5, .max_depth = 3}}};
}
inline std::array<specinfer_static_options, 2> tiny(specinfer_static_options) {
  return {{{.budget = 3, .level_1 = 2, .level_2 = 2, .level_3 = 0}, {.level_1 = 2, .level_2 = 1, .level_3 = 0}}};
}
inline std::array<sequoia_options, 2> tiny(sequoia_options) {
  return {{{.budget = 4, .max_depth = 2}, {.budget = 3, .max_depth = 3}}};
}

inline std::array<cost_aware_options, 2> tiny(cost_aware_options) {
  return {{{.budget = 4, .max_depth = 3, .draft_cost = 0.01, .row_cost = 0.001}, {.budget = 3, .max_depth = 2}}};
}

inline std::array<dyspec_greedy_options, 2> tiny(dyspec_greedy_options) {
  return {{{.budget = 4}, {.budget = 3}}};
}
inline std::array<dyspec_threshold_options, 3> tiny(dyspec_threshold_options o) {
  return {{{.budget = 5, .max_depth = 3, .threshold = 0.1, .fill = o.fill, .adapt = false},
           {.budget = 5, .max_depth = 3, .threshold = 0.5, .fill = o.fill},
           {.budget = 3, .max_depth = 2, .threshold = 0.1, .fill = o.fill}}};
}

}  // namespace espalier
