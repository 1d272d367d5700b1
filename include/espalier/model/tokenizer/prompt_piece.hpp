// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier {

//! A piece of a prompt, and whether what looks like a special token in it is one: in a chat template's own marks it is,
//! in what a user, a file or a model says it is plain text.
struct prompt_piece {
  std::string text;
  bool is_trusted = false;

  friend bool operator==(const prompt_piece&, const prompt_piece&) = default;
};

}  // namespace espalier
