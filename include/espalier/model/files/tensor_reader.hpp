// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_weights.cpp
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_row.hpp"

namespace espalier::detail {

// Columns begin to end - 1 of a matrix.
struct column_range {
  int begin = 0, end = 0;

  int size() const { return end - begin; }
};

// The place of a matrix in a tensor that has a stack of matrices, [of][rows][columns].
struct stack_place {
  int index = 0;
  int of = 0;  // matrices of the stack; 0: the tensor is the matrix
};

// A reader of tensors: matrices as their file stores them, row by row through one small buffer, unless they are
// transposed or in two tensors; vectors as floats. A reader with only_check reads no bytes of tensors and calls no
// `visit`. It checks names, shapes and types, but not whether the bytes of copies are equal.
//
// Errors      model_error that names the file and the tensor, if the tensor is missing or has another shape or type
class tensor_reader {
 public:
  // Makes a reader. `maker` says in messages what prescribes the shapes: a subject and its verb, as "the config makes".
  explicit tensor_reader(tensor_source& file, bool only_check = false, const char* maker = "the config makes")
      : file_(file), only_check_(only_check), maker_(maker) {}

  // Calls visit(row, weight_row) for each row for which wanted(row) is true, in order, and returns the type of all
  // rows. The weight_row has the columns part(type), which must be whole blocks of the type. No other row is read;
  // other columns are not read either if they are 16 KiB of a row or more. The scales of an I8 tensor are a tensor
  // [rows] of the same name with _scale appended, of any type but I8; a stack cannot be I8.
  template <class VisitT, class WantedT, class PartT>
  weight_type matrix(const std::string& name, int rows, int columns, VisitT&& visit, const WantedT& wanted,
                     const PartT& part, stack_place in_stack = {}) {
    std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
    if (in_stack.of > 0) shape.insert(shape.begin(), static_cast<std::uint64_t>(in_stack.of));
    const tensor_entry& entry = need(name, shape);
    const weight_type type = *type_of(entry);
    const bool scaled = type == weight_type::i8_rows;
    if (scaled && in_stack.of > 0) refuse_dtype(name, entry);
    scales_.resize(scaled && !only_check_ ? static_cast<std::size_t>(rows) : 0);
    if (scaled) vector(name + "_scale", rows, scales_.data());
    if (only_check_) return type;
    each_row(
        entry, type, rows, columns, part(type),
        [&](int row, weight_row weights) {
          if (scaled) weights.scale = scales_[static_cast<std::size_t>(row)];
          visit(row, static_cast<const weight_row&>(weights));
        },
        wanted, in_stack.index);
    return type;
  }
  template <class VisitT>
  weight_type matrix(const std::string& name, int rows, int columns, VisitT&& visit) {
    return matrix(name, rows, columns, visit, every_row, [&](weight_type) { return column_range{0, columns}; });
  }

  // Does as matrix() with one of a stack of matrices whose tensor has them transposed, [of][columns][rows]. Returns the
  // type of the rows, in which each weight has bytes of its own.
  template <class VisitT>
  weight_type transposed(const std::string& name, int rows, int columns, VisitT&& visit, stack_place in_stack) {
    const auto n_rows = static_cast<std::size_t>(rows), n_columns = static_cast<std::size_t>(columns);
    const auto take = [&](int column, const weight_row& of_column) {
      const std::size_t item = of_column.bytes.size() / n_rows;
      turned_.resize(n_rows * n_columns * item);
      for (std::size_t row = 0; row < n_rows; ++row)
        std::memcpy(&turned_[(row * n_columns + static_cast<std::size_t>(column)) * item], &of_column.bytes[row * item],
                    item);
    };
    const weight_type type = matrix(
        name, columns, rows, take, every_row,
        [&](weight_type) {
          return column_range{0, rows};
        },
        in_stack);
    if (block_weights(type) != 1) refuse_dtype(name, *file_.find(name));
    if (only_check_) return type;
    const std::size_t row_size = row_bytes(type, columns);
    for (std::size_t row = 0; row < n_rows; ++row)
      visit(static_cast<int>(row), weight_row{type, std::span(turned_).subspan(row * row_size, row_size), columns});
    return type;
  }

  // Does as matrix() with one of a stack of matrices that two tensors of bytes hold, in blocks of 32 columns.
  // <name>_blocks has two weights in each byte, the first of them in the low four bits; <name>_scales has the exponent
  // of each block. The type of the rows is mxfp4.
  //
  // Shapes: <name>_blocks [of][rows][blocks][16], <name>_scales [of][rows][blocks]
  // Source: OCP Microscaling Formats, version 1.0; transformers, integrations/mxfp4.py
  template <class VisitT>
  weight_type mxfp4_matrix(const std::string& name, int rows, int columns, VisitT&& visit, stack_place in_stack) {
    constexpr weight_type type = weight_type::mxfp4;
    constexpr std::uint64_t in_block = 32, codes_bytes = in_block / 2, block = 1 + codes_bytes;
    const auto of = static_cast<std::uint64_t>(in_stack.of), n_rows = static_cast<std::uint64_t>(rows);
    const std::uint64_t blocks = static_cast<std::uint64_t>(columns) / in_block;
    const tensor_entry& codes = need_bytes(name + "_blocks", {of, n_rows, blocks, codes_bytes});
    const tensor_entry& exponents = need_bytes(name + "_scales", {of, n_rows, blocks});
    if (only_check_) return type;
    const std::uint64_t first = static_cast<std::uint64_t>(in_stack.index) * n_rows * blocks;
    bytes_.resize(n_rows * blocks * codes_bytes);
    file_.read(codes, first * codes_bytes, bytes_.data(), bytes_.size());
    exponents_.resize(n_rows * blocks);
    file_.read(exponents, first, exponents_.data(), exponents_.size());
    turned_.resize(blocks * block);
    for (std::uint64_t row = 0; row < n_rows; ++row) {
      for (std::uint64_t b = 0; b < blocks; ++b) {
        std::byte* to = &turned_[b * block];
        to[0] = exponents_[row * blocks + b];
        // A weight_row is in ggml's order: weight i in the low bits of byte i, weight 16 + i in its high bits.
        const std::byte* from = &bytes_[(row * blocks + b) * codes_bytes];
        const auto code = [&](std::uint64_t i) { return from[i / 2] >> (i % 2 * 4) & std::byte{15}; };
        for (std::uint64_t i = 0; i < codes_bytes; ++i)
          to[1 + i] = code(i) | code(codes_bytes + i) << 4;
      }
      visit(static_cast<int>(row), weight_row{type, turned_, columns});
    }
    return type;
  }

  // Calls visit(values [n]) with the values of a vector.
  template <class VisitT>
  requires std::invocable<VisitT&, const float*>
  void vector(const std::string& name, int n, VisitT&& visit) { numbers(name, {static_cast<std::uint64_t>(n)}, visit); }

  // Calls visit(values) with the values of a tensor of any shape, in their order.
  template <class VisitT>
  void numbers(const std::string& name, const std::vector<std::uint64_t>& shape, VisitT&& visit) {
    const tensor_entry& entry = need(name, shape);
    const weight_type type = *type_of(entry);
    if (type == weight_type::i8_rows) refuse_dtype(name, entry);
    if (only_check_) return;
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape)
      count *= extent;
    const int n = static_cast<int>(count);
    const auto decode = [&](int, const weight_row& row) {
      values_.resize(static_cast<std::size_t>(n));
      row.decode(values_.data());
      visit(static_cast<const float*>(values_.data()));
    };
    each_row(entry, type, 1, n, {0, n}, decode, every_row);
  }

  void vector(const std::string& name, int n, float* to) {
    vector(name, n, [&](const float* values) { std::copy_n(values, n, to); });
  }

  // Checks that tensor `name`, if the file has it, is equal to tensor `original`.
  void copy_of(const std::string& name, const std::string& original) {
    const tensor_entry* copy = file_.find(name);
    if (!copy) return;
    asked_.insert(name);
    const tensor_entry* first = file_.find(original);
    bool same = first && first->dtype == copy->dtype && first->shape == copy->shape;
    constexpr std::size_t piece = 1U << 17;
    std::vector<char> one(piece), other(piece);
    for (std::uint64_t at = 0; same && !only_check_ && at < copy->bytes; at += piece) {
      const auto n = static_cast<std::size_t>((std::min)(copy->bytes - at, std::uint64_t{piece}));
      file_.read(*copy, at, one.data(), n);
      file_.read(*first, at, other.data(), n);
      same = std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n), other.begin());
    }
    if (!same) {
      raise<model_error>(file_.where_is(*copy), ": tensor \"", name, "\" is not the same as \"", original, "\", but ",
                         maker_, " them one.");
    }
  }

  // Checks that every tensor of the file was asked for, except tensors that change no result: is_idle(name) is true for
  // them.
  template <class IdleT>
  void require_all_asked_for(const IdleT& is_idle) const {
    std::vector<std::string> left;
    for (const std::string& name : file_.names()) {
      if (!asked_.contains(name) && !is_idle(name)) left.push_back(name);
    }
    if (left.empty()) return;
    const std::string& name = *std::min_element(left.begin(), left.end());
    const tensor_entry* entry = file_.find(name);
    const std::string others = left.size() > 1 ? " (and " + in_words(left.size() - 1) + " more)" : "";
    raise<model_error>(entry ? file_.where_is(*entry) : file_.where(), ": tensor \"", name, "\"", others,
                       " has no place in what ", maker_,
                       ": without it, the results would not be those of the model in the file.");
  }
  void require_all_asked_for() const {
    require_all_asked_for([](const std::string&) { return false; });
  }

 private:
  static constexpr auto every_row = [](int) { return true; };

  const tensor_entry& need(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const tensor_entry& entry = need_shape(name, shape);
    if (!type_of(entry)) refuse_dtype(name, entry);
    return entry;
  }

  const tensor_entry& need_bytes(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const tensor_entry& entry = need_shape(name, shape);
    if (entry.dtype != "U8")
      raise<model_error>(file_.where_is(entry), ": tensor \"", name, "\" has dtype ", entry.dtype, ", but must be U8.");
    return entry;
  }

  const tensor_entry& need_shape(const std::string& name, const std::vector<std::uint64_t>& shape) {
    asked_.insert(name);
    const tensor_entry* entry = file_.find(name);
    if (!entry) raise<model_error>(file_.where(), " lacks tensor \"", name, "\".");
    if (entry->shape != shape) {
      raise<model_error>(file_.where_is(*entry), ": tensor \"", name, "\" has shape ", in_brackets(entry->shape),
                         ", but ", maker_, " it ", in_brackets(shape), ".");
    }
    return *entry;
  }

  static std::optional<weight_type> type_of(const tensor_entry& entry) {
    for (const weight_type type : weight_types) {
      if (entry.dtype == file_name_of(type)) return type;
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse_dtype(const std::string& name, const tensor_entry& entry) const {
    raise<model_error>(file_.where_is(entry), ": tensor \"", name, "\" has dtype ", entry.dtype, ", but must be ",
                       names_of_file_types(), ", or, for a matrix with row scales, I8.");
  }

  static std::string in_brackets(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (const std::uint64_t extent : shape)
      text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
    return text + "]";
  }

  // Reads rows of matrix number `index` of a tensor.
  template <class VisitT, class WantedT>
  void each_row(const tensor_entry& entry, weight_type type, int rows, int columns, column_range part, VisitT&& visit,
                const WantedT& wanted, int index = 0) {
    // A separate read may read on until the stream's buffer is full, usually 8 KiB. So columns are skipped only if they
    // are twice that or more.
    constexpr std::size_t buffer_bytes = 1U << 17, least_gap = 1U << 14;
    const std::size_t row_size = row_bytes(type, columns), part_size = row_bytes(type, part.size());
    const std::size_t before = row_bytes(type, part.begin);
    const bool only_part = part_size == 0 || row_size - part_size >= least_gap;
    const std::size_t bytes = only_part ? part_size : row_size;
    const int at_once = only_part ? 1 : static_cast<int>(std::max<std::size_t>(1, buffer_bytes / bytes));
    for (int first = 0, many = 0; first < rows; first += (std::max)(many, 1)) {
      many = 0;
      while (many < at_once && first + many < rows && wanted(first + many))
        ++many;
      if (many == 0) continue;
      bytes_.resize(static_cast<std::size_t>(many) * bytes);
      const std::uint64_t row =
          static_cast<std::uint64_t>(index) * static_cast<std::uint64_t>(rows) + static_cast<std::uint64_t>(first);
      const std::uint64_t from = row * row_size + (only_part ? before : 0);
      if (bytes > 0) file_.read(entry, from, bytes_.data(), bytes_.size());
      for (int i = 0; i < many; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * bytes + (only_part ? 0 : before);
        visit(first + i, weight_row{type, std::span(bytes_).subspan(at, part_size), part.size()});
      }
    }
  }

  tensor_source& file_;
  bool only_check_;
  const char* maker_;
  std::set<std::string> asked_;  // the names of the tensors that were asked for
  std::vector<std::byte> bytes_, exponents_, turned_;
  std::vector<float> values_;
  std::vector<float> scales_;
};

}  // namespace espalier::detail
