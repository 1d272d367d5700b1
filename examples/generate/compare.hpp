// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ostream>

#include "../models/model_set.hpp"
#include "arguments.hpp"

namespace generate {

//! Continues every prompt with every method, the methods taking turns, several times. Shows the texts of one method
//! while they are written, then a table of all methods, or JSON if the arguments say so. Returns false if a text
//! differs from plain decoding's at temperature 0.
//!
//! Post        false where a text differs from plain decoding's at temperature 0
bool compare(models::model_set& models, const arguments& arguments, std::ostream& out);

}  // namespace generate
