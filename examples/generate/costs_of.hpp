// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <optional>

#include "assignment.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/selector/delayed_selector.hpp"

namespace generate {

//! The costs of the models' passes: those of --price, else read or measured for the first text that asks, since the
//! models are the same for all.
//!
//! Errors      those of reading the file
const espalier::cost_model& costs_of(const assignment& work);

//! The selector to use: from the named folder, else from the one of the models, else from the one next to the draft if
//! it was trained there for these models; none if there is none.
//!
//! Errors      usage_error if the named folder holds none; those of reading the file
std::optional<espalier::delayed_selector> selector_of(const assignment& work);

}  // namespace generate
