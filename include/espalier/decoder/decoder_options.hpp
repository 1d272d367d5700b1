// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier {

//! Of a decoder, beside its five parts.
struct decoder_options {
  text_options text{};                       //!< of texts that begin without their own
  node_order order = node_order::insertion;  //!< of the tree's rows in the forward pass
  std::int32_t sequence = 0;                 //!< in the KV store; no text depends on it
  std::int32_t prefill_chunk = 64;           //!< rows of one pass over a prompt, and of a step() that reads one

  //! Those that a capacity is made for.
  static constexpr decoder_options of(const static_capacity& c) {
    return {.text = {.sampling = c.target}, .prefill_chunk = c.chunk};
  }

  static constexpr void describe(auto see) {
    see(option{"order", &decoder_options::order, "of a tree's rows in the forward pass"});
    see(option{"prefill_chunk", &decoder_options::prefill_chunk, "rows of one pass over a prompt", 1, 4096});
  }
};

}  // namespace espalier
