// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ostream>

#include "../models/model_set.hpp"
#include "arguments.hpp"

namespace generate {

//! Continues every prompt with one method: streams the text or draws the trees, then writes a table, or one JSON
//! object; and the pictures that were asked for.
void write_text(models::model_set& models, const arguments& arguments, std::ostream& out);

}  // namespace generate
