// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <istream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/file_bytes.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"

namespace espalier {

//! A safetensors file. The constructor reads its table of contents; its tensors are read piece by piece.
//!
//! The file must be as the format defines it: an 8-byte length, a JSON object of that length and at most 100 MB, then
//! the tensors' bytes, covered by the tensors without overlap and without holes.
//!
//! Complexity  memory for the table of contents only; no copy of the file
//! Errors      model_error that names the file, the tensor and what does not fit
//! Source      https://github.com/huggingface/safetensors, README, section Format
class safetensors_file : public tensor_source {
 public:
  explicit safetensors_file(const std::string& path) : file_(path) { read_contents(); }

  //! Reads from any seekable stream; `where` names it in messages.
  safetensors_file(std::unique_ptr<std::istream> stream, std::string where)
      : file_(std::move(stream), std::move(where)) {
    read_contents();
  }

  const std::string& where() const override { return file_.where(); }

  //! Tensors by name.
  const std::map<std::string, tensor_entry>& entries() const { return entries_; }

  //! The metadata in the file, by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  std::vector<std::string> names() const override { return detail::names_in(entries_); }

  const tensor_entry* find(const std::string& name) const override {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    file_.read(entry.offset + first, to, n);
  }

 private:
  static constexpr std::uint64_t max_header = 100'000'000;

  void read_contents() {
    const std::uint64_t size = file_.size();
    if (size < 8) raise<model_error>(where(), " is too short for a safetensors file.");
    std::uint64_t header = 0;
    file_.read(0, &header, sizeof header);
    if (header > size - 8 || header > max_header) {
      raise<model_error>(where(), ": the header is said to be ", header, " bytes long, but the file has ", size,
                         " and a header at most ", max_header, ".");
    }
    std::string text(static_cast<std::size_t>(header), '\0');
    file_.read(8, text.data(), text.size());
    const nlohmann::json object = detail::parse_json_object(text, where() + ": the header");
    for (const auto& [name, value] : object.items()) {
      if (name != "__metadata__") {
        entries_.emplace(name, read_entry(name, value, 8 + header, size));
      } else if (!value.is_object()) {
        raise<model_error>(where(), ": __metadata__ is not an object.");
      } else {
        for (const auto& [key, entry] : value.items()) {
          if (!entry.is_string()) raise<model_error>(where(), ": \"", key, "\" of __metadata__ is not text.");
          metadata_.emplace(key, entry.template get<std::string>());
        }
      }
    }
    check_cover(8 + header, size);
  }

  tensor_entry read_entry(const std::string& name, const nlohmann::json& value, std::uint64_t begin,
                          std::uint64_t end) const {
    const auto refuse = [&](const auto&... pieces) {
      raise<model_error>(where(), ": tensor \"", name, "\" ", pieces...);
    };
    if (!value.is_object()) refuse("is not described by an object.");
    tensor_entry entry;
    const auto dtype = value.find("dtype");
    if (dtype == value.end() || !dtype->is_string()) refuse("has no dtype.");
    entry.dtype = dtype->template get<std::string>();
    const std::uint64_t item = item_size(entry.dtype);
    if (item == 0) refuse("has the unknown dtype \"", entry.dtype, "\".");
    const auto shape = value.find("shape");
    if (shape == value.end() || !shape->is_array()) refuse("has no shape.");
    std::uint64_t bytes = item;
    for (const nlohmann::json& extent : *shape) {
      if (!extent.is_number_unsigned()) refuse("has a shape that is not made of whole numbers.");
      entry.shape.push_back(extent.get<std::uint64_t>());
      const std::uint64_t n = entry.shape.back();
      if (n != 0 && bytes > (std::numeric_limits<std::uint64_t>::max)() / n)
        refuse("has a shape whose size overflows.");
      bytes *= n;
    }
    const auto offsets = value.find("data_offsets");
    if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
        !(*offsets)[1].is_number_unsigned()) {
      refuse("has no pair of data_offsets.");
    }
    const auto first = (*offsets)[0].template get<std::uint64_t>();
    const auto last = (*offsets)[1].template get<std::uint64_t>();
    if (first > last || last > end - begin) {
      refuse("lies at bytes ", first, " to ", last, ", but the file has ", end - begin, " bytes of tensors.");
    }
    if (last - first != bytes) refuse("has ", last - first, " bytes, but its shape and dtype make ", bytes, ".");
    entry.offset = begin + first;
    entry.bytes = bytes;
    return entry;
  }

  // Checks that each tensor begins where the one before it ends, and that the last ends at the end of the file.
  void check_cover(std::uint64_t begin, std::uint64_t end) const {
    std::vector<std::pair<const tensor_entry*, const std::string*>> order;
    for (const auto& [name, entry] : entries_)
      order.emplace_back(&entry, &name);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first->offset, a.first->bytes) < std::pair(b.first->offset, b.first->bytes);
    });
    for (const auto& [entry, name] : order) {
      if (entry->offset < begin) raise<model_error>(where(), ": tensor \"", *name, "\" overlaps the one before it.");
      if (entry->offset > begin) raise<model_error>(where(), ": there is a hole before tensor \"", *name, "\".");
      begin = entry->offset + entry->bytes;
    }
    if (begin != end) raise<model_error>(where(), " has ", end - begin, " bytes after its last tensor.");
  }

  static std::uint64_t item_size(std::string_view dtype) {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
    if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
    return 0;
  }

  detail::file_bytes file_;
  std::map<std::string, tensor_entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace espalier
