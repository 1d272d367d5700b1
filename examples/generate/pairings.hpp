// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "parts.hpp"

namespace generate {

//! The names of a method and of the verifier to write with.
struct pairing {
  std::string method;
  std::string verifier;
};

//! The drafter that these resolved paths are for: the one that --draft names, the model or the head beside the target,
//! else the block draft there, else the text itself.
drafter_kind drafter_beside(const models::model_paths& paths);

//! The method of this name.
//!
//! Errors      usage_error if there is none
const method& find_method(const parts& offered, std::string_view name);

//! The verifiers that are lossless for a method's trees, the default first: at temperature 0, or those that draw texts.
//! Without verifiers that change the text.
std::vector<std::string> verifiers_for(const parts& offered, const method& grown, bool draws_text);

//! The pairs to write with: each method of the arguments with each verifier of theirs that is lossless for it or changes
//! the text, or with its default.
//!
//! Errors      usage_error if a named method fits none of the named verifiers, or cannot grow from what the drafter
//!             gives
std::vector<pairing> pairings(const arguments& arguments);

//! Names joined by commas.
std::string listed(const std::vector<std::string>& names);

}  // namespace generate
