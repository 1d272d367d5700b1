// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/core/token.hpp"
#include "text_task.hpp"

namespace generate {

//! Builds the parts of a method to check its options.
//!
//! Errors      usage_error, option_error
void check_method(const arguments& arguments, const std::string& method, const std::string& verifier);

//! The most rows that a pass of the target should take at once for this method.
std::int32_t longest_pass(const arguments& arguments, const std::string& method);

//! Goes on from a prompt with a decoder made for the method, and tells `watch` about every round.
//!
//! Errors      what the parts raise
written_text write(models::model_set& models, const arguments& arguments, const std::string& method,
                   const std::string& verifier, std::span<const espalier::token_id> prompt, const round_watcher& watch);

}  // namespace generate
