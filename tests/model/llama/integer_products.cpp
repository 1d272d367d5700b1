// SPDX-License-Identifier: BSL-1.0
//
// Products of integers with the instructions that a processor has, against those of the portable form, bit for bit. A
// program without a test framework, for other processors' compilers and an emulator.
//
//   integer_products SET    the instruction set that must be there, as its number

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/integer_multiplier.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/weight_matrix.hpp"
#include "model/llama/random_weights.hpp"

namespace {

using namespace espalier;
using detail::instruction_set;

std::vector<float> product(weight_type type, int inputs, int rows, bool integers, instruction_set set) {
  constexpr int outputs = 45;
  std::mt19937 random(7);
  weight_matrix matrix(outputs, inputs, set);
  matrix.expect_rows(0, outputs, type);
  detail::float_block block(matrix.storage_floats(), false);
  matrix.place(block.take(matrix.storage_floats()));
  for (int o = 0; o < outputs; ++o) {
    const random_weights row(type, inputs, random);
    matrix.set_row(o, row.row());
  }
  std::vector<float> x(static_cast<std::size_t>(rows * inputs)), y(static_cast<std::size_t>(rows * outputs));
  for (float& value : x)
    value = static_cast<float>(random() % 2001) * 1e-3F - 1.0F;
  detail::product_room room(rows);
  detail::activation_room written(rows, inputs);
  detail::matrix_rows from{x.data(), inputs, rows};
  if (integers) {
    const bool as_bytes = detail::integer_multiplier::takes_bytes(set, rows);
    from.integers = written.write(x.data(), inputs, inputs, rows, 0, rows, as_bytes);
  }
  matrix.multiply(from, y.data(), outputs, 0, outputs, false, room);
  return y;
}

bool same_bits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto set = static_cast<instruction_set>(argc > 1 ? std::atoi(argv[1]) : 0);
  if (detail::best_instruction_set() != set) {
    std::fprintf(stderr, "Instruction set %d was chosen, not %d.\n", static_cast<int>(detail::best_instruction_set()),
                 static_cast<int>(set));
    return 1;
  }
  int wrong = 0, compared = 0;
  for (const weight_type type : weight_types) {
    if (type < weight_type::i8_rows) continue;
    const int inputs = type == weight_type::i8_rows ? 300 : 512;
    for (const int rows : {1, 2, 3, 4, 5, 8}) {
      for (const bool integers : {true, false}) {
        if (integers && type != weight_type::i8_rows) continue;
        for (const instruction_set each : {set, instruction_set::neon}) {
          if (!detail::processor_has(each)) continue;
          const std::vector<float> y = product(type, inputs, rows, integers, each);
          const bool same = same_bits(y, product(type, inputs, rows, integers, instruction_set::portable).data());
          // The first row alone has the bits that it has among others.
          const bool alone = same_bits(product(type, inputs, 1, integers, each), y.data());
          if (!same || !alone)
            ++wrong, std::fprintf(stderr, "type %d, %d rows, integers %d, %s\n", static_cast<int>(type), rows, integers,
                                  name_of(each));
          ++compared;
        }
      }
    }
  }
  std::printf("%d products compared, %d differ\n", compared, wrong);
  return wrong == 0 && compared > 0 ? 0 : 1;
}
