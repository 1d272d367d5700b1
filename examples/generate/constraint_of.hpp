// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "../models/text_rule.hpp"
#include "espalier/processor/constrained.hpp"
#include "text_task.hpp"

namespace generate {

using text_constraint = espalier::constrained<models::text_rule>;

//! What the arguments let a text be: anything, where they do not say.
//!
//! Errors      input_error for a pattern, schema or grammar that is none; usage_error for a file that cannot be read
text_constraint constraint_of(const text_task& work);

}  // namespace generate
