// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"

namespace espalier {

//! Rows of weights as their file stores them, to be looked up and not multiplied: an embedding. Storage is the
//! caller's.
class weight_rows {
 public:
  weight_rows() = default;
  weight_rows(int rows, int inputs) : rows_(rows), inputs_(inputs) {}

  //! Says how all rows will come.
  void expect_rows(int, int, weight_type type) { type_ = type; }

  //! Floats of storage that the rows need.
  std::size_t storage_floats() const { return static_cast<std::size_t>(rows_) * (row_floats() + n_scales()); }

  //! Takes storage; null for none yet.
  void place(float* storage) { data_ = storage; }

  int rows() const { return rows_; }
  int inputs() const { return inputs_; }

  //! Pre         the row is of the type that was said
  void set_row(int row, const weight_row& values) {
    float* to = at(row);
    std::copy_n(&values.scale, n_scales(), to);
    std::memcpy(to + n_scales(), values.bytes.data(), values.bytes.size());
  }

  weight_row row(int row) const {
    const float* from = at(row);
    const std::span bytes(reinterpret_cast<const std::byte*>(from + n_scales()), row_bytes(type_, inputs_));
    return {type_, bytes, inputs_, n_scales() > 0 ? *from : 1.0F};
  }

 private:
  // In front of the row.
  std::size_t n_scales() const { return type_ == weight_type::i8_rows ? 1 : 0; }
  std::size_t row_floats() const { return (row_bytes(type_, inputs_) + sizeof(float) - 1) / sizeof(float); }
  float* at(int row) const { return data_ + static_cast<std::size_t>(row) * (row_floats() + n_scales()); }

  int rows_ = 0;
  int inputs_ = 0;
  weight_type type_ = weight_type::f32;
  float* data_ = nullptr;
};

}  // namespace espalier
