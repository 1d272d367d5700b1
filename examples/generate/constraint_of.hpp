// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "../models/text_rule.hpp"
#include "espalier/processor/constrained.hpp"
#include "text_task.hpp"

namespace generate {

using text_constraint = espalier::constrained<models::text_rule>;

//! The constraint that the arguments put on a text; none by default.
//!
//! Errors      input_error for an invalid pattern, schema or grammar; usage_error for a file that cannot be read
text_constraint constraint_of(const text_task& work);

}  // namespace generate
