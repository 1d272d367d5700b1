// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier::detail {

// The matrices of a model file: how many weights they have, and the type of most of them.
struct matrix_weights {
  std::int64_t weights = 0;
  weight_type type = weight_type::f32;

  explicit matrix_weights(const tensor_source& file) {
    std::array<std::int64_t, std::size(weight_types)> of_type{};
    for (const std::string& name : file.names()) {
      const tensor_entry& entry = *file.find(name);
      // A tensor with three extents has the matrices of the experts of a layer.
      if (entry.shape.size() != 2 && entry.shape.size() != 3) continue;
      std::uint64_t n = 1;
      for (const std::uint64_t extent : entry.shape)
        n *= extent;
      for (const weight_type each : weight_types) {
        if (entry.dtype == file_name_of(each)) of_type[static_cast<std::size_t>(each)] += static_cast<std::int64_t>(n);
      }
    }
    for (const weight_type each : weight_types) {
      const std::int64_t n = of_type[static_cast<std::size_t>(each)];
      weights += n;
      if (n > of_type[static_cast<std::size_t>(type)]) type = each;
    }
  }
};

// Matrices of 1024 by 1024 weights of a type. The values of the weights do not matter.
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

  // Multiplies rows by all matrices, and returns the seconds of processor time that the calling thread took, which
  // other programs disturb least.
  double seconds(thread_team& team, product_team& products, const float* x, int rows, float* y) const {
    const double begin = thread_seconds();
    team.run([&](int thread) {
      for (std::size_t i = 0; i < matrices_.size(); ++i) {
        const weight_matrix &matrix = matrices_[i], &next = matrices_[(i + 1) % matrices_.size()];
        products.multiply(thread, matrix, products.prepare(thread, matrix, x, rows), y, false, next);
      }
    });
    return thread_seconds() - begin;
  }

 private:
  static double thread_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time{};
    if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0)
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
#endif
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::vector<weight_matrix> matrices_;
  float_block block_;
};

// Returns whether floats (form 1) are so much faster than weights as they are stored (form 0) that they pay for their
// memory. For each form, the least time of a pass of one row is multiplied by the least time of a pass of 16 rows; the
// result of form 1 must be at most 0.9 of that of form 0. seconds(form, rows) measures a pass. The forms take turns, 3
// to 100 times, until a twentieth of a second has been measured.
template <class SecondsT>
bool are_floats_faster(const SecondsT& seconds) {
  constexpr int least_turns = 3, most_turns = 100, rows[2] = {1, 16};
  constexpr double all_seconds = 0.05, none = std::numeric_limits<double>::infinity();
  double least[2][2] = {{none, none}, {none, none}}, spent = 0.0;  // least: [form][index in `rows`]
  for (int turn = 0; turn < least_turns || (turn < most_turns && spent < all_seconds); ++turn) {
    for (int n = 0; n < 2; ++n) {
      for (int form = 0; form < 2; ++form) {
        const double found = seconds(form, rows[n]);
        least[form][n] = (std::min)(least[form][n], found);
        spent += found;
      }
    }
  }
  return least[1][0] * least[1][1] <= 0.9 * least[0][0] * least[0][1];
}

// Returns the form of a model's matrices, as_stored or f32, that makes passes of this team faster on this machine.
// Logits have the same bits with either. It compares the times of a pass of one row, as plain decoding makes it, and of
// a pass of 16 rows, as a tree makes it, both measured with matrices of the type that most weights of the file have.
// Models of more than 2^29 weights stay as they are stored: as floats they would take more than 2 GiB.
//
// Complexity  passes for a twentieth of a second, or three of each kind, over as many weights as the model has, but at
//             most 2^26; memory of the sample meanwhile, up to 6 bytes a weight
inline weight_storage faster_storage(const tensor_source& file, thread_team& team) {
  constexpr int most_rows = 16, width = sample_matrices::width;
  constexpr std::int64_t of_matrix = std::int64_t{width} * width;
  const matrix_weights held(file);
  if (held.type == weight_type::f32 || held.weights > std::int64_t{1} << 29) return weight_storage::as_stored;
  const auto n = static_cast<int>((std::clamp)(held.weights / of_matrix, std::int64_t{1}, std::int64_t{64}));
  const sample_matrices forms[2] = {{held.type, n}, {weight_type::f32, n}};
  product_team products(team, most_rows, width, matrix_arithmetic::exact);
  const std::vector<float> x(std::size_t{most_rows} * width, 0.5F);
  std::vector<float> y(x.size());
  const bool widened = are_floats_faster(
      [&](int form, int rows) { return forms[form].seconds(team, products, x.data(), rows, y.data()); });
  return widened ? weight_storage::f32 : weight_storage::as_stored;
}

}  // namespace espalier::detail
