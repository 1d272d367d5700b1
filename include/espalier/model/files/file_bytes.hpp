// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/gguf_file.cpp
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// A file, or any seekable stream, whose bytes are read from any position.
//
// Errors      model_error that names the file
class file_bytes {
 public:
  explicit file_bytes(const std::string& path)
      : file_bytes(std::make_unique<std::ifstream>(path, std::ios::binary), path) {}

  file_bytes(std::unique_ptr<std::istream> stream, std::string where)
      : stream_(std::move(stream)), where_(std::move(where)) {
    static_assert(std::endian::native == std::endian::little, "model files are little-endian");
    if (!*stream_) raise<model_error>(where_, " cannot be opened.");
    stream_->seekg(0, std::ios::end);
    const std::streamoff end = stream_->tellg();
    if (!*stream_ || end < 0) raise<model_error>(where_, " cannot be read.");
    size_ = static_cast<std::uint64_t>(end);
  }

  const std::string& where() const { return where_; }
  std::uint64_t size() const { return size_; }

  void read(std::uint64_t offset, void* to, std::size_t n) {
    stream_->seekg(static_cast<std::streamoff>(offset));
    stream_->read(static_cast<char*>(to), static_cast<std::streamsize>(n));
    if (!*stream_) raise<model_error>(where_, " could not be read at byte ", offset, ".");
  }

 private:
  std::unique_ptr<std::istream> stream_;
  std::string where_;
  std::uint64_t size_ = 0;
};

}  // namespace espalier::detail
