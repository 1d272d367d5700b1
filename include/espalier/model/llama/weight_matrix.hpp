// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/code_product.hpp"
#include "espalier/model/llama/float_panel.hpp"
#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/integer_multiplier.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/panel_layout.hpp"
#include "espalier/model/llama/panel_part.hpp"

namespace espalier {

//! A weight matrix W [outputs][inputs], held without rounding. Each group of 32 outputs is held in the type of its
//! rows: with as many bits a weight as the type needs (4, 8 or 16), and its scales. A group is held as floats if its
//! rows are floats, or of several types. The caller owns the storage.
//!
//! A product y[r][o] = sum over i of x[r][i] W[o][i] has two forms. Exact: weights are unpacked to the floats that
//! they mean, once for all rows, and each element is one chain of multiply-adds over the inputs in ascending order.
//! Integer, for i8_rows: activations are rounded to 16 bits with a scale for each row, products are summed as integers,
//! exactly, and a sum is multiplied by both scales in double and rounded to a float.
//!
//! Law         exact: bitwise the product with a matrix of the decoded floats
//! Law         y[r] does not depend on the other rows of x, nor on how many there are, nor, in the integer form, on the
//!             instructions that the processor has: bitwise, for one build of a program
//! Law         multiply may be called from several threads at once for different outputs
//! Complexity  weights are read from memory once for any number of rows that fit the cache together with one panel
class weight_matrix {
 public:
  static constexpr int granule = 32;  //!< number of outputs that are held together, and that threads do not divide

  weight_matrix() = default;
  weight_matrix(int outputs, int inputs, detail::instruction_set instructions = detail::best_instruction_set())
      : outputs_(outputs), inputs_(inputs), instructions_(instructions) {}

  //! Sets the type that rows first, first + 1, ... will have; each row is expected once. A granule is held as floats if
  //! its rows have several types, or if any of them was not expected.
  void expect_rows(int first, int rows, weight_type type) {
    granules_.resize(n_granules());
    for (int g = first / granule; rows > 0 && g * granule < first + rows; ++g) {
      granule_type& to = granules_[static_cast<std::size_t>(g)];
      const int all = (std::min)(granule, outputs_ - g * granule);
      const int begin = (std::max)(first, g * granule), end = (std::min)(first + rows, g * granule + all);
      to.expected = to.rows == 0 || to.expected == type ? type : weight_type::f32;
      to.rows += end - begin;
      to.type = to.rows >= all ? to.expected : weight_type::f32;
      has_bytes_ = has_bytes_ || type == weight_type::i8_rows;
    }
  }

  //! Returns how many floats of storage the rows need.
  std::size_t storage_floats() const {
    // Products may read a few bytes more than there are, and products of integers a kilobyte.
    std::size_t floats = (n_granules() - granules_.size()) * granule_floats({}) + (has_bytes_ ? 256 : 16);
    for (const granule_type& g : granules_)
      floats += granule_floats(g);
    return floats;
  }

  //! Sets the storage, 64-byte aligned; null: there is none yet.
  void place(float* storage) {
    granules_.resize(n_granules());
    for (granule_type& g : granules_) {
      g.data = storage;
      if (!storage) continue;
      // Nobody writes the rows behind the last output, but products read them.
      if (&g == &granules_.back() && outputs_ % granule != 0) std::memset(g.data, 0, granule_floats(g) * sizeof(float));
      storage += granule_floats(g);
    }
  }

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }

  //! Returns whether products have the integer form, for some outputs at least.
  bool has_bytes() const { return has_bytes_ && inputs_ <= detail::integer_product::max_inputs; }

  //! Returns the instructions that products in the integer form are made with.
  detail::instruction_set instructions() const { return instructions_; }

  //! Stores the weights of an output.
  //!
  //! Pre         row.n == inputs(), and row.type is as expected
  void set_row(int output, const weight_row& row) {
    const granule_type& g = granule_of(output);
    if (g.type != weight_type::f32) {
      return layout_of(g).set_row(panel_of(g), output % granule, row);
    }
    std::vector<float> values(static_cast<std::size_t>(inputs_));
    row.decode(values.data());
    float* lane = lane_of(g, output);
    for (int i = 0; i < inputs_; ++i)
      lane[static_cast<std::ptrdiff_t>(i) * float_width] = values[static_cast<std::size_t>(i)];
  }

  //! Writes a row as floats, [inputs].
  void get_row(int output, float* values) const {
    const granule_type& g = granule_of(output);
    if (g.type != weight_type::f32) {
      alignas(64) float decoded[detail::panel_part::inputs * granule];
      for (int first = 0; first < inputs_; first += detail::panel_part::inputs) {
        const int n = (std::min)(detail::panel_part::inputs, inputs_ - first);
        decode(g, first, n, decoded);
        for (int i = 0; i < n; ++i)
          values[first + i] = decoded[i * granule + output % granule];
      }
      return;
    }
    const float* lane = lane_of(g, output);
    for (int i = 0; i < inputs_; ++i)
      values[i] = lane[static_cast<std::ptrdiff_t>(i) * float_width];
  }

  //! Returns the address of the weights of an output's granule; null for an output beyond the last.
  const void* weights_of(int output) const { return output < outputs_ ? granule_of(output).data : nullptr; }

  //! Writes y[r][o] = the product for outputs begin <= o < end, both multiples of `granule`, or outputs(); with
  //! accumulate it adds the product to y. Weights of type i8_rows are multiplied in the integer form if x has integers.
  //! `next` is memory that the caller reads next, or null: a product may begin to fetch it.
  //!
  //! Pre         `room` was made for as many rows as x has, or more
  void multiply(const detail::matrix_rows& x, float* y, std::ptrdiff_t y_stride, int begin, int end, bool accumulate,
                detail::product_room& room, const void* next = nullptr) const {
    if (x.rows == 0) return;
    detail::integer_multiplier integers(instructions_);
    for (int first = begin; first < end; first += granule) {
      const granule_type& g = granule_of(first);
      const output_place to{y + first, y_stride, (std::min)(granule, end - first), accumulate};
      const void* ahead = first + granule < end ? granule_of(first + granule).data : next;
      if (g.type == weight_type::f32) {
        multiply_floats(g, x, to, static_cast<const char*>(ahead));
      } else if (g.type == weight_type::i8_rows && x.integers.blocks) {
        multiply_integers(g, x, to, room, integers, static_cast<const std::byte*>(ahead));
      } else {
        multiply_parts(g, x, room);
        for (int row = 0; row < x.rows; ++row)
          finish_row(room.sums() + granule * row, to, row);
      }
    }
    if (next && (x.rows < detail::float_panel::prefetch_rows || x.integers.blocks)) {
      constexpr int start = 1 << 14;
      for (int byte = 0; byte < start; byte += 64)
        __builtin_prefetch(static_cast<const char*>(next) + byte, 0, 2);
    }
  }

 private:
  static constexpr int float_width = detail::float_panel::width;
  static_assert(granule % float_width == 0 && granule == detail::product_room::outputs &&
                granule == detail::panel_layout::outputs);

  // The weights of 32 outputs: floats in panels [inputs][float_width], other types in one panel_layout.
  struct granule_type {
    weight_type type = weight_type::f32;      // type in which the weights are held
    weight_type expected = weight_type::f32;  // type of the rows that are expected so far; f32 if they have several
    int rows = 0;                             // number of rows that are expected so far
    float* data = nullptr;
  };
  struct output_place {
    float* y;
    std::ptrdiff_t y_stride;
    int width;
    bool accumulate;
  };

  std::size_t n_granules() const { return static_cast<std::size_t>((outputs_ + granule - 1) / granule); }

  std::size_t granule_floats(const granule_type& g) const {
    if (g.type == weight_type::f32) return static_cast<std::size_t>(inputs_) * granule;
    return layout_of(g).bytes() / sizeof(float);
  }

  detail::panel_layout layout_of(const granule_type& g) const { return {g.type, inputs_}; }
  const granule_type& granule_of(int output) const { return granules_[static_cast<std::size_t>(output / granule)]; }

  static std::byte* panel_of(const granule_type& g) { return reinterpret_cast<std::byte*>(g.data); }
  float* lane_of(const granule_type& g, int output) const {
    const int panel = output % granule / float_width;
    return g.data + static_cast<std::ptrdiff_t>(panel) * inputs_ * float_width + output % float_width;
  }
  void multiply_floats(const granule_type& g, const detail::matrix_rows& x, const output_place& to,
                       const char* next) const {
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(inputs_) * float_width;
    for (int o = 0; o < to.width; o += float_width) {
      const float* weights = g.data + o / float_width * size;
      const char* ahead = o + float_width < to.width ? reinterpret_cast<const char*>(weights + size) : next;
      detail::float_panel{weights,     float_width,   inputs_,    (std::min)(float_width, to.width - o),
                          x.rows,      x.x,           x.x_stride, to.y + o,
                          to.y_stride, to.accumulate, false,      ahead}
          .multiply();
    }
  }

  void multiply_integers(const granule_type& g, const detail::matrix_rows& x, const output_place& to,
                         detail::product_room& room, detail::integer_multiplier& integers,
                         const std::byte* ahead) const {
    const detail::panel_layout layout = layout_of(g);
    const std::byte* weights = panel_of(g) + layout.block_at(0);
    scaled_output output{{}, x.integers.scales, to};
    const auto* scales = reinterpret_cast<const float*>(panel_of(g) + layout.header_at(0));
    std::copy_n(scales, granule, output.of_outputs);
    const detail::integer_product product{weights, x.integers.blocks,   detail::activation_blocks(inputs_),
                                          x.rows,  room.integer_sums(), ahead};
    integers.multiply(product, output);
  }

  // A function that multiplies the sums of a row by both scales and writes them. The product of the scales is exact in
  // double, so a sum is rounded by one product and by its conversion to float.
  struct scaled_output {
    alignas(64) double of_outputs[granule];
    const float* of_rows;
    output_place to;

    [[gnu::always_inline]] void operator()(int row, const double* sums) const {
      const double scale = static_cast<double>(of_rows[row]);
      float of_row[granule];
      for (int o = 0; o < granule; ++o)
        of_row[o] = static_cast<float>(sums[o] * (of_outputs[o] * scale));
      finish_row(of_row, to, row);
    }
  };

  // Multiplies the inputs part by part; the sums are in `room`.
  void multiply_parts(const granule_type& g, const detail::matrix_rows& x, detail::product_room& room) const {
    const detail::panel_layout layout = layout_of(g);
    std::memset(room.sums(), 0, static_cast<std::size_t>(granule * x.rows) * sizeof(float));
    for (int first = 0; first < inputs_; first += detail::panel_part::inputs) {
      const int n = (std::min)(detail::panel_part::inputs, inputs_ - first),
                block = first / detail::panel_layout::block;
      const float* from = x.x + first;
      int done = 0;
      if (!layout.numbers && n % detail::panel_layout::block == 0) {
        const detail::panel_part part(layout, panel_of(g), block, blocks_of(n));
        done = detail::code_product(part).multiply(from, x.x_stride, x.rows, room.sums(), room.decoded());
      } else {
        decode(g, first, n, room.decoded());
      }
      for (int o = 0; o < granule && done < x.rows; o += float_width) {
        detail::float_panel{room.decoded() + o,
                            granule,
                            n,
                            float_width,
                            x.rows - done,
                            from + done * x.x_stride,
                            x.x_stride,
                            room.sums() + granule * done + o,
                            granule,
                            false,
                            true}
            .multiply();
      }
    }
  }

  // Writes inputs first to first + n - 1 as floats, [n][granule].
  void decode(const granule_type& g, int first, int n, float* to) const {
    const detail::panel_layout layout = layout_of(g);
    if (!layout.numbers) {
      const detail::panel_part part(layout, panel_of(g), first / detail::panel_layout::block, blocks_of(n));
      return detail::code_product(part).decode(to);
    }
    const std::byte* from = panel_of(g) + static_cast<std::ptrdiff_t>(first) * granule * 2;
    for (int i = 0; i < n * granule; i += detail::simd_lanes, from += 2 * detail::simd_lanes)
      detail::simd_store(to + i,
                         g.type == weight_type::f16 ? detail::simd_from_f16(from) : detail::simd_from_bf16(from));
  }

  static int blocks_of(int n) { return (n + detail::panel_layout::block - 1) / detail::panel_layout::block; }

  [[gnu::always_inline]] static void finish_row(const float* sums, const output_place& to, int row) {
    float* y = to.y + row * to.y_stride;
    if (to.width == granule) {
      for (int o = 0; o < granule; ++o)
        y[o] = to.accumulate ? y[o] + sums[o] : sums[o];
    } else {
      for (int o = 0; o < to.width; ++o)
        y[o] = to.accumulate ? y[o] + sums[o] : sums[o];
    }
  }

  int outputs_ = 0;
  int inputs_ = 0;
  bool has_bytes_ = false;
  detail::instruction_set instructions_ = detail::instruction_set::portable;
  std::vector<granule_type> granules_;
};

}  // namespace espalier
