// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/elementwise.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"

namespace {

using namespace espalier::detail;

std::vector<float> ramp(int n, float from, float step) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i)
    values.push_back(from + step * static_cast<float>(i));
  return values;
}

// Not inlined: g++ 12 fails on the vector code of constant arguments.
[[gnu::noinline]] float exp_of(float x) {
  float lanes[simd_lanes];
  simd_store(lanes, simd_exp(simd_broadcast(x)));
  return lanes[simd_lanes - 1];
}

}  // namespace

TEST_CASE("the exponential is right to 2 units in the last place") {
  for (float x = -87.0F; x < 88.0F; x += 0.0137F) {
    const double expected = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(static_cast<double>(exp_of(x)) / expected - 1.0) < 2.5e-7);
  }
  CHECK(exp_of(0.0F) == 1.0F);
  CHECK(exp_of(-INFINITY) == 0.0F);
  CHECK(exp_of(-100.0F) == 0.0F);
  CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("a transposed square is its transpose") {
  simd_float rows[simd_lanes];
  for (int i = 0; i < simd_lanes; ++i) {
    for (int j = 0; j < simd_lanes; ++j)
      rows[i][j] = static_cast<float>(100 * i + j);
  }
  simd_transpose(rows);
  for (int i = 0; i < simd_lanes; ++i) {
    for (int j = 0; j < simd_lanes; ++j)
      CHECK(rows[i][j] == static_cast<float>(100 * j + i));
  }
}

TEST_CASE("a multiple is added at every length") {
  for (const int n : {1, 15, 16, 17, 100}) {
    const auto x = ramp(n, -1.3F, 0.21F), before = ramp(n, 2.0F, -0.03F);
    std::vector<float> sums = before;
    add_multiple(x.data(), n, 0.22F, sums.data());
    for (std::size_t i = 0; i < x.size(); ++i)
      CHECK(static_cast<double>(sums[i]) == Approx(double{before[i]} + 0.22 * double{x[i]}).margin(1e-6));
  }
}

TEST_CASE("norms follow their definitions at every length") {
  for (const int n : {1, 3, 15, 16, 17, 64, 100}) {
    const auto x = ramp(n, -1.3F, 0.21F), scale = ramp(n, 0.5F, 0.03F), bias = ramp(n, 0.1F, -0.02F);
    std::vector<float> rms(x.size()), layer(x.size());
    rms_norm(x.data(), n, scale.data(), 1e-5F, rms.data());
    layer_norm(x.data(), n, scale.data(), bias.data(), 1e-5F, layer.data());
    double squares = 0.0, mean = 0.0, variance = 0.0;
    for (const float v : x)
      squares += static_cast<double>(v) * static_cast<double>(v) / n, mean += static_cast<double>(v) / n;
    for (const float v : x)
      variance += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) / n;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]), s = static_cast<double>(scale[i]);
      CHECK(static_cast<double>(rms[i]) == Approx(v / std::sqrt(squares + 1e-5) * s).epsilon(1e-5).margin(1e-6));
      CHECK(static_cast<double>(layer[i]) ==
            Approx((v - mean) / std::sqrt(variance + 1e-5) * s + static_cast<double>(bias[i]))
                .epsilon(1e-4)
                .margin(1e-5));
    }
  }
}

TEST_CASE("rotation turns pairs half a head apart and leaves the rest") {
  for (const auto& [dim, rotated] : {std::pair(8, 8), std::pair(24, 6), std::pair(80, 80), std::pair(10, 0)}) {
    const auto x = ramp(dim, 1.0F, 0.5F), cosine = ramp(rotated / 2, 0.9F, -0.01F),
               sine = ramp(rotated / 2, 0.1F, 0.02F);
    std::vector<float> out(x.size());
    rotate_head(x.data(), dim, rotated, cosine.data(), sine.data(), 2.0F, out.data());
    for (int i = 0; i < dim; ++i) {
      const int half = rotated / 2;
      float expected = 2.0F * x[static_cast<std::size_t>(i)];
      if (i < rotated) {
        const auto pair = static_cast<std::size_t>(i % half), a = static_cast<std::size_t>(i);
        const float other = i < half ? -x[a + static_cast<std::size_t>(half)] : x[pair];
        expected = 2.0F * (x[a] * cosine[pair] + other * sine[pair]);
      }
      CHECK(out[static_cast<std::size_t>(i)] == Approx(expected));
    }
  }
}

TEST_CASE("activations follow their definitions, also far out") {
  for (const int n : {1, 16, 37}) {
    auto gate = ramp(n, -100.0F, 200.0F / static_cast<float>(n)), same = gate;
    const auto up = ramp(n, -1.0F, 0.3F);
    silu_times(gate.data(), up.data(), n);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(same[i]);
      CHECK(static_cast<double>(gate[i]) ==
            Approx(g / (1.0 + std::exp(-g)) * static_cast<double>(up[i])).epsilon(1e-5).margin(1e-30));
    }
    gate = same;
    limited_silu_times(gate.data(), up.data(), n, 1.7F, 3.0F);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min(static_cast<double>(same[i]), 3.0);
      const double u = std::clamp(static_cast<double>(up[i]), -3.0, 3.0);
      CHECK(static_cast<double>(gate[i]) ==
            Approx((u + 1.0) * g / (1.0 + std::exp(-static_cast<double>(1.7F) * g))).epsilon(1e-5).margin(1e-30));
    }
    gate = same;
    gelu_tanh_times(gate.data(), up.data(), n);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(same[i]);
      const double tanh = std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (g + 0.044715 * g * g * g));
      CHECK(static_cast<double>(gate[i]) ==
            Approx(0.5 * g * (1.0 + tanh) * static_cast<double>(up[i])).epsilon(1e-5).margin(1e-6));
    }
    gate = same;
    soft_cap(gate.data(), n, 30.0F);
    for (std::size_t i = 0; i < gate.size(); ++i)
      CHECK(static_cast<double>(gate[i]) == Approx(30.0 * std::tanh(static_cast<double>(same[i]) / 30.0)));
    auto curve = ramp(n, -3.0F, 0.2F), before = curve;
    gelu(curve.data(), n);
    for (std::size_t i = 0; i < curve.size(); ++i) {
      const double v = static_cast<double>(before[i]);
      CHECK(static_cast<double>(curve[i]) ==
            Approx(0.5 * v * (1.0 + std::erf(v / std::sqrt(2.0)))).epsilon(1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("exponentials of scores are relative to the greatest") {
  for (const int n : {1, 15, 16, 33}) {
    std::vector<float> scores = ramp(n + 2 * simd_lanes, 90.0F, 0.25F);
    const std::vector<float> before = scores;
    const float total = exponentials(scores.data(), n);
    double expected = 0.0;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double e = std::exp(static_cast<double>(before[at] - before[static_cast<std::size_t>(n - 1)]));
      CHECK(static_cast<double>(scores[at]) == Approx(e));
      expected += e;
    }
    CHECK(static_cast<double>(total) == Approx(expected));
  }
}

TEST_CASE("gates multiply a row by their sigmoids, or by what SiLU makes of them") {
  constexpr int n = 37;
  const std::vector<float> gates = ramp(n, -9.0F, 0.5F), x = ramp(n, 1.0F, 0.25F);
  std::vector<float> by_sigmoid = x, by_silu = x;
  times_sigmoid(by_sigmoid.data(), gates.data(), n);
  times_silu(by_silu.data(), gates.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const double gate = gates[i], expected = x[i] / (1.0 + std::exp(-gate));
    CHECK(by_sigmoid[i] == Approx(expected).epsilon(1e-6));
    CHECK(by_silu[i] == Approx(expected * gate).epsilon(1e-6));
    CHECK(sigmoid(gates[i]) == Approx(1.0 / (1.0 + std::exp(-gate))).epsilon(1e-6));
  }
}
