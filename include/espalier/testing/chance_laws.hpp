// SPDX-License-Identifier: BSL-1.0
// Tested by tests/zoo/others.cpp
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/chance.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

namespace detail {

// A decision: its key, and the seed, stream and length from which the chance of its round is made.
struct chance_point {
  std::uint64_t seed = 11;
  std::uint32_t stream = 0, length = 0;
  chance_key at{};
};

inline std::string in_words(const chance_point& p) {
  const char* const uses[] = {"draft", "accept", "residual", "select", "token"};
  std::string words;
  const auto add = [&](const char* name, const std::string& value) {
    words += (words.empty() ? "" : ", ") + std::string(name) + " " + value;
  };
  add("seed", std::to_string(p.seed)), add("stream", std::to_string(p.stream));
  add("length", std::to_string(p.length)), add("node", std::to_string(p.at.node));
  add("slot", std::to_string(p.at.slot)), add("purpose", uses[static_cast<std::size_t>(p.at.use)]);
  return words;
}

// Checks that any two of many points have different outcomes in at least one of 64 rounds, which begin at the points'
// lengths; returns the number of points. Points differ in their purposes, in their nodes and slots (all pairs of small
// numbers, and some large ones), or in one bit of their seeds, streams or lengths.
template <class MakeT>
std::int64_t check_chance_points(MakeT make) {
  std::vector<chance_point> points;
  const auto add = [&](chance_point p) {
    for (const purpose use : {purpose::draft, purpose::accept, purpose::residual, purpose::select})
      p.at.use = use, points.push_back(p);
  };
  for (node_id node = 0; node < 40; ++node) {
    for (std::int32_t slot = 0; slot < 40; ++slot)
      add({.at = {node, slot}});
  }
  for (int bit = 6; bit < 20; ++bit)
    add({.at = {1 << bit, 0}}), add({.at = {1 << bit, 1}}), add({.at = {0, 1 << bit}}), add({.at = {1, 1 << bit}});
  for (int bit = 0; bit < 64; ++bit)
    add({.seed = 11 ^ std::uint64_t{1} << bit});
  for (int bit = 0; bit < 32; ++bit)
    add({.stream = std::uint32_t{1} << bit}), add({.length = std::uint32_t{1} << bit});
  std::map<std::uint64_t, const chance_point*> known;
  for (const chance_point& p : points) {
    std::uint64_t outcomes = 0;
    for (std::uint32_t i = 0; i < 64; ++i)
      outcomes = outcomes << 1 | (make(p.seed, p.stream, p.length + i).accept(0.5, 1, p.at) ? 1U : 0U);
    const auto [same, is_new] = known.emplace(outcomes, &p);
    require_law(is_new, "decisions at two points have the same outcome in all of 64 rounds: ", in_words(*same->second),
                "; and ", in_words(p), ".");
  }
  return static_cast<std::int64_t>(points.size());
}

}  // namespace detail

//! Checks the laws of Chance: accept(), pick() and index() happen as often as they should, an outcome of probability 0
//! never, and decisions whose keys, rounds, streams or seeds differ are independent: they have equal outcomes in half
//! of many rounds, and no two of 7,000 decisions have equal outcomes in all of 64 rounds.
//!
//!     testing::check_chance([](auto seed, auto stream, auto length) { return philox_chance(seed, stream, length); });
//!
//! Complexity  900,000 decisions
//! Pre         make(seed, stream, length) returns the chance of a round
//! Errors      law_error with what is off: how often it happened, and how often it should have
template <class MakeT>
coverage check_chance(MakeT make) {
  constexpr std::int32_t n_rounds = 2500, n_nodes = 4, n_slots = 4;
  const double weights[] = {0.25, 0, 2, 0.75, 0, 1};  // their sum is 4
  double picked[6] = {}, indexed[3] = {}, accepted[3] = {}, n = 0;
  const double ratios[] = {0, 0.3, 1};
  // Decisions that must be independent differ in one of these alone.
  const char* const names[] = {"slot", "node", "purpose", "length", "stream", "seed"};
  double together[6] = {};
  for (std::int32_t round = 0; round < n_rounds; ++round) {
    const auto length = static_cast<std::uint32_t>(round);
    auto chance = make(std::uint64_t{11}, std::uint32_t{0}, length);
    auto later = make(std::uint64_t{11}, std::uint32_t{0}, length + n_rounds);
    auto beside = make(std::uint64_t{11}, std::uint32_t{1}, length);
    auto other = make(std::uint64_t{12}, std::uint32_t{0}, length);
    for (node_id node = 0; node < n_nodes; ++node) {
      for (std::int32_t slot = 0; slot < n_slots; ++slot) {
        const chance_key at{node, slot, purpose::accept};
        const std::int32_t i = chance.pick(std::span<const double>(weights), {node, slot, purpose::draft});
        require_law(i >= 0 && i < 6 && weights[i] > 0, "pick() returns ", i, ", which has no weight.");
        ++picked[i];
        const std::int32_t j = chance.index(3, {node, slot, purpose::select});
        require_law(j >= 0 && j < 3, "index(3) returns ", j, ".");
        ++indexed[j];
        for (std::size_t r = 0; r < 3; ++r)
          accepted[r] +=
              chance.accept(ratios[r], 1, {node + static_cast<node_id>(r + 1) * n_nodes, slot, purpose::accept}) ? 1
                                                                                                                 : 0;
        const bool half = chance.accept(0.5, 1, at);
        const bool others[] = {chance.accept(0.5, 1, {node, slot + n_slots, purpose::accept}),
                               chance.accept(0.5, 1, {node + 5 * n_nodes, slot, purpose::accept}),
                               chance.accept(0.5, 1, {node, slot, purpose::residual}),
                               later.accept(0.5, 1, at),
                               beside.accept(0.5, 1, at),
                               other.accept(0.5, 1, at)};
        for (std::size_t k = 0; k < 6; ++k)
          together[k] += half == others[k] ? 1 : 0;
        ++n;
      }
    }
  }
  coverage covered;
  const std::int64_t n_points = detail::check_chance_points(make);
  const auto check = [&](double count, double probability, const auto&... what) {
    const double error = std::sqrt(n * probability * (1 - probability));
    const double z = error > 0 ? std::abs(count - n * probability) / error : count == n * probability ? 0 : 1e9;
    covered.largest_z = z > covered.largest_z ? z : covered.largest_z;
    require_law(z < 6, what..., " in ", count, " of ", n, " decisions, and should in ", n * probability, ".");
  };
  for (std::size_t i = 0; i < 6; ++i)
    check(picked[i], weights[i] / 4, "pick() returns index ", i, " of weight ", weights[i], " of 4");
  for (std::size_t j = 0; j < 3; ++j)
    check(indexed[j], 1.0 / 3, "index(3) returns ", j);
  for (std::size_t r = 0; r < 3; ++r)
    check(accepted[r], ratios[r], "accept(", ratios[r], ", 1) holds");
  for (std::size_t k = 0; k < 6; ++k)
    check(together[k], 0.5, "decisions that differ in their ", names[k], " alone have the same outcome");
  covered.n_rounds = n_rounds;
  covered.n_keys = static_cast<std::int64_t>(n) * 12 + n_points;
  return covered;
}

}  // namespace espalier::testing
