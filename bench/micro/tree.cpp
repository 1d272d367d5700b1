// SPDX-License-Identifier: BSL-1.0
// Measures the cost of choosing the most probable prefixes from lists of the most probable tokens of 15 marginals, and
// of making masks and a forward batch of the tree.
//
//   bench_micro_tree [ROUNDS]     default 401
//
// Each round has rows of its own; everything that is measured takes its turn in each. Figures are medians over the
// rounds. Prints Markdown; exits with 1 if a steady call allocates.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <queue>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "allocations.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/registry.hpp"
#include "espalier/tree_policy/best_first.hpp"

namespace {

using namespace espalier;
using clock_type = std::chrono::steady_clock;

constexpr std::int32_t n_rows = 15;
constexpr std::size_t vocab = 20000;
constexpr std::array<std::int32_t, 4> budgets{16, 64, 256, 1024};
constexpr std::int32_t most = budgets.back();

enum class shape { peaked, sharpening, flat };
constexpr std::array<std::pair<shape, const char*>, 3> shapes{std::pair{shape::peaked, "power law"},
                                                              std::pair{shape::sharpening, "sure, then unsure"},
                                                              std::pair{shape::flat, "bell"}};

// The lists of the most probable tokens of 15 marginals. [n_rows][most]
struct lists {
  std::vector<token_id> tokens;
  std::vector<float> log_probs;

  lists(shape s, std::mt19937& random) {
    std::normal_distribution<double> normal;
    std::vector<double> logits(vocab);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      // The token of rank i is about as probable as i to the power of -1.5; in one shape the first positions are nearly
      // sure.
      const double sharpness = s == shape::sharpening ? 6.0 / (1 + r) : 0;
      double total = 0;
      for (std::size_t t = 0; t < vocab; ++t) {
        const auto rank = static_cast<double>(t + 1);
        logits[t] = s == shape::flat ? 3 * normal(random)
                                     : -1.5 * std::log(rank) + 0.5 * normal(random) + (t == 0 ? sharpness : 0);
        total += std::exp(logits[t]);
      }
      std::partial_sort(logits.begin(), logits.begin() + most, logits.end(), std::greater<>());
      for (std::int32_t k = 0; k < most; ++k) {
        tokens.push_back((k * 7919 + r) % static_cast<token_id>(vocab));
        log_probs.push_back(static_cast<float>(logits[static_cast<std::size_t>(k)] - std::log(total)));
      }
    }
  }
};

// Lists cut to their first `ranks` ranks.
std::vector<float> first_ranks(const std::vector<float>& log_probs, std::int32_t ranks) {
  std::vector<float> out;
  for (std::int32_t r = 0; r < n_rows; ++r)
    out.insert(out.end(), log_probs.begin() + r * most, log_probs.begin() + r * most + ranks);
  return out;
}

// Algorithm 1 of the paper, as printed: rank tuples in a binary heap.
std::size_t plain_heap(const std::vector<float>& log_probs, std::int32_t ranks, std::int32_t budget) {
  struct prefix {
    float score;
    std::vector<std::int32_t> ranks;
    bool operator<(const prefix& other) const {
      return score != other.score ? score < other.score : ranks > other.ranks;
    }
  };
  const auto log_prob = [&](std::size_t depth, std::int32_t rank) {
    return log_probs[(depth - 1) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)];
  };
  std::priority_queue<prefix> heap;
  std::vector<prefix> taken;
  heap.push({log_prob(1, 0), {0}});
  while (static_cast<std::int32_t>(taken.size()) < budget && !heap.empty()) {
    taken.push_back(heap.top());
    heap.pop();
    const prefix& last = taken.back();
    const std::size_t depth = last.ranks.size();
    if (last.ranks.back() + 1 < ranks) {
      prefix sibling = last;
      sibling.score += log_prob(depth, last.ranks.back() + 1) - log_prob(depth, last.ranks.back());
      ++sibling.ranks.back();
      heap.push(std::move(sibling));
    }
    if (depth < n_rows) {
      prefix child = last;
      child.score += log_prob(depth + 1, 0);
      child.ranks.push_back(0);
      heap.push(std::move(child));
    }
  }
  return taken.size();
}

double microseconds(clock_type::time_point start) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool measure(std::int32_t budget, shape s, const char* name, int rounds) {
  std::mt19937 random(static_cast<std::uint32_t>(budget) * 10 + static_cast<std::uint32_t>(s));
  best_first policy({.budget = budget});
  tree<> grown(budget);
  tree_order order(budget + 1);
  forward_batch batch;
  batch.reserve(budget + 1, budget + 1);
  // A new set of rows each round, so that branches are not learnt by heart; few enough to be made within seconds.
  std::vector<lists> given;
  for (int i = 0; i < 40; ++i)
    given.emplace_back(s, random);
  std::vector<double> built, plain;
  std::vector<std::vector<double>> compiled(known_values<node_order>.size());
  double depth = 0;
  std::size_t sink = 0;
  std::int64_t allocations = 0;
  for (int round = -20; round < rounds; ++round) {
    const lists& l = given[static_cast<std::size_t>(round + 20) % given.size()];
    const std::vector<float> log_probs = first_ranks(l.log_probs, budget);
    auto start = clock_type::now();
    sink += plain_heap(log_probs, budget, budget);
    const double plain_time = microseconds(start);

    const allocation_count count;
    start = clock_type::now();
    grown.reset(0);
    policy.take_best(grown, l.tokens, log_probs, n_rows, budget);
    const double tree_time = microseconds(start);

    std::array<double, known_values<node_order>.size()> times{};
    for (std::size_t o = 0; o < times.size(); ++o) {
      start = clock_type::now();
      order.compute(grown, known_values<node_order>[o].value);
      batch.clear();
      batch.begin_sequence(0, 1000, grown.size());
      batch.add_row(grown.view().token[root_node], 1000, 0, true);
      batch.add_tree(grown, order, 0);
      times[o] = microseconds(start);
      sink += batch.view().mask.back();
    }
    if (round < 0) continue;
    allocations += count.so_far();
    plain.push_back(plain_time), built.push_back(tree_time);
    for (std::size_t o = 0; o < times.size(); ++o)
      compiled[o].push_back(times[o]);
    const tree_view view = grown;
    depth += *std::max_element(view.depth, view.depth + view.n_nodes) / static_cast<double>(rounds);
  }
  std::printf("| %s | %d | %.1f | %.1f | %.1f |", name, budget, depth, median(plain), median(built));
  for (const std::vector<double>& times : compiled)
    std::printf(" %.1f |", median(times));
  std::printf(" %lld |\n", static_cast<long long>(allocations));
  std::fflush(stdout);
  return allocations == 0 && sink > 0;
}

// The logits of a block over a large vocabulary; the most probable tokens may be anywhere in a row.
struct logits_block {
  static constexpr std::int32_t large_vocab = 151936;
  std::vector<float> logits;

  logits_block() : logits(static_cast<std::size_t>(n_rows) * large_vocab) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> by_rank(large_vocab);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      for (std::size_t t = 0; t < by_rank.size(); ++t)
        by_rank[t] = -1.5F * std::log(static_cast<float>(t + 1)) + 0.5F * normal(random);
      std::shuffle(by_rank.begin(), by_rank.end(), random);
      std::copy(by_rank.begin(), by_rank.end(), logits.begin() + static_cast<std::ptrdiff_t>(r) * large_vocab);
    }
  }

  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 30; }
  std::int32_t vocab_size() const { return large_vocab; }
  std::int32_t block_length() const { return n_rows; }
  vocab_rows<float> propose_block() { return {logits.data(), n_rows, large_vocab}; }
};

// One reading pass over all logits, which the compiler cannot drop.
std::uint32_t read_pass(const std::vector<float>& logits) {
  std::array<std::uint32_t, 64> bits{};
  for (std::size_t i = 0; i + bits.size() <= logits.size(); i += bits.size()) {
    for (std::size_t l = 0; l < bits.size(); ++l)
      bits[l] |= std::bit_cast<std::uint32_t>(logits[i + l]);
  }
  std::uint32_t all = 0;
  for (const std::uint32_t b : bits)
    all |= b;
  return all;
}

bool measure_blocks(int rounds) {
  logits_block block;
  philox_chance chance(0, 0, 0);
  std::vector<best_first> policies;
  std::vector<tree<>> trees;
  for (const std::int32_t budget : budgets) {
    policies.emplace_back(best_first_options{.budget = budget});
    trees.emplace_back(budget);
  }
  std::vector<double> reading;
  std::array<std::vector<double>, budgets.size()> growing;
  std::uint32_t sink = 0;
  std::int64_t allocations = 0;
  for (int round = -2; round < rounds; ++round) {
    auto start = clock_type::now();
    sink |= read_pass(block.logits);
    const double reading_time = microseconds(start);
    if (round >= 0) reading.push_back(reading_time);
    for (std::size_t i = 0; i < budgets.size(); ++i) {
      const allocation_count count;
      start = clock_type::now();
      trees[i].reset(0);
      espalier::grow(policies[i], trees[i], block, chance);
      const double time = microseconds(start);
      if (round < 0) continue;
      allocations += count.so_far();
      growing[i].push_back(time);
    }
  }
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    std::printf("| %d | %.2f | %.2f | %.2f | %lld |\n", budgets[i], median(growing[i]) / 1e3, median(reading) / 1e3,
                median(growing[i]) / median(reading), static_cast<long long>(allocations));
  }
  return allocations == 0 && sink != 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_tree", "Trees from marginals and from logits.");
  int rounds = 401;
  program.add("--rounds", rounds, "times that each is measured; the median counts");
  return program.run(argc, argv, [&] {
    std::printf(
        "## Trees from marginals\n\nThe most probable prefixes from lists of the most probable tokens of %d marginals "
        "over "
        "a vocabulary of %zu, one thread; medians of %d rounds in microseconds. Plain: the paper's algorithm as it "
        "stands "
        "there, rank tuples in the standard library's priority queue. Tree: the same nodes by best_first, linked as a "
        "tree. "
        "Then, of that tree, by the order of its rows: order, masks and forward batch.\n\n",
        n_rows, vocab, rounds);
    std::printf("| rows | budget | depth | plain us | tree us |");
    for (const auto& known : known_values<node_order>)
      std::printf(" %s us |", std::string(known.name).c_str());
    std::printf(" allocations |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    bool fine = true;
    for (const auto& [s, name] : shapes) {
      for (const std::int32_t budget : budgets)
        fine = measure(budget, s, name, rounds) && fine;
    }
    std::printf(
        "\n## Trees from logits\n\nbest_first over a block of %d rows of %d logits, all that it does: the most "
        "probable "
        "tokens of each row with their log-probabilities, and the tree; one thread, medians of %d rounds. A reading is "
        "one "
        "pass over the same logits, 9 MB that stay in the caches.\n\n| budget | grow ms | reading ms | ratio | "
        "allocations |\n|--:|--:|--:|--:|--:|\n",
        n_rows, logits_block::large_vocab, rounds / 8);
    fine = measure_blocks(rounds / 8) && fine;
    return fine ? 0 : 1;
  });
}
