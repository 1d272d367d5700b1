// SPDX-License-Identifier: BSL-1.0
// What is reckoned in float, ESPALIER_WIDE_NUMBER: every outcome of a round over float rows, with its exact
// probability. What is emitted must be distributed as the target alone writes, to within 5e-7.
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "espalier/core/philox.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/exponential.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

namespace {

static_assert(std::is_same_v<wide_number, float>);

bool is_sound = true;

void expect(bool holds, const char* what) {
  if (holds) return;
  is_sound = false;
  std::printf("FAILED: %s\n", what);
}

double worst = 0;

template <class PolicyT, class VerifierT>
void check(const char* name, const PolicyT& policy, const VerifierT& verifier) {
  try {
    const auto report = testing::check_lossless<float>(policy, verifier, {.tolerance = 5e-7});
    expect(report.n_outcomes > 100, name);
    worst = std::fmax(worst, report.largest_difference);
  } catch (const error& e) {
    std::printf("%s\n", e.what());
    expect(false, name);
  }
}

void rounds_are_lossless() {
  check("chain, target only", chain({.length = 3}), target_only());
  check("DynaTree, target only", dynatree({.budget = 6, .base_depth = 2, .max_depth = 2}), target_only());
  check("sampled chain, naive", sampled_chain({.length = 3}), naive());
  check("sampled chain, block verification", sampled_chain({.length = 3}), block_verification());
  const iid_paths paths({.paths = 2, .length = 2});
  check("independent paths, SpecTr", paths, spectr());
  check("independent paths, naive tree", paths, naive_tree());
  check("independent paths, SpecInfer", paths, specinfer());
  check("delayed, traversal", delayed({.paths = 2, .trunk = 1, .length = 1}), traversal());
  const dyspec_greedy drawn({.budget = 4});
  check("DySpec, residual walk", drawn, residual_walk());
  check("DySpec, traversal", drawn, traversal_without_replacement());
  check("DySpec by levels, residual walk", dyspec_threshold({.budget = 4, .max_depth = 3, .threshold = 0.3}),
        residual_walk());
}

void exponentials_are_right() {
  double off = 0;
  for (float x = 0; x < 80; x += 0.0137F)
    off =
        std::fmax(off, std::fabs(static_cast<double>(detail::exp_of_minus(x)) * std::exp(static_cast<double>(x)) - 1));
  expect(off < 1e-5 && detail::exp_of_minus(0.0F) == 1, "exponentials of float");
}

void logarithms_are_right() {
  double off = 0;
  for (float x = 1e-37F; x < 1e37F; x *= 1.0009F) {
    const double right = std::log(static_cast<double>(x));
    const double unit = std::fmax(std::fabs(right), 1e-3) * 0x1.0p-23;
    off = std::fmax(off, std::fabs(static_cast<double>(detail::log_of(x)) - right) / unit);
  }
  expect(off < 1.01, "logarithms of float, to the last place but one");
  expect(detail::log_of(1.0F) == 0 && detail::log_prob_of(0.5F) < 0, "logarithms of probabilities");
}

void uniforms_have_24_bits() {
  double sum = 0;
  bool is_below_1 = true;
  for (std::int32_t node = 0; node < 10000; ++node) {
    const float u = philox_chance(1, 2, 3).uniform({node, 0, purpose::accept});
    is_below_1 = is_below_1 && u >= 0 && u < 1;
    sum += static_cast<double>(u);
  }
  expect(is_below_1 && std::fabs(sum / 10000 - 0.5) < 0.01, "numbers from 0 to below 1");
}

}  // namespace

int main() {
  rounds_are_lossless();
  exponentials_are_right();
  logarithms_are_right();
  uniforms_have_24_bits();
  std::printf("rounds in float: largest difference %g\n", worst);
  return is_sound ? 0 : 1;
}
