// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/file_bytes.hpp"
#include "espalier/model/files/gguf_metadata.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_type.hpp"

namespace espalier {

namespace detail {

// A storage type of ggml: the number of weights in a block, and the bytes of a block.
struct ggml_type {
  std::uint32_t number;
  const char* name;
  std::uint32_t weights, bytes;
};

// The storage types that GGUF numbers. The table also lists types that are not decoded, so that their sizes can be
// checked and messages can name them.
inline constexpr ggml_type ggml_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18}};

}  // namespace detail

//! A GGUF file. The constructor reads its metadata and its table of tensors; its tensors are read piece by piece.
//!
//! A count or size in the file is compared with the number of bytes that are left in the file before memory is taken.
//! Tensors lie within the file, each at a multiple of the alignment, and do not overlap.
//!
//! If llama-gguf-split has divided a model into n files, the path of the first one, <name>-00001-of-<n>.gguf, opens
//! them all. They must lie in one folder.
//!
//! Complexity  memory for metadata and table only; no copy of the tensors
//! Errors      model_error that names the file, the key or tensor, and what does not fit
//! Source      https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian; llama.cpp,
//!             tools/gguf-split, for models of several files
class gguf_file : public tensor_source {
 public:
  explicit gguf_file(const std::string& path) {
    parts_.emplace_back(path);
    metadata_ = read_part();
    read_other_parts();
  }

  //! Reads from any seekable stream, which must hold all of the model; `where` names it in messages.
  gguf_file(std::unique_ptr<std::istream> stream, std::string where) {
    parts_.emplace_back(std::move(stream), std::move(where));
    metadata_ = read_part();
    if (n_parts() > 1) refuse_part();
  }

  //! Returns whether a file begins as a GGUF file does.
  static bool begins_as_one(const std::string& path) {
    std::array<char, 4> bytes{};
    std::ifstream(path, std::ios::binary).read(bytes.data(), bytes.size());
    return std::string_view(bytes.data(), bytes.size()) == "GGUF";
  }

  const std::string& where() const override { return parts_.front().where(); }
  const std::string& where_is(const tensor_entry& entry) const override { return part_of(entry).where(); }

  //! The paths of all files of the model, in the order of their parts.
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const detail::file_bytes& part : parts_)
      all.push_back(part.where());
    return all;
  }

  //! The metadata of the first, or only, part.
  const gguf_metadata& metadata() const { return metadata_; }

  //! Tensors by name. Shapes are outermost first: a shape that the file gives as [inputs, outputs] is [outputs, inputs]
  //! here.
  const std::map<std::string, tensor_entry>& entries() const { return entries_; }

  std::vector<std::string> names() const override { return detail::names_in(entries_); }

  const tensor_entry* find(const std::string& name) const override {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    parts_[static_cast<std::size_t>(entry.file)].read(entry.offset + first, to, n);
  }

 private:
  static constexpr std::uint32_t most_dimensions = 4;
  static constexpr std::int64_t most_alignment = 1 << 20;

  using table = std::map<std::string, tensor_entry>;

  const detail::file_bytes& part_of(const tensor_entry& entry) const {
    return parts_[static_cast<std::size_t>(entry.file)];
  }

  static std::int64_t part_count(const gguf_metadata& part) { return part.integer_or("split.count", 1, 0, 0xFFFF); }
  static std::int64_t part_number(const gguf_metadata& part) { return part.integer_or("split.no", 0, 0, 0xFFFF); }
  std::int64_t n_parts() const { return part_count(metadata_); }

  // Returns the end of the file name of part i, counted from 0.
  std::string part_name(std::int64_t i) const {
    const auto digits = [](std::int64_t number) {
      const std::string plain = std::to_string(number);
      return std::string(5 - (std::min)(plain.size(), std::size_t{5}), '0') + plain;
    };
    return "-" + digits(i + 1) + "-of-" + digits(n_parts()) + ".gguf";
  }

  [[noreturn]] void refuse_part() const {
    raise<model_error>(where(), " is part ", part_number(metadata_) + 1, " of a GGUF model in ", n_parts(),
                       " files: give the path of the first, which must end with ", part_name(0),
                       ", or merge them into one with llama-gguf-split --merge.");
  }

  void read_other_parts() {
    if (n_parts() <= 1) return;
    const std::string first = part_name(0);
    if (part_number(metadata_) != 0 || !where().ends_with(first)) refuse_part();
    const std::string stem = where().substr(0, where().size() - first.size());
    for (std::int64_t i = 1; i < n_parts(); ++i) {
      const std::string path = stem + part_name(i);
      if (!std::filesystem::exists(path)) {
        raise<model_error>(path, " is missing: it is part ", i + 1, " of ", n_parts(), " of the GGUF model ", where(),
                           ", which needs all of them beside it, or merged into one with llama-gguf-split --merge.");
      }
      parts_.emplace_back(path);
      const gguf_metadata metadata = read_part();
      if (part_count(metadata) != n_parts() || part_number(metadata) != i) {
        raise<model_error>(path, " says that it is part ", part_number(metadata) + 1, " of ", part_count(metadata),
                           ", but its name that it is part ", i + 1, " of ", n_parts(), ".");
      }
    }
    const auto n = static_cast<std::int64_t>(entries_.size());
    if (metadata_.integer_or("split.tensors.count", n, 0, (std::numeric_limits<std::int32_t>::max)()) != n)
      metadata_.refuse("split.tensors.count", n, ", as many as all parts have");
  }

  // Reads the last part in parts_: adds its tensors to entries_, and returns its metadata.
  gguf_metadata read_part() {
    constexpr std::uint32_t magic = 0x46554747;  // "GGUF"
    const std::string& where = parts_.back().where();
    detail::gguf_cursor from(parts_.back());
    if (from.left() < 24 || from.number<std::uint32_t>() != magic) {
      raise<model_error>(where, " is no GGUF file: it does not begin as one.");
    }
    const auto version = from.number<std::uint32_t>();
    if ((version & 0xFFFFU) == 0) {
      raise<model_error>(where, " is a big-endian GGUF file, but only little-endian ones are read.");
    }
    if (version != 2 && version != 3) {
      raise<model_error>(where, " is a GGUF file of version ", version, ", but only versions 2 and 3 are read.");
    }
    const auto n_tensors = from.number<std::uint64_t>();
    const auto n_pairs = from.number<std::uint64_t>();
    gguf_metadata metadata(from, n_pairs);
    from.require(n_tensors, sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t) + sizeof(std::uint64_t), "tensors");
    table tensors;
    for (std::uint64_t i = 0; i < n_tensors; ++i)
      read_entry(from, tensors);
    const std::uint64_t end = from.at();
    metadata.keep(from.take_bytes());
    place(tensors, metadata, end);
    entries_.merge(tensors);
    if (!tensors.empty())
      raise<model_error>(where, ": tensor \"", tensors.begin()->first, "\" is in another part, too.");
    return metadata;
  }

  void read_entry(detail::gguf_cursor& from, table& tensors) const {
    const std::string name(from.text());
    const auto refuse = [&](const auto&... pieces) {
      raise<model_error>(from.where(), ": tensor \"", name, "\" ", pieces...);
    };
    tensor_entry entry;
    entry.file = static_cast<int>(parts_.size()) - 1;
    const auto n_dimensions = from.number<std::uint32_t>();
    if (n_dimensions > most_dimensions)
      refuse("has ", n_dimensions, " dimensions, but at most ", most_dimensions, " are allowed.");
    for (std::uint32_t d = 0; d < n_dimensions; ++d)
      entry.shape.push_back(from.number<std::uint64_t>());
    const auto number = from.number<std::uint32_t>();
    const auto* type = std::find_if(std::begin(detail::ggml_types), std::end(detail::ggml_types),
                                    [&](const detail::ggml_type& known) { return known.number == number; });
    if (type == std::end(detail::ggml_types)) {
      refuse("is of type ", number, ", which is not known; a model's may be ", detail::names_of_file_types(), ".");
    }
    entry.dtype = type->name;
    const std::uint64_t inner = entry.shape.empty() ? 1 : entry.shape.front();
    if (inner % type->weights != 0) {
      refuse("has rows of ", inner, " weights, but ", type->name, " needs a multiple of ", type->weights, ".");
    }
    entry.bytes = type->bytes;
    std::uint64_t blocks = inner / type->weights;
    for (std::size_t d = 0; d < (std::max)(entry.shape.size(), std::size_t{1}); ++d) {
      if (d > 0) blocks = entry.shape[d];
      if (blocks != 0 && entry.bytes > (std::numeric_limits<std::uint64_t>::max)() / blocks)
        refuse("has a shape whose size overflows.");
      entry.bytes *= blocks;
    }
    std::reverse(entry.shape.begin(), entry.shape.end());
    entry.offset = from.number<std::uint64_t>();
    if (!tensors.emplace(name, std::move(entry)).second) refuse("is listed twice.");
  }

  // Checks the positions of the tensors of the last part, and makes their offsets count from the start of the file. In
  // the file they count from the first multiple of the alignment at or behind the end of the table.
  void place(table& tensors, const gguf_metadata& metadata, std::uint64_t end_of_table) const {
    const std::string key = "general.alignment";
    const auto alignment = static_cast<std::uint64_t>(metadata.integer_or(key, 32, 1, most_alignment));
    if (!std::has_single_bit(alignment)) metadata.refuse(key, "a power of two");
    const std::string& where = metadata.where();
    const std::uint64_t size = parts_.back().size(), begin = (end_of_table + alignment - 1) / alignment * alignment;
    const std::uint64_t room = size < begin ? 0 : size - begin;
    std::vector<std::pair<tensor_entry*, const std::string*>> order;
    for (auto& [name, entry] : tensors) {
      if (entry.offset % alignment != 0) {
        raise<model_error>(where, ": tensor \"", name, "\" begins at byte ", entry.offset,
                           ", which is no multiple of the alignment, ", alignment, ".");
      }
      if (begin > size || entry.offset > room || entry.bytes > room - entry.offset) {
        raise<model_error>(where, ": tensor \"", name, "\" has ", entry.bytes, " bytes from byte ", entry.offset,
                           " on, but the file has ", room, " bytes of tensors: it is cut short or damaged.");
      }
      entry.offset += begin;
      order.emplace_back(&entry, &name);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first->offset, a.first->bytes) < std::pair(b.first->offset, b.first->bytes);
    });
    std::uint64_t end = begin;
    for (const auto& [entry, name] : order) {
      if (entry->offset < end) raise<model_error>(where, ": tensor \"", *name, "\" overlaps the one before it.");
      end = entry->offset + entry->bytes;
    }
  }

  std::vector<detail::file_bytes> parts_;
  gguf_metadata metadata_;
  table entries_;
};

}  // namespace espalier
