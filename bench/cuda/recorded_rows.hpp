// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/sampling/lazy_rows.hpp"

namespace bench {

//! The draft's rows; the rows that a verifier asks for are recorded.
struct recorded_draft {
  static constexpr bool are_distributions = true;
  const std::vector<float>* rows;
  std::size_t vocab;
  std::set<espalier::node_id>* asked;

  bool has(espalier::node_id) const { return true; }
  std::span<const float> row(espalier::node_id u) const {
    asked->insert(u);
    return std::span(*rows).subspan(static_cast<std::size_t>(u) * vocab, vocab);
  }
};

//! The target's rows; the rows that a verifier asks for are recorded.
struct recorded_target {
  static constexpr bool are_distributions = true;
  espalier::lazy_rows<float>* rows;
  std::set<espalier::node_id>* asked;

  std::span<const float> row(espalier::node_id u) {
    asked->insert(u);
    return rows->row(u);
  }
  espalier::token_id argmax(espalier::node_id u) {
    asked->insert(u);
    return rows->argmax(u);
  }
};

}  // namespace bench
