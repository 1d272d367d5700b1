// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/panel_layout.hpp"

// A panel of 32 outputs in bytes and integers of some rows, both random or all the same, for kernels that multiply
// them. Memory behind the last weight has random bytes, too.
struct panel_case {
  static constexpr int outputs = espalier::detail::panel_layout::outputs;
  static constexpr int greatest = static_cast<int>(espalier::detail::activation_rows::greatest);

  panel_case(int n_inputs, int n_rows, std::mt19937& random) : inputs(n_inputs), rows(n_rows) {
    weights.resize(static_cast<std::size_t>(outputs * inputs));
    x.resize(static_cast<std::size_t>(rows * inputs));
    for (int& weight : weights)
      weight = static_cast<int>(random() % 256) - 128;
    for (int& value : x)
      value = static_cast<int>(random() % (2 * greatest + 1)) - greatest;
    behind = static_cast<unsigned>(random());
  }

  void set_all(int weight, int value) {
    std::fill(weights.begin(), weights.end(), weight);
    std::fill(x.begin(), x.end(), value);
  }

  // A function that adds the sums of a product to `to`, as its `finish`: a row that is finished twice has wrong sums.
  struct keep_sums {
    double* to;
    [[gnu::always_inline]] void operator()(int row, const double* sums) const {
      for (int o = 0; o < outputs; ++o)
        to[outputs * row + o] += sums[o];
    }
  };

  // Returns sums[rows][32] as a kernel that takes bytes or words makes them: multiply(product, finish).
  template <class MultiplyT>
  std::vector<double> sums(const MultiplyT& multiply, bool as_bytes) const {
    using espalier::detail::activation_block;
    const espalier::detail::panel_layout layout(espalier::weight_type::i8_rows, inputs);
    const int blocks = espalier::detail::activation_blocks(inputs);
    const std::size_t panel_floats = layout.bytes() / sizeof(float) + 256,
                      x_floats = static_cast<std::size_t>(blocks * rows) * sizeof(activation_block) / sizeof(float),
                      sum_floats = static_cast<std::size_t>(2 * outputs * rows);
    espalier::detail::float_block memory(panel_floats + x_floats + sum_floats + 64, false);
    auto* panel = reinterpret_cast<std::byte*>(memory.take(panel_floats));
    auto* written = reinterpret_cast<activation_block*>(memory.take(x_floats));
    auto* to = reinterpret_cast<double*>(memory.take(sum_floats));
    std::memset(panel, static_cast<int>(behind % 256), panel_floats * sizeof(float));
    std::memset(static_cast<void*>(to), 255, sum_floats * sizeof(float));
    std::vector<double> found(static_cast<std::size_t>(outputs * rows));
    std::vector<std::byte> row(static_cast<std::size_t>(inputs));
    for (int o = 0; o < outputs; ++o) {
      std::transform(weights.begin() + o * inputs, weights.begin() + (o + 1) * inputs, row.begin(),
                     [](int weight) { return static_cast<std::byte>(weight); });
      layout.set_row(panel, o, {espalier::weight_type::i8_rows, row, inputs, 1.0F});
    }
    for (int r = 0; r < rows; ++r) {
      std::vector<float> values(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
      for (int b = 0; b < blocks; ++b)
        espalier::detail::round_block(values.data() + 64 * b, (std::min)(64, inputs - 64 * b), 1.0F, as_bytes,
                                      written[b * rows + r]);
    }
    multiply(espalier::detail::integer_product{panel + layout.block_at(0), written, blocks, rows, to},
             keep_sums{found.data()});
    return found;
  }

  // Returns whether a kernel's sums are exact.
  template <class MultiplyT>
  bool is_exact(const MultiplyT& multiply, bool as_bytes) const {
    const std::vector<double> found = sums(multiply, as_bytes);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outputs; ++o) {
        std::int64_t sum = 0;
        for (int i = 0; i < inputs; ++i) {
          sum += std::int64_t{x[static_cast<std::size_t>(r * inputs + i)]} *
                 weights[static_cast<std::size_t>(o * inputs + i)];
        }
        if (found[static_cast<std::size_t>(r * outputs + o)] != static_cast<double>(sum)) return false;
      }
    }
    return true;
  }

  int inputs, rows;
  std::vector<int> weights;  // [32][inputs], from -128 to 127
  std::vector<int> x;        // [rows][inputs], from -greatest to greatest
  unsigned behind = 0;
};

// Returns where a kernel's sums are not exact, in words, or nothing: for inputs that end within a block of weights or
// of activations, for 1 to most_rows rows, and for the least and the greatest weights and activations.
template <class MultiplyT>
std::string wrong_sums(const MultiplyT& multiply, int most_rows, bool as_bytes) {
  std::mt19937 random(3);
  for (const int inputs : {32, 75, 96, 160, 256}) {
    for (int rows = 1; rows <= most_rows; ++rows) {
      if (!panel_case(inputs, rows, random).is_exact(multiply, as_bytes))
        return std::to_string(inputs) + " inputs, rows " + std::to_string(rows);
    }
  }
  for (const int rows : {1, (std::min)(most_rows, 3)}) {
    panel_case c(2100, rows, random);
    if (!c.is_exact(multiply, as_bytes)) return "2100 inputs";
    for (const int weight : {-128, 127}) {
      for (const int value : {-panel_case::greatest, panel_case::greatest, -129, 127, 128}) {
        c.set_all(weight, value);
        if (!c.is_exact(multiply, as_bytes))
          return "weights " + std::to_string(weight) + ", activations " + std::to_string(value);
      }
    }
  }
  return {};
}
