// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/small/small_products.hpp"
#include "espalier/model/small/small_shape.hpp"
#include "espalier/model/small/small_weights.hpp"
#include "espalier/sampling/exponential.hpp"

//! The forward pass of small_llama, one copy of its code for models of all sizes. What is done to a row does not depend
//! on the others.
namespace espalier::detail {

// Newton's iteration from a first guess by the exponent; error below 3e-7. A library's root may set errno.
inline float inverse_root(float x) {
  float y = __builtin_bit_cast(float, 0x5F3759DF - (__builtin_bit_cast(std::int32_t, x) >> 1));
  for (int i = 0; i < 4; ++i)
    y = y * (1.5F - 0.5F * x * y * y);
  return y;
}

// x / (1 + e^-x)
inline float silu(float x) {
  return x * scaled_exp_at_0 / (scaled_exp_at_0 + scaled_exp(x < -60.0F ? 60.0F : -x));
}

class small_pass {
 public:
  // The parts of the memory of a pass. Those that are never in use at one time lie at one place.
  struct memory_type {
    float* stream = nullptr;        // [rows][hidden]
    float* normed = nullptr;        // [rows][hidden or query_size]: inputs of products
    float* projected = nullptr;     // [rows][query_size + 2 kv_size or 2 inner], [rows][vocab] logits
    float* angles = nullptr;        // [rows][head_dim]: cosines and sines, half each
    float* scores = nullptr;        // [positions], rounded up to four
    void* integers = nullptr;       // inputs of a product
    std::int32_t* slots = nullptr;  // [positions]: what a row sees after the prefix
  };

  // Floats that the rows of a pass take.
  static constexpr std::size_t floats(const small_shape& s, std::int32_t rows) {
    return static_cast<std::size_t>(rows) *
               static_cast<std::size_t>(s.hidden + normed_size(s) + projected_size(s) + s.head_dim) +
           static_cast<std::size_t>(scores_size(s));
  }
  static constexpr std::size_t integer_bytes(const small_shape& s) {
    return machine_products::bytes(machine_products::most, s.widest_input());
  }

  small_pass(const small_weights& weights, std::int32_t max_rows, float* floats, void* integers, std::int32_t* slots)
      : weights_(weights), max_rows_(max_rows) {
    const small_shape& s = weights_.shape();
    const auto take = [&](std::int32_t n) {
      float* const here = floats;
      floats += n;
      return here;
    };
    memory_ = {take(max_rows * s.hidden),
               take(max_rows * normed_size(s)),
               take(max_rows * projected_size(s)),
               take(max_rows * s.head_dim),
               take(scores_size(s)),
               integers,
               slots};
  }

  const small_weights& weights() const { return weights_; }
  std::int32_t max_rows() const { return max_rows_; }

  // No rows where the batch does not fit.
  vocab_rows<float> run(contiguous_kv& kv, const forward_batch_view& batch) {
    if (!fits(kv, batch)) return {};
    const small_shape& s = weights_.shape();
    const std::int32_t n = batch.n_rows();
    for (std::int32_t row = 0; row < n; ++row) {
      embed(batch.tokens[static_cast<std::size_t>(row)], memory_.stream + row * s.hidden);
      turn(batch.positions[static_cast<std::size_t>(row)], memory_.angles + row * s.head_dim);
    }
    for (std::int32_t i = 0; i < s.layers; ++i) {
      const small_weights::layer_type layer = weights_.layer(i);
      for (std::int32_t row = 0; row < n; ++row)
        normalise(row, layer.attention_norm, memory_.normed + row * s.hidden);
      multiply(layer.query_key_value, memory_.normed, n, memory_.projected, false);
      for (const batch_sequence& sequence : batch.sequences) {
        for (std::int32_t row = sequence.row_begin; row < sequence.row_end; ++row)
          rotate(kv, i, sequence.sequence, row, batch.slots[static_cast<std::size_t>(row)]);
        for (std::int32_t row = sequence.row_begin; row < sequence.row_end; ++row)
          attend(kv, i, batch, sequence, row);
      }
      multiply(layer.out, memory_.normed, n, memory_.stream, true);
      for (std::int32_t row = 0; row < n; ++row)
        normalise(row, layer.mlp_norm, memory_.normed + row * s.hidden);
      multiply(layer.gate_up, memory_.normed, n, memory_.projected, false);
      for (std::int32_t row = 0; row < n; ++row)
        activate(memory_.projected + row * 2 * s.inner, memory_.projected + row * s.inner);
      multiply(layer.down, memory_.projected, n, memory_.stream, true);
    }
    const auto n_outputs = static_cast<std::int32_t>(batch.outputs.size());
    for (std::int32_t i = 0; i < n_outputs; ++i)
      normalise(batch.outputs[static_cast<std::size_t>(i)], weights_.final_norm(), memory_.normed + i * s.hidden);
    multiply(weights_.embedding(), memory_.normed, n_outputs, memory_.projected, false);
    return {memory_.projected, n_outputs, s.vocab};
  }

 private:
  static constexpr std::int32_t normed_size(const small_shape& s) { return (std::max)(s.hidden, s.query_size()); }
  static constexpr std::int32_t projected_size(const small_shape& s) {
    return (std::max)({s.query_size() + 2 * s.kv_size(), 2 * s.inner, s.vocab});
  }

  static constexpr std::int32_t scores_size(const small_shape& s) { return (s.positions + 3) / 4 * 4; }

  bool fits(const contiguous_kv& kv, const forward_batch_view& batch) const {
    const small_shape& s = weights_.shape();
    if (weights_.fault() != nullptr || kv.n_layers() != s.layers || kv.row_size() != s.kv_size()) return false;
    if (batch.n_rows() > max_rows_ || kv.capacity() > s.positions) return false;
    const auto are_below = [](std::span<const std::int32_t> numbers, std::int32_t end) {
      return std::all_of(numbers.begin(), numbers.end(), [&](std::int32_t i) { return i >= 0 && i < end; });
    };
    return are_below(batch.tokens, s.vocab) && are_below(batch.positions, s.positions) &&
           are_below(batch.slots, kv.capacity()) && are_below(batch.outputs, batch.n_rows());
  }

  void multiply(const small_weights::matrix_type& w, const float* x, std::int32_t rows, float* y, bool adds) {
    multiply_rows(w, x, rows, y, adds, memory_.integers);
  }

  void embed(token_id token, float* to) const {
    const small_weights::matrix_type table = weights_.embedding();
    const std::int8_t* row = table.rows + static_cast<std::ptrdiff_t>(token) * table.inputs;
    for (std::int32_t i = 0; i < table.inputs; ++i)
      to[i] = static_cast<float>(row[i]) * table.scales[token];
  }

  // Turns of the powers of two that make up a position, one after the other.
  void turn(std::int32_t position, float* to) const {
    const std::int32_t half = weights_.shape().head_dim / 2;
    std::fill_n(to, half, 1.0F);
    std::fill_n(to + half, half, 0.0F);
    for (std::int32_t bit = 0; position >> bit > 0; ++bit) {
      if ((position >> bit & 1) == 0) continue;
      const float* by = weights_.turn(bit);
      for (std::int32_t i = 0; i < half; ++i) {
        const float cosine = to[i], sine = to[half + i];
        to[i] = cosine * by[i] - sine * by[half + i];
        to[half + i] = sine * by[i] + cosine * by[half + i];
      }
    }
  }

  void normalise(std::int32_t row, const float* scale, float* to) const {
    const std::int32_t n = weights_.shape().hidden;
    const float* x = memory_.stream + row * n;
    float squares = 0;
    for (std::int32_t i = 0; i < n; i += 8)
      each<8>([&](auto l) __attribute__((always_inline)) { squares = __builtin_fmaf(x[i + l], x[i + l], squares); });
    const float factor = inverse_root(squares / static_cast<float>(n) + weights_.epsilon());
    for (std::int32_t i = 0; i < n; i += 8)
      each<8>([&](auto l) __attribute__((always_inline)) { to[i + l] = x[i + l] * factor * scale[i + l]; });
  }

  // Queries in place; keys and values into the cache.
  void rotate(contiguous_kv& kv, std::int32_t layer, std::int32_t sequence, std::int32_t row, std::int32_t slot) {
    const small_shape& s = weights_.shape();
    float* x = memory_.projected + row * (s.query_size() + 2 * s.kv_size());
    const float *cosine = memory_.angles + row * s.head_dim, *sine = cosine + s.head_dim / 2;
    for (std::int32_t head = 0; head < s.heads + s.kv_heads; ++head) {
      float* const a = x + head * s.head_dim;
      float* const b = a + s.head_dim / 2;
      for (std::int32_t i = 0; i < s.head_dim / 2; ++i) {
        const float left = a[i], right = b[i];
        a[i] = left * cosine[i] - right * sine[i];
        b[i] = right * cosine[i] + left * sine[i];
      }
    }
    std::copy_n(x + s.query_size(), s.kv_size(), kv.key(layer, sequence, slot));
    std::copy_n(x + s.query_size() + s.kv_size(), s.kv_size(), kv.value(layer, sequence, slot));
  }

  // The slots that a row sees in ascending order, along a path that of the text: those of the prefix, then these.
  // Returns how many there are in all.
  std::int32_t list_slots(const contiguous_kv& kv, const batch_sequence& sequence,
                          std::span<const std::uint32_t> mask) const {
    std::int32_t n = 0;
    const std::int32_t most = (std::min)(32 * sequence.mask_words, kv.capacity() - sequence.prefix);
    for (std::int32_t i = 0; i < most; ++i) {
      if ((mask[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1U) != 0) memory_.slots[n++] = sequence.prefix + i;
    }
    return sequence.prefix + n;
  }

  // Row i of those that are seen.
  [[gnu::always_inline]] const float* seen(const float* rows, std::int32_t prefix, std::int32_t i) const {
    return rows + (i < prefix ? i : memory_.slots[i - prefix]) * weights_.shape().kv_size();
  }

  void attend(contiguous_kv& kv, std::int32_t layer, const forward_batch_view& batch, const batch_sequence& sequence,
              std::int32_t row) {
    const small_shape& s = weights_.shape();
    const std::int32_t n = list_slots(kv, sequence, batch.mask_of(sequence, row));
    const float* query = memory_.projected + row * (s.query_size() + 2 * s.kv_size());
    float* to = memory_.normed + row * s.query_size();
    const float* const keys = kv.key(layer, sequence.sequence, 0);
    const float* const values = kv.value(layer, sequence.sequence, 0);
    const float factor = inverse_root(static_cast<float>(s.head_dim));
    for (std::int32_t head = 0; head < s.heads; ++head, query += s.head_dim, to += s.head_dim) {
      const std::int32_t offset = head / (s.heads / s.kv_heads) * s.head_dim;
      score(query, keys + offset, sequence.prefix, n, factor);
      const float part = 1.0F / weigh(n);
      std::int32_t d = 0;
      for (; d + 16 <= s.head_dim; d += 16)
        mix<16>(values + offset + d, sequence.prefix, n, part, to + d);
      if (d < s.head_dim) mix<8>(values + offset + d, sequence.prefix, n, part, to + d);
    }
  }

  // Scores of what is seen, four at a time, the last of them again where there are fewer.
  void score(const float* query, const float* keys, std::int32_t prefix, std::int32_t n, float factor) const {
    const std::int32_t dim = weights_.shape().head_dim;
    for (std::int32_t i = 0; i < n; i += 4) {
      const float* key[4];
      each<4>([&](auto l) __attribute__((always_inline)) { key[l] = seen(keys, prefix, (std::min)(i + l, n - 1)); });
      float sums[4] = {};
      for (std::int32_t d = 0; d < dim; d += 8) {
        each<8>([&](auto e) __attribute__((always_inline)) {
          const float q = query[d + e];
          each<4>([&](auto l) __attribute__((always_inline)) { sums[l] = __builtin_fmaf(q, key[l][e], sums[l]); });
        });
        each<4>([&](auto l) __attribute__((always_inline)) { key[l] += 8; });
      }
      each<4>([&](auto l) __attribute__((always_inline)) { memory_.scores[i + l] = sums[l] * factor; });
    }
  }

  // Exponentials of the scores relative to the greatest; returns their sum.
  [[gnu::flatten]] float weigh(std::int32_t n) const {
    float* const scores = memory_.scores;
    float greatest = scores[0];
    for (std::int32_t i = 1; i < n; ++i)
      greatest = (std::max)(greatest, scores[i]);
    float sum = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      scores[i] = scaled_exp(scores[i] - greatest);
      sum += scores[i];
    }
    return sum;
  }

  // So many dimensions of the values, each weighing its score.
  template <std::int32_t Dimensions>
  void mix(const float* values, std::int32_t prefix, std::int32_t n, float factor, float* to) const {
    float sums[Dimensions];
    each<Dimensions>([&](auto l) __attribute__((always_inline)) { sums[l] = 0.0F; });
    for (std::int32_t i = 0; i < n; ++i) {
      const float* const value = seen(values, prefix, i);
      const float weight = memory_.scores[i];
      each<Dimensions>([&](auto l)
                           __attribute__((always_inline)) { sums[l] = __builtin_fmaf(weight, value[l], sums[l]); });
    }
    each<Dimensions>([&](auto l) __attribute__((always_inline)) { to[l] = sums[l] * factor; });
  }

  // [2 inner] gates and the numbers that they weigh, to [inner], which may begin where the gates do or before.
  [[gnu::flatten]] void activate(const float* gates, float* to) const {
    const std::int32_t inner = weights_.shape().inner;
    for (std::int32_t i = 0; i < inner; ++i)
      to[i] = silu(gates[i]) * gates[inner + i];
  }

  small_weights weights_;
  std::int32_t max_rows_;
  memory_type memory_;
};

}  // namespace espalier::detail
