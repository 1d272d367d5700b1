// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/quantised_backend.cpp
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/integer_multiplier.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

namespace detail {

// The products that the threads of a team make together, and the memory for them. Each thread computes its share of the
// outputs; all threads make the same products in the same order.
class product_team {
 public:
  product_team() = default;

  // Takes memory for products with at most max_rows rows and max_inputs inputs.
  product_team(thread_team& team, int max_rows, int max_inputs, matrix_arithmetic arithmetic)
      : team_(&team), integer_(arithmetic == matrix_arithmetic::integer) {
    for (int i = 0; i < team.n_threads(); ++i) {
      threads_.push_back({product_room(max_rows), {}, 0});
      if (integer_) threads_.back().integers = activation_room((std::min)(alone_rows, max_rows), max_inputs);
    }
    for (activation_room& room : shared_) {
      if (integer_ && max_rows > alone_rows) room = activation_room(max_rows, max_inputs);
    }
  }

  std::pair<int, int> outputs_of(int thread, const weight_matrix& matrix) const {
    return team_->share(thread, matrix.outputs(), weight_matrix::granule);
  }

  // Returns the rows in the form that products with the matrix take. Up to alone_rows rows are prepared by each thread
  // for itself, and may be different for each thread. More rows are prepared by the threads together; the result stays
  // valid until the second call after this one.
  matrix_rows prepare(int thread, const weight_matrix& matrix, const float* x, int rows) {
    const int inputs = matrix.inputs();
    matrix_rows prepared{x, inputs, rows};
    if (!integer_ || !matrix.has_bytes() || rows == 0) return prepared;
    const bool as_bytes = integer_multiplier::takes_bytes(matrix.instructions(), rows);
    thread_state& state = threads_[static_cast<std::size_t>(thread)];
    if (rows <= alone_rows) {
      prepared.integers = state.integers.write(x, inputs, inputs, rows, 0, rows, as_bytes);
    } else {
      // A thread that is still multiplying reads the other room.
      state.turn = 1 - state.turn;
      const auto [first, last] = team_->share(thread, rows);
      prepared.integers = shared_[state.turn].write(x, inputs, inputs, rows, first, last, as_bytes);
      team_->barrier();
    }
    return prepared;
  }

  // Writes the thread's outputs of y (+)= W x; `next` is the matrix of the product after this one. Rows of y are
  // y_stride floats apart; 0: as many as W has outputs.
  void multiply(int thread, const weight_matrix& matrix, const matrix_rows& x, float* y, bool accumulate,
                const weight_matrix& next, std::ptrdiff_t y_stride = 0) {
    const auto [begin, end] = outputs_of(thread, matrix);
    matrix.multiply(x, y, y_stride > 0 ? y_stride : matrix.outputs(), begin, end, accumulate,
                    threads_[static_cast<std::size_t>(thread)].room, next.weights_of(outputs_of(thread, next).first));
  }

  // Writes the thread's outputs of y = W x + bias or, with `adds`, of y += W x + bias. The matrix and the bias of
  // `linear` are laid out as in model_weights::linear_type.
  template <class LinearT>
  requires requires(const LinearT& linear) { linear.bias; }
  void multiply(int thread, const LinearT& linear, const matrix_rows& x, float* y, bool adds, const weight_matrix& next,
                std::ptrdiff_t y_stride = 0) {
    const auto [begin, end] = outputs_of(thread, linear.matrix);
    const std::ptrdiff_t stride = y_stride > 0 ? y_stride : linear.matrix.outputs();
    for (int row = 0; row < x.rows && linear.bias; ++row) {
      float* to = y + row * stride;
      for (int o = begin; o < end; ++o)
        to[o] = adds ? to[o] + linear.bias[o] : linear.bias[o];
    }
    multiply(thread, linear.matrix, x, y, adds || linear.bias != nullptr, next, stride);
  }

 private:
  // Up to this many rows, it is faster that every thread prepares all rows than that the threads wait at a barrier.
  static constexpr int alone_rows = 8;

  struct thread_state {
    product_room room;
    activation_room integers;
    int turn;
  };

  thread_team* team_ = nullptr;
  bool integer_ = false;
  std::vector<thread_state> threads_;
  activation_room shared_[2];
};

}  // namespace detail

}  // namespace espalier
