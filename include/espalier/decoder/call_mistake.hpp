// SPDX-License-Identifier: BSL-1.0
// Tested by tests/compile_fail/mistake_prompt_of_int64.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/observer.hpp"

//! The mistakes that a call of a decoder's members can make with its arguments, with a sentence for each.
namespace espalier::detail {

ESPALIER_MISTAKE(prompt_of_other_type,
                 "a prompt is a range of token_id, which is std::int32_t: convert other numbers, and encode characters "
                 "with a tokenizer");
ESPALIER_MISTAKE(number_as_stop, "stop conditions are given by name: {.max_tokens = 100} for 100 new tokens");
ESPALIER_MISTAKE(observer_of_other_type, "an observer is called with a const round_record&: see Observer");
ESPALIER_MISTAKE(
    stop_strings_without_pieces,
    "stop strings need the text of each token: generate(prompt, stop, observer, piece_of) takes a function "
    "that gives it");

// A range that is no prompt, such as one of 64-bit numbers or of characters.
template <class PromptT>
concept OtherPrompt =
    !std::convertible_to<const PromptT&, std::span<const token_id>> && requires(const PromptT& prompt) {
  std::begin(prompt);
};

template <class ObserverT>
concept OtherObserver = !Observer<ObserverT>;

// Stop conditions with the members of stop_conditions, of which the strings are not left out. Without a heap there are
// none.
struct conditions_with_strings
#if ESPALIER_HOSTED
{
  struct given_strings {
    given_strings(const auto&, const auto&...);
  };
  std::int32_t max_tokens = 0;
  std::vector<token_id> tokens{};
  given_strings strings;
  bool show_string = true;
}
#endif
;

}  // namespace espalier::detail
