// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/packed_matrix.hpp"

#include <cmath>
#include <random>
#include <vector>

#include "catch.hpp"
#include "espalier/kv_store/memory/float_block.hpp"

namespace {

using espalier::packed_matrix;

struct case_type {
  case_type(int n_outputs, int n_inputs, int n_rows)
      : outputs(n_outputs),
        inputs(n_inputs),
        rows(n_rows),
        block(packed_matrix::storage_floats(n_outputs, n_inputs), false) {
    std::mt19937 random(static_cast<unsigned>(outputs * 1000 + inputs));
    std::normal_distribution<float> normal;
    matrix = packed_matrix(outputs, inputs, block.take(packed_matrix::storage_floats(outputs, inputs)));
    w.resize(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs));
    x.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs));
    for (float& value : w)
      value = normal(random);
    for (float& value : x)
      value = normal(random);
    for (int o = 0; o < outputs; ++o)
      matrix.set_row(o, w.data() + o * inputs);
  }

  std::vector<float> product(const std::vector<float>& from, int n, bool accumulate = false, float start = 0.0F) const {
    std::vector<float> y(static_cast<std::size_t>(n) * static_cast<std::size_t>(outputs), start);
    matrix.multiply(from.data(), inputs, n, y.data(), outputs, 0, outputs, accumulate);
    return y;
  }

  int outputs, inputs, rows;
  espalier::detail::float_block block;
  packed_matrix matrix;
  std::vector<float> w, x;
};

}  // namespace

TEST_CASE("a product is the sum over the inputs, for every number of rows and outputs") {
  for (const int outputs : {1, 31, 32, 33, 64, 100}) {
    for (const int rows : {1, 2, 3, 5, 8, 11, 12, 13, 16, 25, 32, 40}) {
      const case_type c(outputs, 57, rows);
      const auto y = c.product(c.x, rows), added = c.product(c.x, rows, true, 1.5F);
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < outputs; ++o) {
          double expected = 0.0;
          for (int i = 0; i < 57; ++i) {
            expected += static_cast<double>(c.x[static_cast<std::size_t>(r * 57 + i)]) *
                        static_cast<double>(c.w[static_cast<std::size_t>(o * 57 + i)]);
          }
          const auto at = static_cast<std::size_t>(r * outputs + o);
          REQUIRE(static_cast<double>(y[at]) == Approx(expected).margin(1e-4));
          REQUIRE(added[at] == 1.5F + y[at]);
        }
      }
    }
  }
}

TEST_CASE("a row's product is bitwise the same alone and among others") {
  const case_type c(100, 211, 40);
  const auto together = c.product(c.x, 40);
  for (int r = 0; r < 40; ++r) {
    const std::vector<float> row(c.x.begin() + r * 211, c.x.begin() + (r + 1) * 211);
    const auto alone = c.product(row, 1);
    REQUIRE(std::equal(alone.begin(), alone.end(), together.begin() + r * 100));
  }
}

TEST_CASE("a run of outputs is written and nothing beside it") {
  const case_type c(100, 9, 3);
  const auto whole = c.product(c.x, 3);
  const int begin = packed_matrix::granule;
  for (const int end : {2 * packed_matrix::granule, 100}) {
    std::vector<float> y(3 * 100, -7.0F);
    c.matrix.multiply(c.x.data(), 9, 3, y.data(), 100, begin, end, false);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const int o = static_cast<int>(i) % 100;
      REQUIRE(y[i] == (o >= begin && o < end ? whole[i] : -7.0F));
    }
  }
}

TEST_CASE("rows can be read back") {
  const case_type c(45, 12, 1);
  std::vector<float> row(12);
  for (int o = 0; o < 45; ++o) {
    c.matrix.get_row(o, row.data());
    REQUIRE(std::equal(row.begin(), row.end(), c.w.begin() + o * 12));
  }
}
