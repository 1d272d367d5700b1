// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/batch_decoder.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier {

//! Options of a batch_decoder, on the host and on the device.
struct batch_options {
  text_options text{};                       //!< for texts that are added without their own
  node_order order = node_order::insertion;  //!< order of a tree's rows in the forward pass
  std::int32_t max_texts = 8;                //!< texts served at once, in sequences 0 to max_texts - 1 of both caches
  std::int32_t max_waiting = 1024;           //!< texts that may wait for a place
  std::int32_t max_ended = 64;               //!< ended texts that are still known, the latest ones
  std::int32_t max_rows = 1 << 20;           //!< most rows of a pass of the target; the backend's limit if that is less
  std::int32_t prefill_rows = 64;            //!< most rows of a pass for prompts that are being read
  bool share_budget =
      true;            //!< true: the rows of a pass are shared out among the trees of all texts by what each node is
                       //!< expected to gain, on the host for a BudgetedPolicy, on the device for any policy. A tree
                       //!< then depends on the other texts, and so do the words of its text, unless its verifier is
                       //!< greedy or target_only; the words' distribution does not. false: a tree never depends on
                       //!< other texts; a round whose tree finds no room in a pass waits for the next
  bool replay = true;  //!< on the device, rounds are captured as graphs; false for backends that a graph cannot
                       //!< capture. The host makes every pass anew
  std::optional<cost_model> costs{};  //!< on the device: where texts share a budget, a round has as many rows as pay
                                      //!< off by these costs. On the host they are for time_budget alone: a policy has
                                      //!< costs of its own (cost_aware)
  double time_budget = 0;  //!< most seconds of a pass of the target; 0: no limit. On the host alone: rounds draft no
                           //!< more tokens than fit into this time by `costs`, beside rows of prompts and the last
                           //!< token of each text, which are in the pass in any case. The texts of a pass share evenly
                           //!< the tokens that fit, so a tree depends on other texts, as with share_budget

  static constexpr void describe(auto see) {
    using self = batch_options;
    see(option{"order", &self::order, "order of a tree's rows in the forward pass"});
    see(option{"max_texts", &self::max_texts, "texts served at once", 1, 4096});
    see(option{"max_waiting", &self::max_waiting, "texts that may wait for a place", 0, 1 << 20});
    see(option{"max_ended", &self::max_ended, "texts known after their end", 0, 1 << 20});
    see(option{"max_rows", &self::max_rows, "rows of the target's pass at most", 1, 1 << 20});
    see(option{"prefill_rows", &self::prefill_rows, "rows of a pass for prompts", 1, 4096});
  }
};

//! Priority, policy and processor of one text of a batch_decoder, as far as they differ from the decoder's. PolicyT is
//! the policy on the host, and on the device the options of a TextwisePolicy.
template <class PolicyT, class ProcessorT = no_processor>
struct own_parts {
  std::int32_t priority = 0;              //!< texts of higher priority are served first
  std::optional<PolicyT> policy{};        //!< in place of the decoder's
  std::optional<ProcessorT> processor{};  //!< in place of the decoder's
};

namespace detail {

// Sets `part` to the text's own part, or else to a copy of the decoder's, which uses the memory of `part` again.
template <class PartT>
void take_own(PartT& part, std::optional<PartT>& own, const PartT& of_decoder) {
  if (own)
    part = std::move(*own);
  else
    part = of_decoder;
}

// Checks that a pass of max_rows rows has room for a whole tree. Errors: option_error if it has not.
inline void require_whole_tree(std::int32_t max_rows, std::int32_t max_nodes) {
  if (max_rows > max_nodes) return;
  raise<option_error>("a pass takes at most ", max_rows, " rows, but a round of this policy up to ", max_nodes + 1,
                      ": lower the policy's budget, or raise max_rows here or of the backend.");
}

}  // namespace detail

}  // namespace espalier
