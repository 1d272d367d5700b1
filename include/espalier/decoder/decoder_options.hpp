// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/tree_order.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier {

//! Of a decoder, beside its five parts.
struct decoder_options {
  sampling_options sampling{};               //!< of the target
  std::uint64_t seed = 0;                    //!< equal seeds write equal texts: give each sample its own
  node_order order = node_order::insertion;  //!< of the tree's rows in the forward pass
  std::int32_t sequence = 0;                 //!< in the KV store; also a part of the random key
};

}  // namespace espalier
