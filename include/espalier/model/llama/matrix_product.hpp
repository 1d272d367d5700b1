// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstddef>

namespace espalier {

//! The seam behind which the host transformer multiplies: a weight matrix W [outputs][inputs] in whatever layout its
//! product wants, held in storage that the caller provides.
//!
//! `storage_floats(outputs, inputs)` says how many floats that is; `granule` says into which runs of outputs the work
//! may be divided among threads. `set_row(o, values)` and `get_row(o, values)` write and read W[o], [inputs] floats.
//! `multiply(x, x_stride, rows, y, y_stride, begin, end, accumulate)` computes y[r][o] = sum over i of
//! x[r][i] W[o][i], for outputs begin <= o < end, both multiples of `granule` (or end == outputs); with accumulate it
//! adds to what y holds. `next` is a hint: where the caller will read on, as `weights_of(o)` of some matrix gives it,
//! or null; a product that streams may begin to fetch it.
//!
//! Law         y[r] does not depend on the other rows of x, nor on how many there are: bitwise
//! Law         multiply may be called from several threads at once for different outputs
//! Models      packed_matrix
template <class MatrixT>
concept MatrixProduct = std::constructible_from<MatrixT, int, int, float*> &&
    requires(MatrixT matrix, const MatrixT& fixed, const float* x, float* y, int n, std::ptrdiff_t stride) {
  { MatrixT::storage_floats(n, n) } -> std::same_as<std::size_t>;
  { MatrixT::granule } -> std::convertible_to<int>;
  { fixed.outputs() } -> std::same_as<int>;
  { fixed.inputs() } -> std::same_as<int>;
  matrix.set_row(n, x);
  fixed.get_row(n, y);
  fixed.multiply(x, stride, n, y, stride, n, n, true);
};

}  // namespace espalier
