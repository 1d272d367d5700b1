// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/core/util/checksum.hpp"
#include "espalier/drafter/translation/vocabulary_map.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace espalier {

namespace detail {

// Returns the bytes of a GGUF file before its first tensor: all that its tokenizer may depend on.
inline std::string read_gguf_head(const std::string& path) {
  std::uint64_t end = std::filesystem::file_size(path);
  const gguf_file file(path);
  for (const auto& [name, tensor] : file.entries())
    if (tensor.file == 0) end = (std::min)(end, tensor.offset);
  std::string head(static_cast<std::size_t>(end), '\0');
  std::ifstream(path, std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
  return head;
}

}  // namespace detail

//! Returns a name that tells the files of one tokenizer from those of another: where they are, and the FNV-1a hash (64
//! bits) of the files that tokenizer::load(path) may read, of a GGUF file without its tensors.
//!
//! Complexity  reads these files once
//! Errors      model_error for a file that cannot be read
inline std::string tokenizer_identity(const std::string& path) {
  std::string bytes;
  if (!std::filesystem::is_directory(path)) {
    bytes = gguf_file::begins_as_one(path) ? detail::read_gguf_head(path) : detail::whole_file(path);
  } else {
    for (const char* name : detail::tokenizer_files) {
      const std::string file = path + "/" + name;
      if (std::filesystem::is_regular_file(file)) bytes += name + (":" + detail::whole_file(file));
    }
  }
  return path + ", " + detail::digits_of(detail::checksum(std::as_bytes(std::span(bytes))));
}

//! The tokenizers that a map was made from, by their tokenizer_identity.
struct map_origin {
  std::string target, draft;
};

//! Writes a map and its origin to a file, which is there as a whole or as it was before.
//!
//! Errors      model_error if it cannot be written
inline void save_vocabulary_map(vocabulary_map& map, const map_origin& origin, const std::string& path) {
  std::vector<std::byte> bytes;
  byte_writer write(bytes, "vocabulary map", 1);
  write(origin.target, origin.draft);
  map.serialize(write);
  write.finish();
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0)
    raise<model_error>("the vocabulary map cannot be written to ", path, ".");
}

//! Returns the map in a file of save_vocabulary_map, for a target and a draft with so many tokens.
//!
//! Errors      model_error for a file that is no map, is damaged, or was made for vocabularies of other sizes or from
//!             other tokenizers than `present`: it names the tokenizer that is another one
inline vocabulary_map load_vocabulary_map(const std::string& path, const map_origin& present, std::int32_t target_size,
                                          std::int32_t draft_size) {
  const std::string text = detail::whole_file(path);
  try {
    byte_reader read(std::as_bytes(std::span(text)), "vocabulary map", 1);
    map_origin made;
    read(made.target, made.draft);
    const auto compare = [&](const char* whose, const std::string& then, const std::string& now) {
      if (then == now) return;
      raise<model_error>(path, " was made from the ", whose, "'s tokenizer ", then, ", but this one is ", now,
                         ": delete the file, and the map is made anew.");
    };
    compare("target", made.target, present.target);
    compare("draft", made.draft, present.draft);
    vocabulary_map map(target_size, draft_size);
    map.serialize(read);
    (void)read.finish();
    return map;
  } catch (const input_error& error) {
    raise<model_error>(path, " cannot be used: ", error.what(), " Delete the file, and the map is made anew.");
  }
}

}  // namespace espalier
