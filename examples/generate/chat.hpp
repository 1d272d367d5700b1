// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <istream>
#include <ostream>

#include "../models/model_set.hpp"
#include "arguments.hpp"

namespace generate {

//! Talks: reads what is said, a line at a time until the input ends, and streams the model's answers. A line "/new"
//! begins another chat. What was said before stays in the caches, as far as it is told again in the same tokens.
//!
//! Errors      what the chat's template and the parts raise
void chat(models::model_set& models, const arguments& arguments, std::istream& in, std::ostream& out);

}  // namespace generate
