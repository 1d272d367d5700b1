// SPDX-License-Identifier: BSL-1.0
// The bundled models: the first tokens of every sampled pair of the registry follow the target's own distribution,
// which is computed exactly.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/registry.hpp"
#include "espalier/verifier/walk/walk.hpp"
#include "models/chi_square.hpp"
#include "models/remembered_model.hpp"
#include "models/sampled_pairs.hpp"
#include "verifier_of.hpp"

using namespace espalier;

namespace {

// The suite is deterministic, since a sample's seed is its number. Had its seeds been drawn, a right library would fail
// it with at most this probability, whatever the number of its tests (Bonferroni).
constexpr double false_alarm = 1e-3;
constexpr int n_samples = 2000;  // of each test: enough to refuse what is biased, as the last case shows
#if defined(NDEBUG)
constexpr bool is_thorough = true;
#else
constexpr bool is_thorough = false;  // a build with sanitizers looks for other faults: one setting, few samples
#endif
constexpr int n_samples_of_each_pair = is_thorough ? n_samples : n_samples / 20;

using first_two = std::pair<token_id, token_id>;

struct setting {
  std::string_view name;
  sampling_options target;
};
constexpr setting all_settings[] = {{"temperature 0.6", {.temperature = 0.6F}},
                                    {"temperature 0.6, top-p 0.9", {.temperature = 0.6F, .top_p = 0.9F}},
                                    {"temperature 1", {.temperature = 1}},
                                    {"temperature 1, top-p 0.9", {.temperature = 1, .top_p = 0.9F}}};
constexpr std::span<const setting> settings(all_settings, is_thorough ? std::size(all_settings) : 1);
constexpr sampling_options draft_sampling{.temperature = 1, .min_p = 0.01F};

const std::vector<token_id> prompt{1, 676, 938, 4002, 4045, 1121, 339, 328};  // "He bought 3 apples for $"

models::remembered_model& target() {
  static models::remembered_model model(MODELS_FOLDER "/target", prompt);
  return model;
}

models::remembered_model& draft() {
  static models::remembered_model model(MODELS_FOLDER "/draft", prompt);
  return model;
}

// The distribution of the next token, without any of the library's sampling: in double, and the nucleus by a full sort.
std::vector<double> distribution_of(std::span<const float> logits, const sampling_options& options) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<double> distribution;
  for (const float x : logits)
    distribution.push_back(std::exp(static_cast<double>(x - best) / static_cast<double>(options.temperature)));
  const double total = std::accumulate(distribution.begin(), distribution.end(), 0.0);
  std::vector<std::size_t> order(distribution.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return distribution[a] > distribution[b]; });
  double kept = 0;
  for (const std::size_t t : order) {
    if (options.top_p < 1 && kept >= static_cast<double>(options.top_p) * total) distribution[t] = 0;
    kept += distribution[t];
  }
  for (double& p : distribution)
    p /= kept;
  return distribution;
}

// What the first two tokens are expected to be, as far as samples can tell: tokens that come seldom stand together as
// -1.
class expectation {
 public:
  expectation(const sampling_options& options, int n) : n_(n), first_(distribution_of(target().row({}), options)) {
    for (std::size_t t = 0; t < first_.size(); ++t) {
      if (first_[t] * n_ >= 5) {
        const auto token = static_cast<token_id>(t);
        second_.emplace(token, distribution_of(target().row({token}), options));
      }
    }
  }

  double probability(const std::map<first_two, int>& counts) const {
    std::map<first_two, chi_square::cell> cells;
    for (std::size_t t = 0; t < first_.size(); ++t) {
      const auto token = static_cast<token_id>(t);
      const auto found = second_.find(token);
      if (found == second_.end()) {
        cells[cell_of({token, 0})].expected += n_ * first_[t];
        continue;
      }
      for (std::size_t u = 0; u < found->second.size(); ++u)
        cells[cell_of({token, static_cast<token_id>(u)})].expected += n_ * first_[t] * found->second[u];
    }
    for (const auto& [tokens, n] : counts) {
      if (is_impossible(tokens)) return 0;
      cells[cell_of(tokens)].observed += n;
    }
    std::vector<chi_square::cell> list;
    for (const auto& [tokens, cell] : cells)
      list.push_back(cell);
    return chi_square::probability(list);
  }

 private:
  double first(token_id t) const { return first_[static_cast<std::size_t>(t)]; }

  bool is_impossible(first_two tokens) const {
    const auto found = second_.find(tokens.first);
    return first(tokens.first) == 0 ||
           (found != second_.end() && found->second[static_cast<std::size_t>(tokens.second)] == 0);
  }

  first_two cell_of(first_two tokens) const {
    const auto found = second_.find(tokens.first);
    if (found == second_.end()) return {-1, -1};
    const double expected = n_ * first(tokens.first) * found->second[static_cast<std::size_t>(tokens.second)];
    return expected >= 5 ? tokens : first_two(tokens.first, -1);
  }

  int n_;  // samples
  std::vector<double> first_;
  std::map<token_id, std::vector<double>> second_;  // after the first tokens that come often
};

// How often each pair of first tokens comes, a text for each seed.
template <class PolicyT, class VerifierT>
std::map<first_two, int> sample(const setting& s, PolicyT policy, VerifierT verifier, int n) {
  token_kv kv(64);
  autoregressive drafter(draft(), token_kv(64), draft_sampling);
  auto decode = make_decoder(drafter, policy, verifier, kv, target(), {.text = {.sampling = s.target}});
  std::map<first_two, int> counts;
  for (int i = 0; i < n; ++i) {
    decode.begin(prompt);
    while (decode.current().written().size() < 2) {
      philox_chance chance(static_cast<std::uint64_t>(i), 0, static_cast<std::uint32_t>(decode.current().round()));
      decode.step_with(chance);
    }
    const auto written = decode.current().written();
    ++counts[{written[0], written[1]}];
  }
  return counts;
}

// Naive, but for the token in place of a refused one.
struct naive_from_target {
  static constexpr regime lossless = regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    return detail::walk(tree, [&](node_id u) {
      const auto p = target.row(u);
      if (!tree.is_leaf(u)) {
        const token_id drawn = tree.token[*tree.draws(u).begin()];
        const auto x = static_cast<std::size_t>(drawn);
        if (chance.accept(p[x], draft.row(u)[x], {u, 0, purpose::accept})) return drawn;
      }
      return static_cast<token_id>(chance.pick(p, {u, 0, purpose::residual}));
    });
  }
};

int n_tests() {
  int n = 0;
  for_each_sampled_pair([&](const auto&, const auto&) { ++n; });
  return n * static_cast<int>(std::size(settings));
}

// Where one of the tests refuses, so that all together raise a false alarm as seldom as said.
double least_probability() {
  return false_alarm / n_tests();
}

}  // namespace

TEST_CASE("first two tokens follow the target's distribution: every sampled pair, with and without truncation",
          "[models][first_two_tokens]") {
  double smallest = 1;
  for (const setting& s : settings) {
    const expectation expected(s.target, n_samples_of_each_pair);
    for_each_sampled_pair([&](auto policy, const auto& verifier) {
      INFO(policy.name << " with " << verifier.name << ", " << s.name);
      policy.options = small(policy.options);
      const double probability =
          expected.probability(sample(s, policy.make(), verifier_of(policy, verifier), n_samples_of_each_pair));
      CHECK(probability > least_probability());
      smallest = std::min(smallest, probability);
    });
  }
  std::cout << "first two tokens: " << n_tests() << " tests of " << n_samples_of_each_pair
            << " samples, smallest probability " << smallest << ", refused below " << least_probability() << "; "
            << target().n_rows() << " target rows\n";
}

TEST_CASE("the same samples refuse a verifier that draws from the target where the residual is due",
          "[models][first_two_tokens]") {
  for (const setting& s : settings) {
    INFO(s.name);
    const expectation expected(s.target, n_samples);
    CHECK(expected.probability(sample(s, sampled_chain({.length = 2}), naive(), n_samples)) > least_probability());
    CHECK(expected.probability(sample(s, sampled_chain({.length = 2}), naive_from_target(), n_samples)) <
          least_probability());
  }
}
