// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/integer_product.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "model/llama/random_weights.hpp"

// A panel of 32 outputs and integers of some rows, both random, for kernels that multiply them.
struct panel_case {
  panel_case(espalier::weight_type type, int n_inputs, int n_rows, std::mt19937& random)
      : layout(type, n_inputs),
        rows(n_rows),
        memory(layout.bytes() / sizeof(float) + 16, false),
        panel(reinterpret_cast<std::byte*>(memory.take(layout.bytes() / sizeof(float)))) {
    for (int lane = 0; lane < espalier::detail::panel_layout::outputs; ++lane) {
      const random_weights row(type, n_inputs, random);
      layout.set_row(panel, lane, row.row());
    }
    std::vector<float> values(static_cast<std::size_t>(rows * n_inputs));
    std::normal_distribution<float> normal;
    for (float& value : values)
      value = normal(random);
    espalier::detail::activation_room written(rows, n_inputs);
    const auto* first = written.write(values.data(), n_inputs, n_inputs, rows, 0, rows);
    x.assign(first, first + rows * layout.blocks);
  }

  // All codes become the least or the greatest that the type has, and all activations one number.
  void set_all(bool greatest, int activation) {
    using enum espalier::weight_type;
    const espalier::weight_type type = layout.type;
    const int code = !greatest ? 0 : type == q5_0 || type == q5_1 || type == q5_k ? 31 : type == q6_k ? 63 : 255;
    for (int b = 0; b < layout.blocks; ++b)
      std::memset(panel + layout.block_at(b) + layout.scale_bytes, code, layout.block_bytes - layout.scale_bytes);
    for (espalier::detail::activation_block& block : x) {
      std::memset(block.q, activation, sizeof block.q);
      block.sum[0] = block.sum[1] = 16 * activation;
      block.scaled_sum = block.scale * static_cast<float>(32 * activation);
    }
  }

  // sums[rows][32], of all inputs, part by part.
  template <class MultiplyT>
  std::vector<float> sums(const MultiplyT& multiply) const {
    using espalier::detail::panel_part;
    const auto size = static_cast<std::size_t>(rows * espalier::detail::panel_layout::outputs);
    espalier::detail::float_block block(size, false);
    float* to = block.take(size);
    std::fill_n(to, size, 0.25F);
    for (int first = 0; first < layout.blocks; first += panel_part::max_blocks) {
      const panel_part part(layout, panel, first, (std::min)(panel_part::max_blocks, layout.blocks - first));
      multiply(espalier::detail::integer_product{part, x.data() + static_cast<std::ptrdiff_t>(first) * rows, rows, to});
    }
    return {to, to + size};
  }

  template <class MultiplyT>
  bool has_portable_bits(const MultiplyT& multiply) const {
    const std::vector<float> a = sums(multiply), b = sums(&espalier::detail::multiply_portably);
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  espalier::detail::panel_layout layout;
  int rows;
  espalier::detail::float_block memory;
  std::byte* panel;
  std::vector<espalier::detail::activation_block> x;
};

// Where a kernel's bits are not the portable form's, in words; empty if nowhere: for every type, blocks that do not fill
// a part, a row that ends within a block, 1 to most_rows rows, and the least and the greatest codes and activations.
template <class MultiplyT>
std::string differing_bits(const MultiplyT& multiply, int most_rows) {
  std::mt19937 random(3);
  for (const espalier::weight_type type : espalier::weight_types) {
    if (!espalier::detail::has_integer_form(type)) continue;
    const int inputs = type == espalier::weight_type::i8_rows ? 75 : espalier::detail::has_steps(type) ? 256 : 160;
    const std::string name(name_of(type));
    for (int rows = 1; rows <= most_rows; ++rows) {
      if (!panel_case(type, inputs, rows, random).has_portable_bits(multiply))
        return name + ", rows " + std::to_string(rows);
    }
    panel_case c(type, inputs, most_rows < 19 ? 3 : 19, random);
    for (const bool greatest : {false, true}) {
      for (const int activation : {-127, 127}) {
        c.set_all(greatest, activation);
        if (!c.has_portable_bits(multiply))
          return name + (greatest ? ", greatest" : ", least") + " codes, activations " + std::to_string(activation);
      }
    }
  }
  return {};
}
