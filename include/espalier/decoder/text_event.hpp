// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <exception>

#include "espalier/decoder/round.hpp"

namespace espalier {

//! The number of a text among those of a batch_decoder: 0, 1, 2, ... in the order in which they were added.
using text_id = std::int64_t;

//! What one text did in a step of a batch_decoder. Views are valid until the next step, or until the text is resumed or
//! cancelled.
struct text_event {
  text_id id = -1;
  round_record round{};        //!< without seconds: see step_record
  std::exception_ptr error{};  //!< what a part has thrown: the text waits at its last committed token until resume()
};

}  // namespace espalier
