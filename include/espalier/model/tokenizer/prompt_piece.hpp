// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

namespace espalier {

//! A piece of a prompt. Special tokens are recognised only in trusted pieces: the marks of a chat template are trusted;
//! the words of a user, a file or a model are plain text.
struct prompt_piece {
  std::string text;
  bool is_trusted = false;

  friend bool operator==(const prompt_piece&, const prompt_piece&) = default;
};

}  // namespace espalier
