// SPDX-License-Identifier: BSL-1.0
// Measures the cost of turning a row of logits into probabilities, beside one reading pass over the same floats.
//
//   bench_micro_sampling [ROUNDS]     default: 31
//
// In each round every way of sampling goes over all rows once, one after the other, with the reading pass between them;
// figures are medians over the rounds. Prints Markdown.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../program.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/sampling/softmax.hpp"
#include "reading_pass.hpp"

namespace {

using bench::read_pass;
using bench::touch;
using namespace espalier;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t vocab = 151936;
constexpr std::size_t tree_rows = 64;

struct row_set {
  std::vector<float> peaked;  // like a language model's: the token of rank r has a probability proportional to r^-1.5
  std::vector<float> flat;    // normal with deviation 1: most tokens matter
};

row_set make_rows() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  row_set rows{std::vector<float>(vocab * tree_rows), std::vector<float>(vocab * tree_rows)};
  std::vector<float> by_rank(vocab);
  for (std::size_t r = 0; r < vocab; ++r)
    by_rank[r] = -1.5F * std::log(static_cast<float>(r + 1));
  for (std::size_t first = 0; first < rows.peaked.size(); first += vocab) {
    std::shuffle(by_rank.begin(), by_rank.end(), random);
    std::copy(by_rank.begin(), by_rank.end(), rows.peaked.begin() + static_cast<std::ptrdiff_t>(first));
  }
  for (float& x : rows.flat)
    x = normal(random);
  return rows;
}

struct entry {
  std::string name;
  int passes;  // number of passes that it needs at least
  std::function<void(std::size_t row)> work;
  std::vector<double> seconds{};  // seconds a row, for each round

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

void measure(const row_set& rows, std::size_t n_rows, int rounds, const char* title) {
  std::vector<float> out(vocab * n_rows, 1.0F);
  const auto row = [](const std::vector<float>& of, std::size_t r) {
    return std::span<const float>(of).subspan(r * vocab, vocab);
  };
  std::vector<entry> entries;
  entries.push_back({"reading pass", 1, [&](std::size_t r) { read_pass(row(rows.peaked, r)); }});
  entries.push_back({"argmax", 1, [&](std::size_t r) {
                       token_id best = argmax(row(rows.peaked, r), 0);
                       touch(&best);
                     }});
  const auto add = [&](const char* name, int passes, const std::vector<float>& from, sampling_options options) {
    auto sample = std::make_shared<sampler<>>(options);
    sample->reserve(vocab);
    entries.push_back({name, passes, [&out, &row, &from, sample](std::size_t r) {
                         sample->probabilities(row(from, r), std::span(out).subspan(r * vocab, vocab), 0);
                         touch(out.data());
                       }});
  };
  add("temperature", 3, rows.peaked, {.temperature = 0.8F});
  add("min-p 0.05", 3, rows.peaked, {.temperature = 1, .min_p = 0.05F});
  add("top-p 0.9, peaked rows", 5, rows.peaked, {.temperature = 1, .top_p = 0.9F});
  add("top-p 0.9, flat rows", 5, rows.flat, {.temperature = 1, .top_p = 0.9F});
  add("top-k 50", 2, rows.peaked, {.temperature = 1, .top_k = 50});
  add("top-k 50, top-p 0.9, min-p 0.05", 2, rows.peaked,
      {.temperature = 1, .top_k = 50, .top_p = 0.9F, .min_p = 0.05F});
  const std::size_t calls = tree_rows;
  for (int round = -1; round < rounds; ++round) {
    for (entry& e : entries) {
      const auto start = clock_type::now();
      for (std::size_t i = 0; i < calls; ++i)
        e.work(i % n_rows);
      const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
      if (round >= 0) e.seconds.push_back(seconds / static_cast<double>(calls));
    }
  }
  const double read = entries.front().median();
  std::printf(
      "\n### %s\n\nOne reading pass: %.1f us, %.1f GB/s.\n\n"
      "| sampling | passes it needs | us | in reading passes | by those it needs |\n|---|--:|--:|--:|--:|\n",
      title, read * 1e6, static_cast<double>(vocab) * 4e-9 / read);
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const entry& e = entries[i];
    const double ratio = e.median() / read;
    std::printf("| %s | %d | %.1f | %.2f | %.2f |\n", e.name.c_str(), e.passes, e.median() * 1e6, ratio,
                ratio / e.passes);
  }
}

std::size_t kept(std::span<const float> logits) {
  std::vector<float> out(logits.size());
  sampler({.temperature = 1, .top_p = 0.9F}).probabilities(logits, out, 0);
  return static_cast<std::size_t>(std::count_if(out.begin(), out.end(), [](float p) { return p > 0; }));
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_sampling", "What it costs to make a row of probabilities.");
  int rounds = 31;
  program.add("--rounds", rounds, "times that each is measured; the median counts");
  return program.run(argc, argv, [&] {
    const row_set rows = make_rows();
    std::printf(
        "## What it costs to make a row of probabilities\n\n"
        "Rows of %zu floats on one core; medians of %d rounds. Top-p 0.9 keeps %zu tokens of a peaked row and %zu of a "
        "flat one. Rows that are written count as passes only where nothing else is done with them. From the caches, "
        "exponentials are bound by arithmetic, not by reading.\n",
        vocab, rounds, kept(std::span(rows.peaked).first(vocab)), kept(std::span(rows.flat).first(vocab)));
    measure(rows, tree_rows, rounds, "64 rows in turn, as of a tree of 64 nodes: from memory");
    measure(rows, 1, rounds, "The same row again and again: from the caches");
    return 0;
  });
}
