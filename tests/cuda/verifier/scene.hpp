// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier_test {

//! How a random tree is drafted.
struct scene_options {
  espalier::regime how = espalier::regime::iid;
  std::int32_t vocab = 33;
  std::int32_t draws = 12;
  double lean = 0.5;       //!< above 0: deep trees
  float unlike = 1;        //!< how much target and draft differ; 0: p = q
  std::int32_t zeros = 0;  //!< tokens to which the draft gives no probability
  std::int32_t holes = 0;  //!< tokens at minus infinity in the target's logits
};

//! A random tree with the rows it was drawn from and the target's logits after each node.
struct scene {
  scene(const scene_options& options, std::uint32_t seed)
      : vocab(options.vocab), tree(options.draws), logits(size(options.draws + 1)), draft(logits.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto n = static_cast<std::size_t>(vocab);
    std::vector<float> disturbed(n);
    for (std::int32_t u = 0; u <= options.draws; ++u) {
      for (std::size_t t = 0; t < n; ++t) {
        const float logit = 2.5F * normal(random);
        logits[size(u) + t] = logit;
        disturbed[t] = logit + options.unlike * normal(random);
      }
      const std::span<float> q = std::span(draft).subspan(size(u), n);
      espalier::softmax(std::span<const float>(disturbed), 1.0F, q, u);
      for (std::int32_t z = 0; z < options.zeros; ++z)
        q[random() % n] = 0;
      for (std::int32_t z = 0; z < options.holes; ++z)
        logits[size(u) + random() % (n - 1)] = -std::numeric_limits<float>::infinity();
      float total = 0;
      for (const float x : q)
        total += x;
      if (total == 0) total = q[0] = 1;
      for (float& x : q)
        x /= total;
    }
    const espalier::philox_chance chance(seed, 7, 0);
    tree.reset(0);
    for (std::int32_t i = 0; !tree.full(); ++i) {
      const std::int32_t last = tree.size() - 1;
      const auto span = static_cast<std::uint32_t>(std::max(1.0, (last + 1) * (1 - options.lean)));
      const bool is_path = options.how == espalier::regime::single_path;
      const auto u = is_path ? last : static_cast<espalier::node_id>(last - static_cast<int>(random() % span));
      const espalier::chance_key at{i, 1, espalier::purpose::draft};
      if (options.how == espalier::regime::without_replacement) {
        const espalier::token_id token = chance.pick(espalier::undrawn(tree.view(), u, row(u)), at);
        if (token >= 0) tree.append(u, token, 0);
      } else {
        tree.draw(u, chance.pick(row(u), at), 0);
      }
    }
  }

  std::size_t size(std::int32_t rows) const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab); }
  std::span<const float> row(espalier::node_id u) const {
    return std::span(draft).subspan(size(u), static_cast<std::size_t>(vocab));
  }

  std::int32_t vocab;
  espalier::tree<> tree;
  std::vector<float> logits;
  std::vector<float> draft;
};

}  // namespace espalier_test
