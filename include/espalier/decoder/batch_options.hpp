// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier {

//! Of a batch_decoder, beside its five parts.
struct batch_options {
  text_options text{};                       //!< of texts that are added without their own
  node_order order = node_order::insertion;  //!< of a tree's rows in the forward pass
  std::int32_t max_texts = 8;                //!< served at once: sequences 0 to max_texts - 1 of both caches
  std::int32_t max_waiting = 1024;           //!< texts that may wait for a place
  std::int32_t max_ended = 64;               //!< texts that are known after their end, the latest ones
  std::int32_t max_rows = 1 << 20;           //!< of the target's pass; the backend's max_rows where that is less
  std::int32_t prompt_rows = 64;             //!< of a pass, for prompts that are being read
  bool share_budget = true;  //!< whether the trees of all texts share a round's budget, where the policy can: faster,
                             //!< but then a tree, and with it the words of a text that is sampled by another verifier
                             //!< than target_only, depend on the other texts. Their distribution does not. On the
                             //!< device with any policy, where rows are short or costs are given; without it rows are
                             //!< divided evenly there

  static constexpr void describe(auto see) {
    using self = batch_options;
    see(option{"order", &self::order, "of a tree's rows in the forward pass"});
    see(option{"max_texts", &self::max_texts, "texts served at once", 1, 4096});
    see(option{"max_waiting", &self::max_waiting, "texts that may wait for a place", 0, 1 << 20});
    see(option{"max_ended", &self::max_ended, "texts known after their end", 0, 1 << 20});
    see(option{"max_rows", &self::max_rows, "rows of the target's pass at most", 1, 1 << 20});
    see(option{"prompt_rows", &self::prompt_rows, "rows of a pass for prompts", 1, 4096});
  }
};

namespace detail {

// Rows of a pass at most. Errors: option_error where a round may not fit.
template <class BackendT>
std::int32_t rows_of_pass(const batch_options& options, const BackendT& backend, std::int32_t max_nodes) {
  const std::int32_t most = (std::min)(options.max_rows, max_rows_of(backend));
  if (most <= max_nodes) {
    raise<option_error>("a pass takes at most ", most, " rows, but a round of this policy up to ", max_nodes + 1,
                        ": lower the policy's budget, or raise max_rows here or of the backend.");
  }
  return most;
}

}  // namespace detail

}  // namespace espalier
