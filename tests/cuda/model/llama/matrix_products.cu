// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/matrix_products.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/cuda/model/llama/number.cuh"

namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

struct product_shape {
  int outputs, inputs;
};

std::vector<product_shape> shapes() {
  std::vector<product_shape> all{{768, 384}, {384, 384}, {2048, 384}, {384, 1024}, {72, 16}, {16, 40}};
#if !__has_include("emulator/api.hpp")
  all.insert(all.end(), {{4096, 384}, {6144, 4096}, {4096, 4096}, {4096, 12288}});
#endif
  return all;
}

template <class NumberT>
std::vector<NumberT> random_numbers(std::size_t n, float scale, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<NumberT> of(n);
  for (NumberT& x : of)
    x = static_cast<NumberT>(scale * (static_cast<float>(random() % 20001U) / 10000.0F - 1.0F));
  return of;
}

// Rows first, first + 1, ... of x [n][inputs] times a matrix, added to the same rows of what is there.
template <class NumberT, class ResultT>
std::vector<ResultT> multiply(const gpu::matrix_products& products, int number, product_shape shape,
                              const gpu::device_array<NumberT>& matrix, const std::vector<NumberT>& x,
                              const std::vector<ResultT>& there, int first, int rows) {
  const auto part = [&](const auto& of, int width) {
    const auto begin = of.begin() + static_cast<std::ptrdiff_t>(first) * width;
    return to_device(std::vector(begin, begin + static_cast<std::ptrdiff_t>(rows) * width));
  };
  const auto from = part(x, shape.inputs);
  const auto to = part(there, shape.outputs);
  products.multiply(number, matrix.data(), from.data(), to.data(), rows, nullptr);
  return to_host(to);
}

template <class NumberT, class ResultT>
void compare_rows(bool accumulate) {
  constexpr int most = 512;
  gpu::matrix_products products(gpu::detail::data_type_of<NumberT>, true);
  std::vector<int> numbers;
  for (const product_shape& s : shapes())
    numbers.push_back(products.add(s.outputs, s.inputs, gpu::detail::data_type_of<ResultT>, accumulate));
  for (const int rows : {1, 2, 7, 9, 64, 65, 257, most})
    products.plan(rows);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const product_shape s = shapes()[i];
    INFO(s.outputs << " outputs of " << s.inputs << " inputs, " << (accumulate ? "added" : "set"));
    const auto outputs = static_cast<std::size_t>(s.outputs), inputs = static_cast<std::size_t>(s.inputs);
    const auto matrix = to_device(random_numbers<NumberT>(outputs * inputs, 1.0F, 3));
    const auto x = random_numbers<NumberT>(most * inputs, 1.0F, 4);
    const auto there = random_numbers<ResultT>(most * outputs, 3.0F, 5);
    const auto expected = multiply(products, numbers[i], s, matrix, x, there, 0, most);
    double first = accumulate ? static_cast<double>(static_cast<float>(there[0])) : 0.0;
    const auto weights = random_numbers<NumberT>(inputs, 1.0F, 3);
    for (std::size_t k = 0; k < inputs; ++k)
      first += static_cast<double>(static_cast<float>(weights[k])) * static_cast<double>(static_cast<float>(x[k]));
    CHECK(std::abs(static_cast<double>(static_cast<float>(expected[0])) - first) <
          1e-2 * std::sqrt(static_cast<double>(inputs)));
    for (const int rows : {1, 2, 7, 9, 64, 65, 257}) {
      for (const int from : {0, most - rows}) {
        const auto got = multiply(products, numbers[i], s, matrix, x, there, from, rows);
        INFO(rows << " rows from " << from);
        CHECK(std::memcmp(got.data(), expected.data() + static_cast<std::size_t>(from) * outputs,
                          got.size() * sizeof(ResultT)) == 0);
      }
    }
  }
}

// Products with some of a matrix's outputs, as the whole has them. Planned by one algorithm alike.
template <class NumberT, class ResultT>
void compare_outputs(bool accumulate) {
  constexpr int rows = 33;
  for (const product_shape& whole : shapes()) {
    const int n = whole.outputs / 2 / 8 * 8;
    if (n == 0) continue;
    INFO(n << " of " << whole.outputs << " outputs of " << whole.inputs << " inputs");
    const auto inputs = static_cast<std::size_t>(whole.inputs);
    gpu::matrix_products products(gpu::detail::data_type_of<NumberT>, true);
    constexpr cudaDataType_t result = gpu::detail::data_type_of<ResultT>;
    const int all = products.add(whole.outputs, whole.inputs, result, accumulate);
    const int part = products.add(n, whole.inputs, result, accumulate, 256, whole.outputs);
    products.plan(rows);
    const auto matrix = random_numbers<NumberT>(static_cast<std::size_t>(whole.outputs) * inputs, 1.0F, 6);
    const auto x = random_numbers<NumberT>(rows * inputs, 1.0F, 7);
    const std::vector<ResultT> there(static_cast<std::size_t>(rows * whole.outputs), ResultT(0.5F)),
        there_of_part(static_cast<std::size_t>(rows * n), ResultT(0.5F));
    const auto expected = multiply(products, all, whole, to_device(matrix), x, there, 0, rows);
    const std::vector<NumberT> last(matrix.end() - static_cast<std::ptrdiff_t>(n * whole.inputs), matrix.end());
    const auto found = multiply(products, part, {n, whole.inputs}, to_device(last), x, there_of_part, 0, rows);
    for (int row = 0; row < rows; ++row) {
      const auto* of_whole = expected.data() + (row + 1) * whole.outputs - n;
      CHECK(std::memcmp(found.data() + row * n, of_whole, static_cast<std::size_t>(n) * sizeof(ResultT)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("With one algorithm a row of a product has the same bits beside any number of others") {
  compare_rows<__nv_bfloat16, __nv_bfloat16>(false);
  compare_rows<__nv_bfloat16, float>(false);
  compare_rows<__nv_bfloat16, float>(true);
  compare_rows<__half, __half>(false);
  compare_rows<__half, float>(true);
  compare_rows<float, float>(false);
  compare_rows<float, float>(true);
}

TEST_CASE("With one algorithm some of a matrix's outputs have the bits that they have in the whole") {
  compare_outputs<__nv_bfloat16, __nv_bfloat16>(false);
  compare_outputs<__nv_bfloat16, float>(true);
  compare_outputs<__half, float>(true);
  compare_outputs<float, float>(true);
}
