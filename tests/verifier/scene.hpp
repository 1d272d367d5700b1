// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

using rows_type = std::vector<std::vector<double>>;

struct given_rows {
  rows_type rows;
  bool has(espalier::node_id u) const { return !rows[static_cast<std::size_t>(u)].empty(); }
  std::span<const double> row(espalier::node_id u) const { return rows[static_cast<std::size_t>(u)]; }
  espalier::token_id argmax(espalier::node_id) const { return 0; }
};

// Two tokens one after the other, drawn from fair rows over four.
struct scene {
  scene() : drawn(2) {
    drawn.reset(0);
    drawn.draw(drawn.draw(0, 1, 0), 2, 0);
    p.rows = q.rows = rows_type(3, std::vector<double>(4, 0.25));
  }
  espalier::tree<> drawn;
  given_rows p, q;
};

template <class PartT>
espalier::verdict verify(const PartT& part, scene& s, std::uint64_t seed = 0) {
  espalier::philox_chance chance(seed, 0, 0);
  auto verifier = part.make();
  return verifier.verify(s.drawn, s.q, s.p, chance);
}
