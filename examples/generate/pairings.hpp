// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"

namespace generate {

//! A way to write, by the names of its parts in the registry.
struct pairing {
  std::string method;
  std::string verifier;
};

//! What the registry says of a method, without its type.
struct known_method {
  std::string_view name;
  bool drafts;                         //!< it asks a drafter
  bool draws;                          //!< its trees are drawn, and not chosen
  bool takes_runs;                     //!< it grows from runs of tokens without probabilities, too
  std::vector<std::string> verifiers;  //!< lossless for its trees; the one to take by default at temperature 0 first
  std::vector<std::string> sampling_verifiers;  //!< those that draw the text; the one to take by default first
};

//! All of them, in the registry's order. Computed once.
const std::vector<known_method>& known_methods();

//! Errors      usage_error where the registry has no method of this name
const known_method& find_method(std::string_view name);

//! Whether a drafter gives runs of tokens without probabilities.
constexpr bool is_sequence(drafter_kind drafter) {
  return drafter == drafter_kind::prompt_lookup || drafter == drafter_kind::ngram;
}

//! The verifier that a method has where none is named.
const std::string& default_verifier(std::string_view method, bool draws_text);

//! What to write with: each method of the arguments with each verifier of theirs that is lossless for it, or with its
//! default.
//!
//! Errors      usage_error where a method that was named has no verifier among those that were, or asks for
//!             probabilities that the drafter does not have
std::vector<pairing> pairings(const arguments& arguments);

//! Names with commas between them.
std::string listed(const std::vector<std::string>& names);

}  // namespace generate
