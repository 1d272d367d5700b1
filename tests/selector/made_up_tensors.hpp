// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "text_models.hpp"

// Weights that are a function of a tensor's name and of the place in it, as in tests/data/selector/make_golden.py.
inline std::vector<float> made_up(const std::string& name, std::size_t rows, std::size_t columns = 0) {
  std::uint64_t key = 0xCBF29CE484222325U;
  for (const char c : name)
    key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  std::vector<float> out;
  for (std::size_t i = 0; i < rows * (columns > 0 ? columns : 1); ++i) {
    double x = static_cast<double>(models::mixed(key + i) >> 40) / 0x1p23 - 1;
    if (name.ends_with(".deviation")) {
      x = 1 + x / 2;
    } else if (name.ends_with(".norm.weight")) {
      x = 1 + x / 4;
    } else if (columns > 0) {
      x *= std::sqrt(3 / static_cast<double>(columns));
    }
    out.push_back(static_cast<float>(x));
  }
  return out;
}

// For delayed_selector::read.
struct made_up_tensors {
  void vector(const std::string& name, int n, float* to) const {
    const std::vector<float> values = made_up(name, static_cast<std::size_t>(n));
    std::copy(values.begin(), values.end(), to);
  }
  template <class VisitT>
  void matrix(const std::string& name, int rows, int columns, VisitT&& set_row) const {
    const std::vector<float> values = made_up(name, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns));
    for (int row = 0; row < rows; ++row)
      set_row(row, values.data() + static_cast<std::ptrdiff_t>(row) * columns);
  }
};
