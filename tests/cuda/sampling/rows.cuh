// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

//! Rows of numbers that selection, sums and cuts have trouble with.
namespace espalier_test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

template <class NumberT>
NumberT as(float x) {
  if constexpr (std::is_same_v<NumberT, float>) {
    return x;
  } else if constexpr (std::is_same_v<NumberT, __half>) {
    return __float2half(x);
  } else {
    return __float2bfloat16(x);
  }
}
inline float as_float(float x) {
  return x;
}
inline float as_float(__half x) {
  return __half2float(x);
}
inline float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class NumberT>
std::vector<float> as_floats(std::span<const NumberT> numbers) {
  std::vector<float> floats;
  floats.reserve(numbers.size());
  for (const NumberT x : numbers)
    floats.push_back(as_float(x));
  return floats;
}

struct named_row {
  std::string name;
  std::vector<float> logits;
};

//! All finite where `finite`.
inline std::vector<named_row> hard_rows(std::size_t n, bool finite) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  std::normal_distribution<double> normal;
  std::vector<named_row> all;
  const auto add = [&](const char* name, const auto& logit) {
    std::vector<float> row(n);
    for (std::size_t i = 0; i < n; ++i)
      row[i] = static_cast<float>(logit(static_cast<double>(i)));
    all.push_back({name, std::move(row)});
  };
  const auto size = static_cast<double>(n);
  add("bell", [&](double) { return 2.5 * normal(random); });
  add("like a language model", [&](double) { return random() % 5000 == 0 ? 14 + 2 * normal(random) : normal(random); });
  add("flat", [&](double) { return 1e-3 * normal(random); });
  add("steep", [&](double) { return 60 * normal(random); });
  add("far from 0", [&](double) { return 1000 + normal(random); });
  add("log probabilities", [&](double) { return -12 - std::abs(normal(random)); });
  add("ascending", [&](double i) { return 20 * i / size; });
  add("descending", [&](double i) { return -20 * i / size; });
  add("a saw", [&](double i) { return std::fmod(i, 97) / 5; });
  add("equal", [](double) { return -3.25; });
  add("zeros of both signs", [&](double) { return random() % 2 == 0 ? 0.0 : -0.0; });
  add("three values", [&](double) { return static_cast<double>(random() % 3); });
  add("few huge", [&](double) { return random() % 1000 == 0 ? 30000 + 100 * normal(random) : normal(random); });
  add("a block of masked tokens first", [&](double i) { return i < size / 2 ? -65504.0 : normal(random); });
  add("rising by steps", [&](double i) { return std::floor(i / 1024) * 30; });
  if (finite) return all;
  constexpr auto minus_infinity = -std::numeric_limits<double>::infinity();
  add("most are impossible", [&](double i) { return random() % 50 == 0 || i == 0 ? normal(random) : minus_infinity; });
  add("some are impossible", [&](double i) { return random() % 50 == 0 && i > 0 ? minus_infinity : normal(random); });
  add("one is possible", [&](double i) { return i == std::floor(size / 3) ? 7.0 : minus_infinity; });
  return all;
}

}  // namespace espalier_test
