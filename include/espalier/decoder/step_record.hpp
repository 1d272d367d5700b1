// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/decoder/round.hpp"

namespace espalier {

//! What one step of a batch_decoder took, all its texts together.
struct step_record {
  std::int32_t rounds = 0;        //!< texts that were written
  std::int32_t committed = 0;     //!< tokens that they were written by
  std::int32_t drafted = 0;       //!< draft tokens sent to the target
  std::int32_t draft_passes = 0;  //!< of all drafters that share passes
  std::int32_t target_rows = 0;   //!< of the one pass of the target, prompts included
  std::int32_t prompt_rows = 0;   //!< those of prompts, but for the last chunk, which a round takes with it
  std::int32_t preempted = 0;     //!< texts that gave up their place, since pages had run out
  station_seconds seconds{};
};

}  // namespace espalier
