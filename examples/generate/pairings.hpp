// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"

namespace generate {

//! A method and a verifier to write with, by their names in the registry.
struct pairing {
  std::string method;
  std::string verifier;
};

//! The data of a method in the registry, without its type.
struct known_method {
  std::string_view name;
  bool drafts;                                  //!< true if it asks a drafter
  bool draws;                                   //!< true if its trees are drawn, false if they are chosen
  bool takes_runs;                              //!< true if it can grow from runs of tokens without probabilities
  std::vector<std::string> verifiers;           //!< those lossless for its trees; the default at temperature 0 first
  std::vector<std::string> sampling_verifiers;  //!< those that draw the text; the default first
};

//! All known methods, in the registry's order. Computed once.
const std::vector<known_method>& known_methods();

//! The known method of this name.
//!
//! Errors      usage_error if the registry has none
const known_method& find_method(std::string_view name);

//! True if a drafter gives runs of tokens without probabilities.
constexpr bool is_sequence(drafter_kind drafter) {
  return drafter == drafter_kind::prompt_lookup || drafter == drafter_kind::ngram;
}

//! The verifier of a method if none is named.
const std::string& default_verifier(std::string_view method, bool draws_text);

//! The pairs to write with: each method of the arguments with each verifier of theirs that is lossless for it, or with
//! its default.
//!
//! Errors      usage_error if a named method fits none of the named verifiers, or needs probabilities that the drafter
//!             does not have
std::vector<pairing> pairings(const arguments& arguments);

//! Names joined by commas.
std::string listed(const std::vector<std::string>& names);

}  // namespace generate
