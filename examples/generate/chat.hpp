// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <istream>
#include <ostream>

#include "../models/model_set.hpp"
#include "arguments.hpp"

namespace generate {

//! Runs a chat: reads one message a line until the input ends, and streams the model's answers. A line "/new" begins
//! another chat. The caches keep the rows of earlier messages, as far as their tokens stay the same.
//!
//! Errors      those of the chat's template and of the parts
void chat(models::model_set& models, const arguments& arguments, std::istream& in, std::ostream& out);

}  // namespace generate
