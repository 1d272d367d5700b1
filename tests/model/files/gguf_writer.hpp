// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "espalier/model/files/gguf_file.hpp"

namespace gguf_writer {

template <class NumberT>
std::string bytes_of(NumberT number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

inline std::string text_of(const std::string& text) {
  return bytes_of(std::uint64_t{text.size()}) + text;
}

//! Writes GGUF files, right or wrong, into memory.
class file_text {
 public:
  void add(const std::string& key, const std::string& text) { add_raw(key, 8, text_of(text)); }
  void add(const std::string& key, const char* text) { add(key, std::string(text)); }
  void add(const std::string& key, bool flag) { add_raw(key, 7, bytes_of(static_cast<std::uint8_t>(flag))); }
  void add(const std::string& key, float number) { add_raw(key, 6, bytes_of(number)); }
  void add(const std::string& key, std::uint32_t number) { add_raw(key, 4, bytes_of(number)); }
  void add(const std::string& key, int number) { add(key, static_cast<std::uint32_t>(number)); }

  void add(const std::string& key, const std::vector<std::string>& texts) {
    std::string list = bytes_of(std::uint32_t{8}) + bytes_of(std::uint64_t{texts.size()});
    for (const std::string& text : texts)
      list += text_of(text);
    add_raw(key, 9, list);
  }

  //! A value of any kind, its bytes as the file holds them.
  void add_raw(const std::string& key, std::uint32_t kind, const std::string& bytes) {
    pairs += text_of(key) + bytes_of(kind) + bytes;
    ++n_pairs;
  }

  //! The extents are outermost first.
  void add_tensor(const std::string& name, std::uint32_t type, const std::vector<std::uint64_t>& shape,
                  const std::string& bytes) {
    data.resize((data.size() + 31) / 32 * 32, '\0');
    tensors += text_of(name) + bytes_of(static_cast<std::uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent)
      tensors += bytes_of(*extent);
    tensors += bytes_of(type) + bytes_of(std::uint64_t{data.size()});
    data += bytes;
    ++n_tensors;
  }

  void add_tensor(const std::string& name, const std::vector<std::uint64_t>& shape, const std::vector<float>& values) {
    add_tensor(name, 0, shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }

  std::string text() const {
    std::string head = "GGUF" + bytes_of(version) + bytes_of(n_tensors) + bytes_of(n_pairs) + pairs + tensors;
    head.resize((head.size() + 31) / 32 * 32, '\0');
    return head + data;
  }

  std::uint32_t version = 3;
  std::uint64_t n_tensors = 0, n_pairs = 0;
  std::string pairs, tensors, data;
};

inline espalier::gguf_file open(const std::string& text) {
  return {std::make_unique<std::istringstream>(text), "model.gguf"};
}

}  // namespace gguf_writer
