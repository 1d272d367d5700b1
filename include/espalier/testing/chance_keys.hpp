// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/testing/row_drafter.hpp"

namespace espalier::testing {

//! Philox chance that records every key it is asked with. A key used twice gives two decisions the same number, which
//! no enumeration can detect. A pick() among weights that are all 0 decides nothing, and its key does not count as
//! used.
//!
//! Errors      law_error at the second use of a key, and if the policy decides with a purpose other than draft or the
//!             verifier with draft
class recorded_chance {
 public:
  explicit recorded_chance(philox_chance chance) : chance_(chance) {}

  bool accept(double p, double q, chance_key at) {
    record(at);
    return chance_.accept(p, q, at);
  }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) {
    const std::int32_t i = chance_.pick(weights, at);
    if (i >= 0) record(at);
    return i;
  }
  std::int32_t index(std::int32_t n, chance_key at) {
    record(at);
    return chance_.index(n, at);
  }

  //! Marks the beginning of verification: further decisions are the verifier's.
  void start_verifying() { drafts_ = false; }

 private:
  void record(chance_key at) {
    require_law((at.use == purpose::draft) == drafts_, drafts_ ? "the policy" : "the verifier",
                " decides something at node ", at.node, ", slot ", at.slot, " for a purpose that is ",
                drafts_ ? "not draft." : "draft.");
    require_law(used_.insert({at.node, at.slot, at.use}).second, drafts_ ? "the policy" : "the verifier",
                " decides two things with one key: node ", at.node, ", slot ", at.slot, ", purpose ",
                static_cast<int>(at.use), ". Both get the same random number.");
  }

  philox_chance chance_;
  bool drafts_ = true;
  std::set<std::tuple<node_id, std::int32_t, purpose>> used_;
};

//! Checks on 60 rounds that drafting and verifying use every chance_key at most once in a round.
//!
//! Errors      law_error that names the key that is used twice, or whose purpose is wrong (see recorded_chance)
template <class PolicyT, class VerifierT>
void check_chance_keys(PolicyT policy, VerifierT verifier) {
  constexpr std::int32_t vocab = 6;
  const auto row_of = [](std::uint32_t key) {
    std::vector<double> row(vocab);
    for (double& x : row)
      x = 1 + static_cast<double>((key = key * 1664525U + 1013904223U) >> 28);
    return normalised(row);
  };
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    row_drafter drafter(vocab, [&](std::span<const token_id> path) {
      return row_of(seed + 7 * static_cast<std::uint32_t>(path.size()) + static_cast<std::uint32_t>(path.back()));
    });
    drafter.reserve(most_asked(policy));
    recorded_chance chance{philox_chance(seed, 0, 0)};
    tree<> t(most_asked(policy));
    t.reset(0);
    grow(policy, t, drafter, chance);
    chance.start_verifying();
    reserve_verifier(verifier, policy.max_nodes(), vocab);
    detail::target_rows<double> target;
    for (node_id u = 0; u < t.size(); ++u)
      target.rows.push_back(row_of(1000 * seed + static_cast<std::uint32_t>(u)));
    verifier.verify(t.view(), drafter.rows(), target, chance);
  }
}

}  // namespace espalier::testing
