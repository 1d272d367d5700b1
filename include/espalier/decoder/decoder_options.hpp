// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/seeds.cpp
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/text_options.hpp"

#if ESPALIER_HOSTED
#include <optional>

#include "espalier/cost/cost_model.hpp"
#endif

namespace espalier {

//! Options of a decoder, on the host and on the device.
struct decoder_options {
  text_options text{};                       //!< for texts that begin without their own
  node_order order = node_order::insertion;  //!< order of the tree's rows in the forward pass
  std::int32_t sequence = 0;                 //!< the sequence of the KV store that texts use; what is written does not
                                             //!< depend on it
  std::int32_t prefill_rows = 64;            //!< most tokens of a prompt that the target reads in one step(), and so in
                                             //!< one pass
  bool replay = true;  //!< on the device, whether rounds are captured as graphs; false for backends that a graph cannot
                       //!< capture. On the host it has no meaning
#if ESPALIER_HOSTED
  std::optional<cost_model> costs{};  //!< what passes cost, for time_budget alone
  double time_budget = 0;             //!< on the host: most seconds of a pass of the target; 0: no limit. A round
                                      //!< drafts no more tokens than fit into this time by `costs`, but its pass always
                                      //!< has the rows that the text itself needs
#endif

  //! Returns the options that this capacity is made for.
  static decoder_options of(const static_capacity& c) {
    return {.text = {.sampling = c.target}, .prefill_rows = c.prefill_rows};
  }

  static constexpr void describe(auto see) {
    see(option{"order", &decoder_options::order, "of a tree's rows in the forward pass"});
    see(option{"prefill_rows", &decoder_options::prefill_rows, "rows of one pass over a prompt", 1, 4096});
  }
};

}  // namespace espalier
