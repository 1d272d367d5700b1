// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <istream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
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

// Every type with a fixed number in the format, so that sizes can be checked and types that are not decoded can be
// named.
inline constexpr ggml_type ggml_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18}};

}  // namespace detail

//! Reads a GGUF file: its metadata and its table of tensors at once, its tensors piece by piece.
//!
//! Every count and size is checked against what the file has left before memory is taken. Tensors lie within the file,
//! each at a multiple of the alignment, and do not overlap.
//!
//! Complexity  memory for metadata and table only; no copy of the tensors
//! Errors      model_error that names the file, the key or tensor, and what does not fit
//! Source      https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian
class gguf_file : public tensor_source {
 public:
  explicit gguf_file(const std::string& path) : file_(path) { read_contents(); }

  //! Reads from any seekable stream; `where` names it in messages.
  gguf_file(std::unique_ptr<std::istream> stream, std::string where) : file_(std::move(stream), std::move(where)) {
    read_contents();
  }

  const std::string& where() const override { return file_.where(); }

  const gguf_metadata& metadata() const { return metadata_; }

  //! Tensors by name. Shapes are outermost first: a shape that the file gives as [inputs, outputs] is [outputs, inputs]
  //! here.
  const std::map<std::string, tensor_entry>& entries() const { return entries_; }

  const tensor_entry* find(const std::string& name) const override {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    file_.read(entry.offset + first, to, n);
  }

 private:
  static constexpr std::uint32_t most_dimensions = 4;
  static constexpr std::int64_t most_alignment = 1 << 20;

  void read_contents() {
    constexpr std::uint32_t magic = 0x46554747;  // "GGUF"
    detail::gguf_cursor from(file_);
    if (from.left() < 24 || from.number<std::uint32_t>() != magic) {
      raise<model_error>(where(), " is no GGUF file: it does not begin as one.");
    }
    const auto version = from.number<std::uint32_t>();
    if ((version & 0xFFFFU) == 0) {
      raise<model_error>(where(), " is a big-endian GGUF file, but only little-endian ones are read.");
    }
    if (version != 2 && version != 3) {
      raise<model_error>(where(), " is a GGUF file of version ", version, ", but only versions 2 and 3 are read.");
    }
    const auto n_tensors = from.number<std::uint64_t>();
    const auto n_pairs = from.number<std::uint64_t>();
    metadata_ = gguf_metadata(from, n_pairs);
    from.require(n_tensors, sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t) + sizeof(std::uint64_t), "tensors");
    for (std::uint64_t i = 0; i < n_tensors; ++i)
      read_entry(from);
    const std::uint64_t end = from.at();
    metadata_.keep(from.take_bytes());
    place_entries(end);
  }

  void read_entry(detail::gguf_cursor& from) {
    const std::string name(from.text());
    const auto refuse = [&](const auto&... pieces) {
      raise<model_error>(where(), ": tensor \"", name, "\" ", pieces...);
    };
    tensor_entry entry;
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
    if (!entries_.emplace(name, std::move(entry)).second) refuse("is listed twice.");
  }

  // Computes where each tensor lies. Offsets in the file count from the first multiple of the alignment behind the
  // table.
  void place_entries(std::uint64_t end_of_table) {
    const std::string key = "general.alignment";
    const auto alignment = static_cast<std::uint64_t>(metadata_.integer_or(key, 32, 1, most_alignment));
    if (!std::has_single_bit(alignment)) metadata_.refuse(key, "a power of two");
    const std::uint64_t begin = (end_of_table + alignment - 1) / alignment * alignment;
    const std::uint64_t room = file_.size() < begin ? 0 : file_.size() - begin;
    std::vector<std::pair<tensor_entry*, const std::string*>> order;
    for (auto& [name, entry] : entries_) {
      if (entry.offset % alignment != 0) {
        raise<model_error>(where(), ": tensor \"", name, "\" begins at byte ", entry.offset,
                           ", which is no multiple of the alignment, ", alignment, ".");
      }
      if (begin > file_.size() || entry.offset > room || entry.bytes > room - entry.offset) {
        raise<model_error>(where(), ": tensor \"", name, "\" has ", entry.bytes, " bytes from byte ", entry.offset,
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
      if (entry->offset < end) raise<model_error>(where(), ": tensor \"", *name, "\" overlaps the one before it.");
      end = entry->offset + entry->bytes;
    }
  }

  detail::file_bytes file_;
  gguf_metadata metadata_;
  std::map<std::string, tensor_entry> entries_;
};

}  // namespace espalier
