// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/draft_head_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// Returns the token of each row of a draft's output matrix, from the tensors d2t and, if it is there, t2d; empty if the
// rows are of all tokens. In a GGUF file d2t holds tokens, in others each token's distance from the row's number.
//
// Errors: model_error for tables that are missing, that have another shape or type, or that contradict one another
inline std::vector<token_id> read_draft_tokens(const model_config& c, tensor_source& file) {
  std::vector<token_id> tokens;
  const int rows = c.head_size > 0 ? c.head_size : c.vocab_size;
  const tensor_entry *rows_to_tokens = file.find("d2t"), *taken = file.find("t2d");
  if (!rows_to_tokens && rows == c.vocab_size) return tokens;
  const auto refuse = [&](const char* name, const auto&... pieces) {
    raise<model_error>(file.where(), ": tensor \"", name, "\" ", pieces...);
  };
  if (!rows_to_tokens) {
    raise<model_error>(file.where(), " lacks tensor \"d2t\": the head has ", rows, " of the ", c.vocab_size,
                       " tokens.");
  }
  if (rows_to_tokens->dtype != "I64" ||
      rows_to_tokens->shape != std::vector<std::uint64_t>{static_cast<std::uint64_t>(rows)})
    refuse("d2t", "must have dtype I64 and one number for each of the ", rows, " rows of the head.");
  std::vector<std::int64_t> from(static_cast<std::size_t>(rows));
  file.read(*rows_to_tokens, 0, from.data(), from.size() * sizeof(std::int64_t));
  std::vector<char> is_taken(static_cast<std::size_t>(c.vocab_size), 0);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::int64_t first = c.is_gguf() ? 0 : static_cast<std::int64_t>(i);  // the token that a 0 stands for
    if (from[i] < -first || from[i] >= c.vocab_size - first) {
      refuse("d2t", "moves row ", i, " by ", from[i] + first - static_cast<std::int64_t>(i),
             ", to no token of the vocabulary of ", c.vocab_size, ".");
    }
    tokens.push_back(static_cast<token_id>(first + from[i]));
    char& one = is_taken[static_cast<std::size_t>(tokens.back())];
    if (one != 0) refuse("d2t", "gives token ", tokens.back(), " to two rows; row ", i, " is the second.");
    one = 1;
  }
  if (!taken) return tokens;
  if (taken->dtype != "BOOL" || taken->shape != std::vector<std::uint64_t>{static_cast<std::uint64_t>(c.vocab_size)})
    refuse("t2d", "must have dtype BOOL and one number for each of the ", c.vocab_size, " tokens.");
  std::vector<char> said(is_taken.size());
  file.read(*taken, 0, said.data(), said.size());
  const auto other = std::mismatch(said.begin(), said.end(), is_taken.begin(), [](char a, char b) {
                       return (a != 0) == (b != 0);
                     }).first;
  if (other != said.end())
    refuse("t2d", "and \"d2t\" do not agree on whether token ", other - said.begin(), " has a row.");
  return tokens;
}

// Checks that a draft whose rows are of some tokens alone has an output matrix of its own, the tensor `head`.
//
// Errors: model_error that names the draft's file, the target's, and how many tokens their rows are of
inline void require_own_head(const model_config& c, const tensor_source& file, const char* head,
                             const std::string& target) {
  if (c.has_head || c.head_size == 0 || c.head_size == c.vocab_size) return;
  raise<model_error>(file.where(), " lacks tensor \"", head, "\", and the head of the target ", target,
                     " has rows for ", c.vocab_size, " tokens, not ", c.head_size, ".");
}

}  // namespace espalier::detail
