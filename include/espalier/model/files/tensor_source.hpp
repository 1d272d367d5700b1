// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/gguf_file.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace espalier {

//! The description of one tensor of a model file: its type, its shape and the position of its bytes.
struct tensor_entry {
  std::string dtype;                 //!< as the format names it: F32, BF16, I8, Q4_1, ...
  std::vector<std::uint64_t> shape;  //!< outermost first; empty for a scalar
  std::uint64_t offset = 0;          //!< position of its first byte, from the start of the file
  std::uint64_t bytes = 0;
  int file = 0;  //!< in a model of several files: number of the file that holds the tensor, from 0
};

//! A source of tensors by name, in one file or several.
//!
//! Models      safetensors_file, safetensors_shards, gguf_file
class tensor_source {
 public:
  virtual ~tensor_source() = default;

  //! The name of the source in messages.
  virtual const std::string& where() const = 0;
  //! The name of the file that the tensor is in.
  virtual const std::string& where_is(const tensor_entry&) const { return where(); }

  //! The names of all tensors, in any order.
  virtual std::vector<std::string> names() const = 0;

  //! The tensor with this name; null if there is none.
  virtual const tensor_entry* find(const std::string& name) const = 0;

  //! Copies n bytes of the tensor to `to`, from byte `first` of the tensor on.
  //!
  //! Errors      model_error if the file cannot be read
  //! Pre         entry is an entry of this source; first + n <= entry.bytes
  virtual void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) = 0;

 protected:
  tensor_source() = default;
  tensor_source(tensor_source&&) = default;
  tensor_source& operator=(tensor_source&&) = default;
};

namespace detail {

// Returns the names in a table of tensors.
inline std::vector<std::string> names_in(const std::map<std::string, tensor_entry>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors)
    names.push_back(name);
  return names;
}

}  // namespace detail

}  // namespace espalier
