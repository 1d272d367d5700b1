// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/core/token.hpp"
#include "pairings.hpp"
#include "text_task.hpp"

namespace generate {

//! Makes a method and a verifier, to check their options.
//!
//! Errors      usage_error
void check_pairing(const arguments& arguments, const pairing& used);

//! Number of rows that a pass of the target should be able to take for this method.
std::int32_t longest_pass(const arguments& arguments, const std::string& method);

//! Continues a prompt with a decoder made for the method, and calls `watch` with every round.
//!
//! Errors      those of the parts
written_text write(models::model_set& models, const arguments& arguments, const std::string& method,
                   const std::string& verifier, std::span<const espalier::token_id> prompt, const round_watcher& watch);

}  // namespace generate
