// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/sampling/softmax.hpp"

namespace bench {

//! The way in which the draws of a tree are made.
enum class drafted_as { single_path, independent, without_replacement };

//! A tree of drawn tokens with the rows of both models by node. The draft's rows are the softmax of irregular logits,
//! and the target's logits are a disturbed copy of these. A single path is one path; the other trees have four paths
//! that part at the root.
//!
//! Shapes      target_logits, draft_rows: [budget + 1][vocab]
struct drafted_scene {
  espalier::tree<> drawn;
  std::vector<float> target_logits, draft_rows;

  drafted_scene(std::int32_t budget, std::size_t vocab, drafted_as how, std::uint32_t seed)
      : drawn(budget), target_logits(static_cast<std::size_t>(budget + 1) * vocab), draft_rows(target_logits.size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    // A little more than one row of random numbers for each model; each row takes them from another beginning.
    std::vector<float> wide(vocab + 8191), narrow(vocab + 4099), logits(vocab);
    for (float& x : wide)
      x = 3.5F * normal(random);
    for (float& x : narrow)
      x = 0.8F * normal(random);
    for (std::size_t u = 0; u <= static_cast<std::size_t>(budget); ++u) {
      const std::size_t first = random() % wide.size(), second = random() % narrow.size();
      for (std::size_t t = 0; t < vocab; ++t) {
        logits[t] = wide[(first + t) % wide.size()];
        target_logits[u * vocab + t] = logits[t] + narrow[(second + t) % narrow.size()];
      }
      espalier::softmax(std::span<const float>(logits), 1.0F, std::span(draft_rows).subspan(u * vocab, vocab),
                        static_cast<std::int32_t>(u));
    }
    const espalier::philox_chance chance(seed, 0, 0);
    drawn.reset(0);
    for (espalier::node_id u = 0; u < drawn.size() && !drawn.full(); ++u) {
      const float* row = draft_rows.data() + static_cast<std::size_t>(u) * vocab;
      std::vector<float> left(row, row + vocab);
      const int depth = drawn.view().depth[u];
      const int n = how == drafted_as::single_path                        ? 1
                    : u == 0                                              ? 4
                    : how == drafted_as::without_replacement && depth < 2 ? 2
                                                                          : 1;
      for (int i = 0; i < n && !drawn.full(); ++i) {
        const espalier::token_id token = chance.pick(std::span<const float>(left), {u, i, espalier::purpose::draft});
        drawn.draw(u, token, 0);
        if (how == drafted_as::without_replacement) left[static_cast<std::size_t>(token)] = 0;
      }
    }
  }
};

}  // namespace bench
