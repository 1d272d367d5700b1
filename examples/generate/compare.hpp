// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ostream>

#include "../models/model_set.hpp"
#include "arguments.hpp"

namespace generate {

//! Writes on from every prompt with every method, the methods taking turns, several times; shows the texts of one of
//! them as they come, then all methods side by side. As JSON where the arguments ask for it.
//!
//! Post        false where a text differs from plain decoding's at temperature 0
bool compare(models::model_set& models, const arguments& arguments, std::ostream& out);

}  // namespace generate
