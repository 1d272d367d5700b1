// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "espalier/model/llama/simd.hpp"

//! The functions of a transformer between its matrix products, for one row. Sums run in an order that depends on the
//! length alone.
namespace espalier::detail {

// Calls body(i, n) for each run of simd_lanes elements, n being a constant, and for the elements that are left.
template <class BodyT>
[[gnu::always_inline]] inline void in_lanes(int n, BodyT&& body) {
  int i = 0;
  for (; i + simd_lanes <= n; i += simd_lanes)
    body(i, std::integral_constant<int, simd_lanes>{});
  if (i < n) body(i, n - i);
}

[[gnu::always_inline]] inline simd_float simd_load_run(const float* from, int n) {
  return n == simd_lanes ? simd_load(from) : simd_load_first(from, n);
}

[[gnu::always_inline]] inline void simd_store_run(float* to, simd_float value, int n) {
  n == simd_lanes ? simd_store(to, value) : simd_store_first(to, value, n);
}

inline float sum_of_squares(const float* x, int n) {
  simd_float squares{};
  in_lanes(n, [&](int i, auto many) {
    const simd_float v = simd_load_run(x + i, many);
    squares = multiply_add(v, v, squares);
  });
  return simd_sum(squares);
}

// out = x / sqrt(mean(x^2) + epsilon) * scale. out may be x.
inline void rms_norm(const float* x, int n, const float* scale, float epsilon, float* out) {
  const float factor = 1.0F / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + epsilon);
  in_lanes(n, [&](int i, auto many) {
    simd_store_run(out + i, simd_load_run(x + i, many) * factor * simd_load_run(scale + i, many), many);
  });
}

// out = (x - mean) / sqrt(variance + epsilon) * scale + bias.
inline void layer_norm(const float* x, int n, const float* scale, const float* bias, float epsilon, float* out) {
  simd_float total{};
  in_lanes(n, [&](int i, auto many) { total += simd_load_run(x + i, many); });
  const float mean = simd_sum(total) / static_cast<float>(n);
  float variance = 0.0F;
  for (int i = 0; i < n; ++i) {
    out[i] = x[i] - mean;
    variance = std::fma(out[i], out[i], variance);
  }
  const float factor = 1.0F / std::sqrt(variance / static_cast<float>(n) + epsilon);
  in_lanes(n, [&](int i, auto many) {
    const simd_float v = simd_load_run(out + i, many) * factor;
    simd_store_run(out + i, multiply_add(v, simd_load_run(scale + i, many), simd_load_run(bias + i, many)), many);
  });
}

// Rotates the pairs (i, i + dims / 2), i < dims / 2, of one head, copies its other dimensions, and multiplies all by
// `factor`. out may be x.
//
// Shapes: x, out [head_dim]; cosine, sine [dims / 2]
inline void rotate_head(const float* x, int head_dim, int dims, const float* cosine, const float* sine, float factor,
                        float* out) {
  const int half = dims / 2;
  in_lanes(half, [&](int i, auto many) {
    const simd_float a = simd_load_run(x + i, many), b = simd_load_run(x + half + i, many);
    const simd_float c = simd_load_run(cosine + i, many) * factor, s = simd_load_run(sine + i, many) * factor;
    const simd_float minus_bs = simd_float{} - b * s, as = a * s;
    simd_store_run(out + i, multiply_add(a, c, minus_bs), many);
    simd_store_run(out + half + i, multiply_add(b, c, as), many);
  });
  in_lanes(head_dim - dims,
           [&](int i, auto many) { simd_store_run(out + dims + i, simd_load_run(x + dims + i, many) * factor, many); });
}

// gate = gate * sigmoid(gate) * up.
inline void silu_times(float* gate, const float* up, int n) {
  in_lanes(n, [&](int i, auto many) {
    const simd_float g = simd_load_run(gate + i, many);
    const simd_float sigmoid_inverse = simd_exp(simd_float{} - g) + 1.0F;
    simd_store_run(gate + i, g / sigmoid_inverse * simd_load_run(up + i, many), many);
  });
}

inline float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

// x = x * gate * sigmoid(gate).
inline void times_silu(float* x, const float* gate, int n) {
  in_lanes(n, [&](int i, auto many) {
    const simd_float g = simd_load_run(gate + i, many);
    simd_store_run(x + i, simd_load_run(x + i, many) * (g / (simd_exp(simd_float{} - g) + 1.0F)), many);
  });
}

// x = x * sigmoid(gate).
inline void times_sigmoid(float* x, const float* gate, int n) {
  in_lanes(n, [&](int i, auto many) {
    const simd_float g = simd_load_run(gate + i, many);
    simd_store_run(x + i, simd_load_run(x + i, many) / (simd_exp(simd_float{} - g) + 1.0F), many);
  });
}

// gate = (up + 1) * gate * sigmoid(gain * gate), for gates of at most `limit`, and up within -limit and limit.
inline void limited_silu_times(float* gate, const float* up, int n, float gain, float limit) {
  const simd_float most = simd_broadcast(limit), least = simd_broadcast(-limit), by = simd_broadcast(-gain);
  in_lanes(n, [&](int i, auto many) {
    const simd_float g = simd_load_run(gate + i, many), u = simd_load_run(up + i, many);
    const simd_float at_most = g > most ? most : g, within = u > most ? most : (u < least ? least : u);
    simd_store_run(gate + i, at_most / (simd_exp(at_most * by) + 1.0F) * (within + 1.0F), many);
  });
}

// x = x * (1 + erf(x / sqrt(2))) / 2, the exact form.
inline void gelu(float* x, int n) {
  for (int i = 0; i < n; ++i)
    x[i] = 0.5F * x[i] * (1.0F + std::erf(x[i] * 0.70710678F));
}

// gate = gelu(gate) * up, by the form x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
inline void gelu_tanh_times(float* gate, const float* up, int n) {
  in_lanes(n, [&](int i, auto many) {
    const simd_float g = simd_load_run(gate + i, many);
    // (1 + tanh(u)) / 2 is 1 / (1 + e^(-2 u)).
    const simd_float minus_two_u = g * (g * g * -0.0713548162726F + -1.59576912161F);
    simd_store_run(gate + i, g / (simd_exp(minus_two_u) + 1.0F) * simd_load_run(up + i, many), many);
  });
}

// x = cap * tanh(x / cap).
inline void soft_cap(float* x, int n, float cap) {
  for (int i = 0; i < n; ++i)
    x[i] = cap * std::tanh(x[i] / cap);
}

// x *= factor.
inline void multiply_by(float* x, int n, float factor) {
  for (int i = 0; i < n; ++i)
    x[i] *= factor;
}

// to += factor * x.
inline void add_multiple(const float* x, int n, float factor, float* to) {
  const simd_float by = simd_broadcast(factor);
  in_lanes(n, [&](int i, auto many) {
    simd_store_run(to + i, multiply_add(simd_load_run(x + i, many), by, simd_load_run(to + i, many)), many);
  });
}

// to += x * y.
inline void add_products(const float* x, const float* y, int n, float* to) {
  in_lanes(n, [&](int i, auto many) {
    const simd_float sum = simd_load_run(to + i, many);
    simd_store_run(to + i, multiply_add(simd_load_run(x + i, many), simd_load_run(y + i, many), sum), many);
  });
}

// Turns scores into e^(score - greatest) and returns their sum. Overwrites the memory behind them up to a whole vector.
inline float exponentials(float* scores, int n) {
  simd_float greatest = simd_broadcast(-INFINITY);
  const int whole = (n + simd_lanes - 1) / simd_lanes * simd_lanes;
  std::fill(scores + n, scores + whole, -INFINITY);
  for (int i = 0; i < whole; i += simd_lanes)
    greatest = simd_max(greatest, simd_load(scores + i));
  const simd_float peak = simd_broadcast(simd_greatest(greatest));
  simd_float total{};
  for (int i = 0; i < whole; i += simd_lanes) {
    const simd_float e = simd_exp(simd_load(scores + i) - peak);
    simd_store(scores + i, e);
    total += e;
  }
  return simd_sum(total);
}

}  // namespace espalier::detail
