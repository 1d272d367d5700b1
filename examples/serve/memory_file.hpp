// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/drafter/text_counts.hpp"

namespace serve {

namespace detail {

constexpr std::array<char, 16> memory_mark{'e', 's', 'p', 'a', 'l', 'i', 'e', 'r',
                                           ' ', 'm', 'e', 'm', 'o', 'r', 'y', '1'};

}  // namespace detail

//! Writes what a memory holds to a file, which is there as a whole or as it was before: 16 bytes that say what it is,
//! the size of the vocabulary, and the memory's texts(), as 32-bit numbers of this machine.
//!
//! Errors      espalier::model_error if it cannot be written
inline void save_memory(const espalier::text_memory& memory, std::int32_t vocab, const std::string& path) {
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  const std::vector<espalier::token_id> texts = memory.texts();
  file.write(detail::memory_mark.data(), detail::memory_mark.size());
  file.write(reinterpret_cast<const char*>(&vocab), sizeof(vocab));
  file.write(reinterpret_cast<const char*>(texts.data()),
             static_cast<std::streamsize>(texts.size() * sizeof(texts[0])));
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0)
    espalier::raise<espalier::model_error>("the memory cannot be written to ", path, ".");
}

//! Adds the texts of a file of save_memory to a memory. A file that does not exist holds none.
//!
//! Errors      espalier::model_error for another file, one that is damaged, and one of another vocabulary; nothing is
//!             then added
inline void load_memory(espalier::text_memory& memory, std::int32_t vocab, const std::string& path) {
  if (!std::filesystem::exists(path)) return;
  const auto refuse = [&](const std::string& why) {
    espalier::raise<espalier::model_error>(path, " ", why, "; a memory is a file that serve --memory-file wrote.");
  };
  std::ifstream file(path, std::ios::binary);
  std::array<char, detail::memory_mark.size()> mark{};
  std::int32_t of_file = 0;
  file.read(mark.data(), mark.size());
  file.read(reinterpret_cast<char*>(&of_file), sizeof(of_file));
  if (!file || mark != detail::memory_mark) refuse("is no memory");
  if (of_file != vocab) {
    refuse("has tokens of a vocabulary of " + std::to_string(of_file) + ", but the model has one of " +
           std::to_string(vocab));
  }
  const auto bytes = std::filesystem::file_size(path) - mark.size() - sizeof(of_file);
  std::vector<espalier::token_id> texts(bytes / sizeof(espalier::token_id));
  file.read(reinterpret_cast<char*>(texts.data()), static_cast<std::streamsize>(texts.size() * sizeof(texts[0])));
  if (!file || bytes % sizeof(texts[0]) != 0 || (!texts.empty() && texts.back() != -1)) refuse("is cut short");
  for (const espalier::token_id t : texts)
    if (t < -1 || t >= vocab) refuse("is damaged: it has token " + std::to_string(t));
  std::span<const espalier::token_id> left(texts);
  while (!left.empty()) {
    std::size_t n = 0;
    while (left[n] >= 0)
      ++n;
    memory.add(left.first(n));
    left = left.subspan(n + 1);
  }
}

}  // namespace serve
