// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/weight_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "model/llama/random_weights.hpp"

namespace {

using namespace espalier;
using detail::instruction_set;

constexpr instruction_set instruction_sets[] = {
    instruction_set::portable, instruction_set::avx2,       instruction_set::avx512, instruction_set::neon,
    instruction_set::avx_vnni, instruction_set::avx512_256, instruction_set::amx,    instruction_set::neon_i8mm};

// A matrix whose first rows have one type and the others another, and rows to multiply it by.
struct case_type {
  case_type(weight_type first, weight_type second, int n_outputs, int n_inputs, int n_rows, int change = 0,
            instruction_set instructions = detail::best_instruction_set())
      : outputs(n_outputs), inputs(n_inputs), rows(n_rows), matrix(n_outputs, n_inputs, instructions) {
    std::mt19937 random(static_cast<unsigned>(outputs * 1000 + inputs));
    if (change > 0) matrix.expect_rows(0, change, first);
    matrix.expect_rows(change, outputs - change, second);
    block = detail::float_block(matrix.storage_floats(), false);
    matrix.place(block.take(matrix.storage_floats()));
    for (int o = 0; o < outputs; ++o) {
      const random_weights row(o < change ? first : second, inputs, random);
      matrix.set_row(o, row.row());
      const std::vector<float> values = row.floats();
      w.insert(w.end(), values.begin(), values.end());
    }
    std::normal_distribution<float> normal;
    x.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs));
    for (float& value : x)
      value = normal(random);
  }
  case_type(weight_type type, int n_outputs, int n_inputs, int n_rows,
            instruction_set instructions = detail::best_instruction_set())
      : case_type(type, type, n_outputs, n_inputs, n_rows, 0, instructions) {}

  // Of rows first to first + n - 1.
  std::vector<float> product(matrix_arithmetic form, int first, int n, bool accumulate = false,
                             float start = 0.0F) const {
    std::vector<float> y(static_cast<std::size_t>(n) * static_cast<std::size_t>(outputs), start);
    multiply(form, first, n, y, 0, outputs, accumulate);
    return y;
  }

  void multiply(matrix_arithmetic form, int first, int n, std::vector<float>& y, int begin, int end,
                bool accumulate) const {
    detail::product_room room(n);
    detail::activation_room integers(n, inputs);
    detail::matrix_rows from{x.data() + first * inputs, inputs, n};
    const bool as_bytes = detail::integer_multiplier::takes_bytes(matrix.instructions(), n);
    if (form == matrix_arithmetic::integer) from.integers = integers.write(from.x, inputs, inputs, n, 0, n, as_bytes);
    matrix.multiply(from, y.data(), outputs, begin, end, accumulate, room);
  }

  // The same weights as floats.
  std::vector<float> float_product() const {
    case_type floats(weight_type::f32, outputs, inputs, 0);
    for (int o = 0; o < outputs; ++o)
      floats.matrix.set_row(o, weight_row::of(w.data() + o * inputs, inputs));
    floats.x = x;
    return floats.product(matrix_arithmetic::exact, 0, rows);
  }

  double exact_sum(int row, int output) const {
    double sum = 0.0;
    for (int i = 0; i < inputs; ++i) {
      sum += static_cast<double>(x[static_cast<std::size_t>(row * inputs + i)]) *
             static_cast<double>(w[static_cast<std::size_t>(output * inputs + i)]);
    }
    return sum;
  }

  static constexpr float weight_scale = 0.01F;  // of i8_rows

  int outputs, inputs, rows;
  weight_matrix matrix;
  detail::float_block block;
  std::vector<float> w, x;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr auto exact = matrix_arithmetic::exact, integer = matrix_arithmetic::integer;

}  // namespace

TEST_CASE("a product is the sum over the inputs, for every number of rows and outputs") {
  for (const int outputs : {1, 31, 32, 33, 64, 100}) {
    for (const int rows : {1, 2, 3, 5, 8, 11, 12, 13, 16, 25, 32, 40}) {
      const case_type c(weight_type::f32, outputs, 57, rows);
      const auto y = c.product(exact, 0, rows), added = c.product(exact, 0, rows, true, 1.5F);
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < outputs; ++o) {
          const auto at = static_cast<std::size_t>(r * outputs + o);
          REQUIRE(static_cast<double>(y[at]) == Approx(c.exact_sum(r, o)).margin(1e-4));
          REQUIRE(added[at] == 1.5F + y[at]);
        }
      }
    }
  }
}

TEST_CASE("the exact form gives bit for bit what the decoded weights as floats give") {
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    const int inputs = type < weight_type::q4_0 ? 301 : 512;
    for (const int rows : {1, 2, 13}) {
      for (const int outputs : {40, 64}) {
        const case_type c(type, outputs, inputs, rows);
        REQUIRE(same_bits(c.product(exact, 0, rows), c.float_product()));
      }
    }
    const case_type whole(type, 32, 512, 1);  // no block is cut
    REQUIRE(same_bits(whole.product(exact, 0, 1), whole.float_product()));
  }
}

TEST_CASE("the integer form is near the exact sum") {
  const case_type c(weight_type::i8_rows, 40, 768, 3);
  const auto y = c.product(integer, 0, 3);
  double error = 0.0, size = 0.0;
  for (int r = 0; r < 3; ++r) {
    for (int o = 0; o < 40; ++o) {
      const double sum = c.exact_sum(r, o);
      error += std::pow(static_cast<double>(y[static_cast<std::size_t>(r * 40 + o)]) - sum, 2);
      size += sum * sum;
    }
  }
  // Activations are off by at most 1 / 65024 of the greatest of their row.
  CHECK(std::sqrt(error / size) < 5e-5);
  CHECK(error > 0.0);
}

namespace {

// The integer that a number of a row becomes. The product with the scale's inverse is a float before it is rounded.
int rounded(float x, float scale) {
  const volatile float product = x * (1.0F / scale);
  return static_cast<int>(std::nearbyint(product));
}

// Every element of the product against its sum: of the integer form the float that it must be, of the exact form one
// that is near.
void check_sums(const case_type& c, matrix_arithmetic form) {
  const auto y = c.product(form, 0, c.rows);
  for (int r = 0; r < c.rows; ++r) {
    const float* x = c.x.data() + r * c.inputs;
    const float scale = detail::scale_of_row(x, c.inputs);
    for (int o = 0; o < c.outputs; ++o) {
      const float* w = c.w.data() + o * c.inputs;
      INFO("row " << r << ", output " << o);
      const float found = y[static_cast<std::size_t>(r * c.outputs + o)];
      if (form == integer) {
        std::int64_t sum = 0;
        for (int i = 0; i < c.inputs; ++i)
          sum += std::int64_t{rounded(x[i], scale)} * static_cast<int>(std::lround(w[i] / c.weight_scale));
        const double factor = static_cast<double>(c.weight_scale) * static_cast<double>(scale);
        REQUIRE(found == static_cast<float>(static_cast<double>(sum) * factor));
      } else {
        long double sum = 0.0L, size = 0.0L;
        for (int i = 0; i < c.inputs; ++i) {
          const long double term = static_cast<long double>(x[i]) * static_cast<long double>(w[i]);
          sum += term, size += std::fabs(term);
        }
        REQUIRE(std::fabs(static_cast<long double>(found) - sum) <= 2e-6L * size);
      }
    }
  }
}

}  // namespace

TEST_CASE("a product is the sum of its weights and rounded activations, with every processor's instructions") {
  for (const instruction_set set : instruction_sets) {
    if (!detail::processor_has(set)) continue;
    for (const weight_type type : weight_types) {
      if (type < weight_type::i8_rows) continue;
      INFO(name_of(type) << ", instruction set " << static_cast<int>(set));
      const case_type c(type, 40, type == weight_type::i8_rows ? 300 : 512, 3, set);
      if (type == weight_type::i8_rows) check_sums(c, integer);
      check_sums(c, exact);
    }
  }
}

TEST_CASE("codes may all be the least that there is, and activations the greatest") {
  for (const instruction_set set : instruction_sets) {
    if (!detail::processor_has(set)) continue;
    for (const weight_type type : {weight_type::i8_rows, weight_type::q8_0}) {
      INFO(name_of(type) << ", instruction set " << static_cast<int>(set));
      const int inputs = type == weight_type::i8_rows ? 300 : 320;
      case_type c(type, 40, inputs, 2, set);
      std::vector<std::byte> bytes(row_bytes(type, inputs), std::byte{0x80});
      const auto block = static_cast<std::size_t>(block_bytes(type));
      const std::uint16_t scale = detail::f16_from_float(0.01F);
      for (std::size_t at = 0; type == weight_type::q8_0 && at < bytes.size(); at += block)
        std::memcpy(&bytes[at], &scale, 2);
      const weight_row row{type, bytes, inputs, 0.01F};
      for (const int o : {0, 17, 39}) {
        c.matrix.set_row(o, row);
        row.decode(&c.w[static_cast<std::size_t>(o * inputs)]);
        CHECK(static_cast<double>(c.w[static_cast<std::size_t>(o * inputs + 5)]) == Approx(-1.28).epsilon(1e-3));
      }
      std::fill_n(c.x.begin(), inputs, 3.0F);
      std::fill(c.x.begin() + inputs, c.x.end(), -3.0F);
      if (type == weight_type::i8_rows) check_sums(c, integer);
      check_sums(c, exact);
    }
  }
}

TEST_CASE("activations are rounded to the nearest integer, whatever the compiler makes of sums and products") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int n = 0; n < 1000; ++n) {
    const int inputs = 1 + n % 130;
    std::vector<float> x(static_cast<std::size_t>(inputs));
    for (float& value : x)
      value = std::ldexp(normal(random), n % 20 - 10);
    float most = 0.0F;
    for (const float value : x)
      most = std::max(most, std::fabs(value));
    for (const bool as_bytes : {false, true}) {
      detail::activation_room room(3, inputs);
      const detail::activation_rows rows = room.write(x.data(), 0, inputs, 3, 1, 2, as_bytes);
      REQUIRE(rows.scales[1] == most / 32512.0F);
      for (int i = 0; i < detail::activation_blocks(inputs) * 64; ++i) {
        const detail::activation_block& block = rows.blocks[i / 64 * 3 + 1];
        const int found = as_bytes ? 256 * block.bytes[0][i % 64] + block.bytes[1][i % 64] : block.words[i % 64];
        REQUIRE(found == (i < inputs ? rounded(x[static_cast<std::size_t>(i)], rows.scales[1]) : 0));
      }
    }
  }
}

TEST_CASE("a row's product is bitwise the same alone and among others, in either form") {
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    const case_type c(type, 50, 256, 20);
    for (const matrix_arithmetic form : {exact, integer}) {
      const auto together = c.product(form, 0, 20);
      for (int r = 0; r < 20; ++r) {
        const auto alone = c.product(form, r, 1);
        REQUIRE(std::memcmp(alone.data(), &together[static_cast<std::size_t>(r * 50)], 50 * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("every processor's products are bitwise the same") {
  for (const instruction_set set : instruction_sets) {
    if (!detail::processor_has(set)) {
      WARN("this processor lacks instruction set " << static_cast<int>(set));
      continue;
    }
    for (const weight_type type : weight_types) {
      INFO(name_of(type) << ", instruction set " << static_cast<int>(set));
      const int inputs = type == weight_type::i8_rows ? 300 : 512;
      // Few rows and many may take other instructions.
      const case_type portable(type, 45, inputs, 21, instruction_set::portable), c(type, 45, inputs, 21, set);
      CHECK(same_bits(c.product(integer, 0, 21), portable.product(integer, 0, 21)));
      CHECK(same_bits(c.product(integer, 0, 5), portable.product(integer, 0, 5)));
      CHECK(same_bits(c.product(exact, 0, 5), portable.product(exact, 0, 5)));
      CHECK(same_bits(c.product(integer, 0, 1), portable.product(integer, 0, 1)));
      CHECK(same_bits(c.product(exact, 0, 1), portable.product(exact, 0, 1)));
      for (const int rows : {5, 21})
        CHECK(same_bits(c.product(integer, 0, rows, true, 0.25F), portable.product(integer, 0, rows, true, 0.25F)));
    }
  }
}

TEST_CASE("a run of outputs is written and nothing beside it") {
  for (const weight_type type : {weight_type::f32, weight_type::q4_0, weight_type::i8_rows}) {
    for (const matrix_arithmetic form : {exact, integer}) {
      const case_type c(type, 100, 256, 3);
      const auto whole = c.product(form, 0, 3);
      for (const int end : {64, 100}) {
        std::vector<float> y(3 * 100, -7.0F);
        c.multiply(form, 0, 3, y, 32, end, false);
        for (std::size_t i = 0; i < y.size(); ++i) {
          const int o = static_cast<int>(i) % 100;
          REQUIRE(y[i] == (o >= 32 && o < end ? whole[i] : -7.0F));
        }
      }
    }
  }
}

TEST_CASE("rows can be read back bit for bit") {
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    const case_type c(type, 45, 256, 1);
    std::vector<float> row(256);
    for (int o = 0; o < 45; ++o) {
      c.matrix.get_row(o, row.data());
      REQUIRE(std::memcmp(row.data(), &c.w[static_cast<std::size_t>(o * 256)], 256 * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("one matrix may have rows of several types") {
  for (const int change : {32, 40, 64}) {  // within a granule, too
    const case_type c(weight_type::i8_rows, weight_type::q6_k, 96, 256, 4, change);
    CHECK(same_bits(c.product(exact, 0, 4), c.float_product()));
    const auto y = c.product(integer, 0, 4), alone = c.product(integer, 2, 1);
    CHECK(std::equal(alone.begin(), alone.end(), y.begin() + 2 * 96));
    CHECK(static_cast<double>(y[50]) == Approx(c.exact_sum(0, 50)).epsilon(0.2).margin(1.0));
  }
}

TEST_CASE("rows of which only some were expected may have any type") {
  std::mt19937 random(8);
  weight_matrix matrix(64, 96);
  matrix.expect_rows(0, 16, weight_type::q8_0);  // half of a granule
  matrix.expect_rows(48, 0, weight_type::q4_0);  // none
  matrix.expect_rows(32, 32, weight_type::q4_0);
  detail::float_block block(matrix.storage_floats(), false);
  matrix.place(block.take(matrix.storage_floats()));
  std::vector<float> found(96);
  for (const auto& [output, type] :
       {std::pair{3, weight_type::q8_0}, std::pair{20, weight_type::bf16}, std::pair{50, weight_type::q4_0}}) {
    const random_weights row(type, 96, random);
    matrix.set_row(output, row.row());
    matrix.get_row(output, found.data());
    CHECK(same_bits(found, row.floats()));
  }
}

TEST_CASE("weights take the bytes of their type; of 2 and 3 bits half a byte each, of 5 and 6 bits or of a table one") {
  const auto bytes_a_weight = [](weight_type type) {
    const case_type c(type, 64, 768, 0);
    return static_cast<double>(c.matrix.storage_floats()) * 4 / (64 * 768);
  };
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    using enum weight_type;
    const bool widened = type == q5_0 || type == q5_1 || type == iq4_nl || type == mxfp4 || type >= q5_k;
    const bool half = type == q2_k || type == q3_k;
    const double in_file = static_cast<double>(row_bytes(type, 256)) / 256;
    CHECK(bytes_a_weight(type) >= in_file);
    CHECK(bytes_a_weight(type) < (widened ? 1.13 : half ? 0.65 : in_file * 1.04));
  }
}

TEST_CASE("numbers that are not finite make products that are not") {
  case_type c(weight_type::i8_rows, 32, 64, 2);
  for (const float fault : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    c.x[5] = fault;
    const auto y = c.product(integer, 0, 2);
    CHECK(std::all_of(y.begin(), y.begin() + 32, [](float v) { return std::isnan(v); }));
    CHECK(std::all_of(y.begin() + 32, y.end(), [](float v) { return std::isfinite(v); }));
  }
  std::fill_n(c.x.begin(), 64, 0.0F);
  const auto y = c.product(integer, 0, 1);
  CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == 0.0F; }));
}
