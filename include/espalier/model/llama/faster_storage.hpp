// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

namespace detail {

// The matrices of a model file: how many weights they have, and the type of most of them.
struct matrix_weights {
  std::int64_t weights = 0;
  weight_type type = weight_type::f32;

  explicit matrix_weights(const tensor_source& file) {
    std::array<std::int64_t, std::size(weight_types)> of_type{};
    for (const std::string& name : file.names()) {
      const tensor_entry& entry = *file.find(name);
      if (entry.shape.size() != 2) continue;
      for (const weight_type each : weight_types) {
        if (entry.dtype == file_name_of(each))
          of_type[static_cast<std::size_t>(each)] += static_cast<std::int64_t>(entry.shape[0] * entry.shape[1]);
      }
    }
    for (const weight_type each : weight_types) {
      const std::int64_t n = of_type[static_cast<std::size_t>(each)];
      weights += n;
      if (n > of_type[static_cast<std::size_t>(type)]) type = each;
    }
  }
};

// Matrices of 1024 by 1024 weights of a type, whose values are of no account.
class sample_matrices {
 public:
  static constexpr int width = 1024;

  sample_matrices(weight_type type, int n) : matrices_(static_cast<std::size_t>(n), weight_matrix(width, width)) {
    for (weight_matrix& matrix : matrices_)
      matrix.expect_rows(0, width, type);
    const std::size_t each = (matrices_.front().storage_floats() + 15) / 16 * 16;
    block_ = float_block(each * matrices_.size(), true);
    for (weight_matrix& matrix : matrices_) {
      float* at = block_.take(each);
      std::memset(at, 17, each * sizeof(float));  // a small number, whether as F32, F16, a scale or codes
      matrix.place(at);
    }
  }

  // Multiplies rows by all matrices, and returns the seconds that it took.
  double seconds(thread_team& team, product_team& products, const float* x, int rows, float* y) const {
    const auto begin = std::chrono::steady_clock::now();
    team.run([&](int thread) {
      for (std::size_t i = 0; i < matrices_.size(); ++i) {
        const weight_matrix &matrix = matrices_[i], &next = matrices_[(i + 1) % matrices_.size()];
        products.multiply(thread, matrix, products.prepare(thread, matrix, x, rows), y, false, next);
      }
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  std::vector<weight_matrix> matrices_;
  float_block block_;
};

// Returns whether the first of two forms has the smaller product of the times of a pass of one row and of a pass of 16;
// seconds(form, rows) measures a pass.
template <class SecondsT>
bool is_first_faster(const SecondsT& seconds) {
  double price[2] = {1.0, 1.0};
  for (const int rows : {1, 16}) {
    double least[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    for (int turn = 0; turn < 3; ++turn) {
      for (const int form : {0, 1})
        least[form] = (std::min)(least[form], seconds(form, rows));
    }
    price[0] *= least[0], price[1] *= least[1];
  }
  return price[0] <= price[1];
}

}  // namespace detail

//! Returns the form of a model's matrices, as_stored or f32, that makes passes of this team faster on this machine.
//! Logits have the same bits with either. The faster form is the one with the smaller product of the times of a pass of
//! one row, as plain decoding makes it, and of a pass of 16, as a tree does. Both are measured, with matrices of the
//! type that most weights of the file have. Models of more than 512 million weights stay as they are stored, since
//! floats would take 2 GiB or more.
//!
//! Complexity  three passes of each kind over as many weights as the model has, but at most 64 million: less than a
//!             second; memory of the sample meanwhile, up to 5 bytes a weight
inline weight_storage faster_storage(const tensor_source& file, thread_team& team) {
  constexpr std::int64_t of_matrix = std::int64_t{detail::sample_matrices::width} * detail::sample_matrices::width;
  const detail::matrix_weights held(file);
  if (held.type == weight_type::f32 || held.weights > std::int64_t{1} << 29) return weight_storage::as_stored;
  const auto n = static_cast<int>((std::clamp)(held.weights / of_matrix, std::int64_t{1}, std::int64_t{64}));
  const detail::sample_matrices forms[2] = {{held.type, n}, {weight_type::f32, n}};
  constexpr int most_rows = 16, width = detail::sample_matrices::width;
  detail::product_team products(team, most_rows, width, matrix_arithmetic::exact);
  const std::vector<float> x(std::size_t{most_rows} * width, 0.5F);
  std::vector<float> y(x.size());
  const bool stays = detail::is_first_faster(
      [&](int form, int rows) { return forms[form].seconds(team, products, x.data(), rows, y.data()); });
  return stays ? weight_storage::as_stored : weight_storage::f32;
}

}  // namespace espalier
