// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/weight_row.hpp"

namespace espalier::detail {

// Reads tensors as rows of float, whatever they are stored as, through one small buffer. Where it only checks, it reads
// nothing and calls nobody, but finds the same faults.
class tensor_reader {
 public:
  // `maker` is what fixes the shapes, in messages.
  explicit tensor_reader(safetensors_file& file, bool only_check = false, const char* maker = "the config makes")
      : file_(file), only_check_(only_check), maker_(maker) {}

  // Calls visit(row, values [columns]) for each row in order. F32, F16 and BF16 are converted; I8 is multiplied by the
  // row's scale, an F32 tensor [rows] called as the tensor with _scale after it.
  template <class VisitT>
  void matrix(const std::string& name, int rows, int columns, VisitT&& visit) {
    const safetensors_entry& entry =
        need(name, {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)});
    const bool scaled = entry.dtype == "I8";
    if (scaled && only_check_) need(name + "_scale", {static_cast<std::uint64_t>(rows)});
    if (only_check_) return;
    scales_.resize(scaled ? static_cast<std::size_t>(rows) : 0);
    if (scaled) vector(name + "_scale", rows, scales_.data());
    each_row(entry, rows, columns, [&](int row, float* values) {
      if (scaled) {
        for (int i = 0; i < columns; ++i)
          values[i] *= scales_[static_cast<std::size_t>(row)];
      }
      visit(row, static_cast<const float*>(values));
    });
  }

  // Calls visit(values [n]).
  template <class VisitT>
  requires std::invocable<VisitT&, const float*>
  void vector(const std::string& name, int n, VisitT&& visit) {
    const safetensors_entry& entry = need(name, {static_cast<std::uint64_t>(n)});
    if (entry.dtype == "I8") refuse_dtype(name, entry);
    if (only_check_) return;
    each_row(entry, 1, n, [&](int, const float* values) { visit(values); });
  }

  void vector(const std::string& name, int n, float* to) {
    vector(name, n, [&](const float* values) { std::copy_n(values, n, to); });
  }

 private:
  const safetensors_entry& need(const std::string& name, const std::vector<std::uint64_t>& shape) const {
    const safetensors_entry* entry = file_.find(name);
    if (!entry) raise<model_error>(file_.where(), " lacks tensor \"", name, "\".");
    if (entry->shape != shape) {
      raise<model_error>(file_.where(), ": tensor \"", name, "\" has shape ", in_brackets(entry->shape), ", but ",
                         maker_, " it ", in_brackets(shape), ".");
    }
    if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16" && entry->dtype != "I8") {
      refuse_dtype(name, *entry);
    }
    return *entry;
  }

  [[noreturn]] void refuse_dtype(const std::string& name, const safetensors_entry& entry) const {
    raise<model_error>(file_.where(), ": tensor \"", name, "\" has dtype ", entry.dtype,
                       ", but must be F32, F16, BF16, or, for a matrix with row scales, I8.");
  }

  static std::string in_brackets(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (const std::uint64_t extent : shape)
      text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
    return text + "]";
  }

  template <class VisitT>
  void each_row(const safetensors_entry& entry, int rows, int columns, VisitT&& visit) {
    constexpr std::size_t buffer_bytes = 1U << 17;
    const auto n = static_cast<std::size_t>(columns);
    const std::size_t row_bytes = static_cast<std::size_t>(entry.bytes) / static_cast<std::size_t>(rows);
    const int at_once = static_cast<int>(std::max<std::size_t>(1, buffer_bytes / row_bytes));
    values_.resize(n);
    for (int first = 0; first < rows; first += at_once) {
      const int many = (std::min)(at_once, rows - first);
      bytes_.resize(static_cast<std::size_t>(many) * row_bytes);
      file_.read(entry, static_cast<std::uint64_t>(first) * row_bytes, bytes_.data(), bytes_.size());
      for (int i = 0; i < many; ++i) {
        convert(entry.dtype, bytes_.data() + static_cast<std::size_t>(i) * row_bytes, n);
        visit(first + i, values_.data());
      }
    }
  }

  void convert(const std::string& dtype, const unsigned char* from, std::size_t n) {
    if (dtype == "F32") {
      std::memcpy(values_.data(), from, n * sizeof(float));
    } else if (dtype == "I8") {
      for (std::size_t i = 0; i < n; ++i)
        values_[i] = static_cast<float>(static_cast<signed char>(from[i]));
    } else {
      const auto widen = dtype == "F16" ? &float_from_f16 : &float_from_bf16;
      for (std::size_t i = 0; i < n; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * i, sizeof bits);
        values_[i] = widen(bits);
      }
    }
  }

  safetensors_file& file_;
  bool only_check_;
  const char* maker_;
  std::vector<unsigned char> bytes_;
  std::vector<float> values_;
  std::vector<float> scales_;
};

}  // namespace espalier::detail
