// SPDX-License-Identifier: BSL-1.0
// Measures the cost of verifying a tree of 64 drawn tokens over a vocabulary of 151,936, by verifier, beside the
// reading passes over rows that the algorithm needs at least.
//
//   bench_micro_verify [ROUNDS]     default 200
//
// Exits with 1 if a steady call allocates.
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../program.hpp"
#include "allocations.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/registry.hpp"
#include "espalier/sampling/softmax.hpp"

namespace {

using namespace espalier;
namespace hana = boost::hana;
using clock_type = std::chrono::steady_clock;

constexpr std::int32_t vocab = 151936;
constexpr std::int32_t budget = 64;

std::span<const float> row_of(const std::vector<float>& rows, std::int32_t u) {
  return std::span(rows).subspan(static_cast<std::size_t>(u) * vocab, vocab);
}

// The rows of one model by node. The nodes that a verifier asks about are recorded.
struct given_rows {
  static constexpr bool are_distributions = true;  // as the rows of the decoder's sampler are
  const std::vector<float>* rows;
  std::vector<node_id>* asked;

  bool has(node_id) const { return true; }
  std::span<const float> row(node_id u) const {
    asked->push_back(u);
    return row_of(*rows, u);
  }
  token_id argmax(node_id u) const { return espalier::argmax(row(u), u); }
};

// A chance that counts its decisions; they tell which rows had to be read.
struct counted_chance {
  philox_chance chance;
  std::int32_t tested = 0, rejected = 0, hopeless = 0;
  std::vector<chance_key>* rejections;

  bool accept(double p, double q, chance_key at) {
    const bool yes = chance.accept(p, q, at);
    ++tested;
    if (!yes && at.use == purpose::accept) {
      ++rejected;
      hopeless += p > 0 ? 0 : 1;
      rejections->push_back(at);
    }
    return yes;
  }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) {
    return chance.pick(weights, at);
  }
  std::int32_t index(std::int32_t n, chance_key at) { return chance.index(n, at); }
};

// A drafted tree with its rows: the draft's are the softmax of irregular logits that are a disturbed copy of the
// target's.
struct scene {
  tree<> drawn{budget};
  std::vector<float> p, q;

  // Draws come from the root's side on; `shape(u)` says how many a node gets, without replacement if `distinct`.
  template <class ShapeT>
  scene(std::uint32_t seed, const ShapeT& shape, bool distinct)
      : p(static_cast<std::size_t>(budget + 1) * vocab), q(p.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> logits(vocab), disturbed(vocab);
    for (std::int32_t u = 0; u <= budget; ++u) {
      const auto at = static_cast<std::size_t>(u) * vocab;
      for (std::size_t t = 0; t < vocab; ++t) {
        logits[t] = 3.5F * normal(random);
        disturbed[t] = logits[t] + 0.8F * normal(random);
      }
      softmax(std::span<const float>(logits), 1.0F, std::span(p).subspan(at, vocab), u);
      softmax(std::span<const float>(disturbed), 1.0F, std::span(q).subspan(at, vocab), u);
    }
    philox_chance chance(seed, 0, 0);
    drawn.reset(0);
    for (node_id u = 0; u < drawn.size() && !drawn.full(); ++u) {
      std::vector<float> left(row_of(q, u).begin(), row_of(q, u).end());
      for (std::int32_t i = 0; i < shape(drawn.view(), u) && !drawn.full(); ++i) {
        const token_id token = chance.pick(std::span<const float>(left), {u, i, purpose::draft});
        drawn.draw(u, token, 0);
        if (distinct) left[static_cast<std::size_t>(token)] = 0;
      }
    }
  }
};

std::int32_t draws_of(tree_view tree, node_id u) {
  std::int32_t n = 0;
  for ([[maybe_unused]] const node_id child : tree.draws(u))
    ++n;
  return n;
}

// Number of readings of rows that the algorithm needs at least for one outcome. The last token is drawn from one row at
// a leaf, else from two. Rows of both models are marked as distributions, as those of the library's samplers are.
std::int32_t least_readings(const std::string& verifier, const scene& s, const std::vector<node_id>& draft_rows,
                            const counted_chance& c, node_id accepted) {
  const tree_view tree = s.drawn;
  const std::int32_t end = tree.is_leaf(accepted) ? 1 : 2;
  if (verifier == "target-only") return tree.depth[accepted] + 1;
  // Acceptance reads both rows of each node of the path except root and leaf.
  if (verifier == "block-verification") return 2 * (c.tested - 1) + end;
  // The best of several draws is weighed by four readings of both rows.
  if (verifier == "multi-path-block") {
    const auto weighed =
        std::count_if(draft_rows.begin(), draft_rows.end(), [&](node_id u) { return draws_of(tree, u) > 1; });
    return 2 * (c.tested - 1) + end + 8 * static_cast<std::int32_t>(weighed);
  }
  // Each rejection of a node that could have been accepted reads both rows of the parent.
  if (verifier.find("traversal") == 0) return 2 * (c.rejected - c.hopeless) + end;
  std::map<node_id, std::int32_t> rejected;
  for (const chance_key& at : *c.rejections)
    ++rejected[at.node];
  std::int32_t reads = tree.is_leaf(accepted) ? 1 : 0;
  for (const auto& [u, n] : rejected) {
    // Each rejection reads both rows; without replacement, the second one also sums the rest of the draft's row.
    if (verifier == "residual-walk") reads += 2 * n + (n > 1 ? 1 : 0);
    if (verifier.find("naive") == 0 || verifier == "specinfer") reads += 2 * n;
    if (verifier == "spectr" && n == draws_of(tree, u)) reads += 2;
    if (verifier == "khisti") reads += 2;
  }
  for (const node_id u : draft_rows) {
    // Each stage ranks tokens by the rows of the target, of the winner so far and of the draft, then writes the row of
    // the next winner from the last two; the first winner's row is the draft's. Rejecting the last winner reads the
    // target's row and the winner's.
    if (verifier == "khisti" && draws_of(tree, u) > 1) reads += 4 + 6 * (draws_of(tree, u) - 2);
    // The search for the factor reads both rows once a step; at most six steps are counted.
    if (verifier == "spectr" && draws_of(tree, u) > 1)
      reads += 2 * (std::min)(6, detail::solve_k_seq(row_of(s.p, u), row_of(s.q, u), draws_of(tree, u)).passes);
  }
  return reads;
}

double microseconds(clock_type::time_point start) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

template <class PartT>
bool measure(const PartT& part, const std::vector<scene>& scenes, int rounds) {
  auto verifier = part.make();
  std::vector<node_id> asked_p, asked_q;
  std::vector<chance_key> rejections;
  asked_p.reserve(4 * budget), asked_q.reserve(4 * budget), rejections.reserve(4 * budget);
  std::vector<double> verify_times, read_times, ratios, readings, depths;
  double sink = 0;
  std::int64_t allocations = 0;
  for (int round = 0; round < rounds; ++round) {
    const scene& s = scenes[static_cast<std::size_t>(round) % scenes.size()];
    const tree_view view = s.drawn;
    const given_rows draft{&s.q, &asked_q};
    given_rows target{&s.p, &asked_p};
    const philox_chance chance(static_cast<std::uint64_t>(round) + 1, 0, 0);
    // A first run loads the rows into the caches, and tells which rows have to be read.
    asked_p.clear(), asked_q.clear(), rejections.clear();
    counted_chance counted{chance, 0, 0, 0, &rejections};
    const verdict v = verifier.verify(view, draft, target, counted);
    const std::vector<node_id> rows_p = asked_p;
    const std::vector<node_id> rows_q = asked_q.empty() ? asked_p : asked_q;
    const std::int32_t n = least_readings(std::string(part.name), s, asked_q, counted, v.accepted);
    const auto time_verify = [&] {
      asked_p.clear(), asked_q.clear();
      philox_chance plain = chance;
      const allocation_count count;
      const auto start = clock_type::now();
      const verdict again = verifier.verify(view, draft, target, plain);
      const double time = microseconds(start);
      if (round > static_cast<int>(scenes.size())) allocations += count.so_far();
      sink += again == v ? 0 : 1;
      return time;
    };
    const auto time_reading = [&] {
      const auto start = clock_type::now();
      for (std::int32_t i = 0; i < n; ++i) {
        const auto& rows = i % 2 == 0 ? rows_q : rows_p;
        const node_id u = rows[static_cast<std::size_t>(i / 2) % rows.size()];
        sink += 1e-30 * detail::mass(row_of(i % 2 == 0 ? s.q : s.p, u));
      }
      return microseconds(start);
    };
    double verify_time, read_time;
    if (round % 2 == 0) {
      verify_time = time_verify();
      read_time = time_reading();
    } else {
      read_time = time_reading();
      verify_time = time_verify();
    }
    verify_times.push_back(verify_time), read_times.push_back(read_time);
    ratios.push_back(verify_time / read_time);
    readings.push_back(n), depths.push_back(view.depth[v.accepted]);
  }
  double mean_depth = 0;
  for (const double d : depths)
    mean_depth += d / static_cast<double>(depths.size());
  std::printf("| %s | %.2f | %.0f | %.0f | %.0f | %.2f | %lld |\n", std::string(part.name).c_str(), mean_depth,
              median(readings), median(verify_times), median(read_times), median(ratios),
              static_cast<long long>(allocations));
  std::fflush(stdout);
  return allocations == 0 && sink < 1;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_verify", "What verification costs, by verifier.");
  int rounds = 200;
  program.add("--rounds", rounds, "trees and chances that each is measured with; the median counts");
  return program.run(argc, argv, [&] {
    std::printf(
        "## Verification\n\nTrees of %d drawn tokens, rows of %d floats, one thread, rows near; medians of %d trees "
        "and "
        "chances. A reading is one pass over one row by the sum that verifiers use; readings needed at least: see the "
        "head "
        "of bench/micro/verify.cpp. Softmax over the target's rows is not included.\n\n",
        budget, vocab, rounds);
    std::printf(
        "| verifier | accepted | readings at least | verify us | readings us | ratio | allocations "
        "|\n|---|--:|--:|--:|--:|--:|--:|\n");
    bool fine = true;
    const auto single = [](tree_view, node_id) { return 1; };
    // Four paths of 16 tokens, parted at the root; without replacement: four children, then two, then one each.
    const auto four = [](tree_view tree, node_id u) { return u == 0 ? 4 : tree.depth[u] < 2 ? 2 : 1; };
    std::vector<scene> chains, paths, distinct;
    for (std::uint32_t seed = 0; seed < 3; ++seed) {
      chains.emplace_back(seed, single, false);
      paths.emplace_back(seed + 10, four, false);
      distinct.emplace_back(seed + 20, four, true);
    }
    hana::for_each(verifiers, [&](const auto& part) {
      using verifier_type = typename std::decay_t<decltype(part)>::type;
      if constexpr (ArgmaxVerifier<verifier_type>) return;
      const bool wants_distinct = compatible(regime::without_replacement, verifier_type::lossless);
      const bool wants_single = !compatible(regime::iid, verifier_type::lossless);
      fine = measure(part, wants_single ? chains : wants_distinct ? distinct : paths, rounds) && fine;
    });
    return fine ? 0 : 1;
  });
}
