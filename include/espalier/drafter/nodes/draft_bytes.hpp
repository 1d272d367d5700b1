// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/drafter/nodes/node_columns.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier::detail {

// What an autoregressive drafter takes of an arena with its parts, where states are not kept.
template <class NumberT, class BackendT, class KVStoreT>
constexpr std::size_t draft_bytes(const static_capacity& c) {
  const auto nodes = static_cast<std::size_t>(c.nodes) + 1;
  const std::int32_t rows = (std::max)(c.nodes, prefill::default_chunk);
  static_capacity own = c;
  if (c.draft_cache_row >= 0) own.cache_row = c.draft_cache_row;
  return arena::bytes_of_part<BackendT>(own) + arena::bytes_of_part<KVStoreT>(own) +
         arena::bytes_of<token_id>(static_cast<std::size_t>(c.context) + nodes + 1) +
         arena::bytes_of<NumberT>(nodes * static_cast<std::size_t>(c.vocabulary)) +
         2 * arena::bytes_of<std::int32_t>(nodes) + node_columns::bytes(c.nodes) + forward_batch::bytes(rows, rows) +
         prefill::bytes(rows) + sampler<NumberT>::bytes(c.draft, c.vocabulary);
}

}  // namespace espalier::detail
