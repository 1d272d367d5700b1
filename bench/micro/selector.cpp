// SPDX-License-Identifier: BSL-1.0
// Measures the cost of choosing a tree: the features of a round's root and the selector's network, for hidden states of
// the bundled pair.
//
//   bench_micro_selector [ROUNDS]     default 501
//
// Warm: everything is in the caches. Cold: 128 MB were read before, as a target's pass does. Figures are medians, on
// one core. Exits with 1 if a call allocates.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../program.hpp"
#include "allocations.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/selector/delayed_selector.hpp"
#include "espalier/selector/selector_features.hpp"
#include "reading_pass.hpp"

namespace {

using namespace espalier;
using clock_type = std::chrono::steady_clock;

constexpr std::int32_t target_hidden = 384, draft_hidden = 128;

struct random_numbers {
  std::mt19937 random{3};

  std::vector<float> operator()(std::size_t n, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(n);
    for (float& x : out)
      x = normal(random);
    return out;
  }

  // In the form that delayed_selector::read takes.
  void vector(const std::string& name, int n, float* to) {
    const std::vector<float> values = (*this)(static_cast<std::size_t>(n), 0.1F);
    for (int i = 0; i < n; ++i)
      to[i] = values[static_cast<std::size_t>(i)] + (name.ends_with("deviation") ? 1.0F : 0.0F);
  }
  template <class VisitT>
  void matrix(const std::string&, int rows, int columns, VisitT&& set_row) {
    for (int row = 0; row < rows; ++row)
      set_row(row, (*this)(static_cast<std::size_t>(columns), 0.05F).data());
  }
};

struct timings {
  std::vector<double> row, divergences, network, together;
};

double median(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

timings measure(std::size_t vocab, delayed_selector& selector, bool cold, int rounds, std::int64_t& allocations) {
  random_numbers numbers;
  const std::vector<float> logits = numbers(vocab, 3), hidden = numbers(target_hidden, 1),
                           previous = numbers(draft_hidden, 1), root = numbers(draft_hidden, 1);
  std::vector<float> p(vocab), q = numbers(vocab, 3), q_root = numbers(vocab, 3);
  softmax(q, 1.0F, q, 0);
  softmax(q_root, 1.0F, q_root, 0);
  const std::vector<float> others(cold ? std::size_t{32} << 20 : 0, 1.0F);
  timings found;
  for (auto* list : {&found.row, &found.divergences, &found.network, &found.together})
    list->reserve(static_cast<std::size_t>(rounds));
  selector_features features;
  const allocation_count count;
  for (int round = -2; round < rounds; ++round) {
    bench::read_pass(others);
    const auto start = clock_type::now();
    untruncated_row(logits, 0.8F, p);
    const auto rowed = clock_type::now();
    features.target_hidden = hidden;
    features.draft_hidden_prev = previous;
    features.draft_hidden_root = root;
    features.set_divergences(std::span<const float>(p), std::span<const float>(q), std::span<const float>(q_root));
    features.set_text(100, {.temperature = 0.8F});
    features.set_seconds(1e-4, 1e-3);
    const auto described = clock_type::now();
    std::int32_t action = selector.choose(features);
    bench::touch(&action);
    const auto end = clock_type::now();
    if (round < 0) continue;
    const auto us = [](auto from, auto to) { return std::chrono::duration<double, std::micro>(to - from).count(); };
    found.row.push_back(us(start, rowed));
    found.divergences.push_back(us(rowed, described));
    found.network.push_back(us(described, end));
    found.together.push_back(us(start, end));
  }
  allocations += count.so_far();
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_selector", "What it costs to choose a tree by a network.");
  int rounds = 501;
  program.add("--rounds", rounds, "times that each is measured; the median counts");
  return program.run(argc, argv, [&] {
    std::int64_t allocations = 0;
    std::printf(
        "## What it costs to choose a tree\n\n"
        "Hidden states of %d and %d numbers; medians of %d rounds, microseconds on one core.\n\n"
        "| vocabulary | weights | caches | the target's row | divergences | network | together |\n"
        "|--:|---|---|--:|--:|--:|--:|\n",
        target_hidden, draft_hidden, rounds);
    for (const std::size_t vocab : {std::size_t{4096}, std::size_t{151936}}) {
      for (const selector_weights kind : {selector_weights::int4, selector_weights::float32}) {
        random_numbers weights;
        delayed_selector selector(target_hidden, draft_hidden, kind);
        selector.read(weights);
        for (const bool cold : {false, true}) {
          const timings t = measure(vocab, selector, cold, cold ? (rounds + 9) / 10 : rounds, allocations);
          std::printf("| %zu | %s | %s | %.1f | %.1f | %.1f | %.1f |\n", vocab,
                      kind == selector_weights::int4 ? "int4" : "float", cold ? "cold" : "warm", median(t.row),
                      median(t.divergences), median(t.network), median(t.together));
        }
      }
    }
    if (allocations > 0) std::fprintf(stderr, "%lld allocations\n", static_cast<long long>(allocations));
    return allocations > 0 ? 1 : 0;
  });
}
