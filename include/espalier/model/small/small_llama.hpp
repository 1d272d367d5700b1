// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/small/small_products.hpp"
#include "espalier/model/small/small_weights.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier {

namespace detail {

// Returns 1 / sqrt(x), by Newton's iteration from a guess that is made of the bits of x; relative error below 3e-7. A
// library's square root is not used, because it may set errno.
inline float inverse_root(float x) {
  float y = __builtin_bit_cast(float, 0x5F3759DF - (__builtin_bit_cast(std::int32_t, x) >> 1));
  for (int i = 0; i < 4; ++i)
    y = y * (1.5F - 0.5F * x * y * y);
  return y;
}

// Returns e^x for x up to 60, and e^-87 below -87. It computes scaled_exp(x) / scaled_exp_at_0, with fused products and
// sums.
[[gnu::always_inline]] inline float exponential(float x) {
  // Adding this number rounds to an integer, and leaves that, plus the exponent's bias, in the low bits.
  constexpr float rounding = 12582912.0F + 127.0F;
  const float from = x < -87.0F ? -87.0F : x;
  using terms = scaled_exp_terms;
  const float s = __builtin_fmaf(from, terms::per_ln2, rounding);
  const float n = s - rounding;
  const float r = __builtin_fmaf(n, -terms::ln2_low, __builtin_fmaf(n, -terms::ln2_high, from));
  float y = r + terms::fourth;
  y = __builtin_fmaf(y, r, terms::third);
  y = __builtin_fmaf(y, r, terms::second);
  y = __builtin_fmaf(y, r, terms::first);
  y = __builtin_fmaf(y, r, scaled_exp_at_0);
  return y * __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, s) << 23) * (1.0F / scaled_exp_at_0);
}

// Returns x / (1 + e^-x).
[[gnu::always_inline]] inline float silu(float x) {
  return x / (1.0F + exponential(x < -60.0F ? 60.0F : -x));
}

// The forward pass of small_llama, one copy of its code for models of all sizes. Bitwise, the results of a row depend
// only on its token, its position and the slots that it sees.
class small_pass {
 public:
  // The parts of a pass's memory. Arrays that are never in use at the same time share a part.
  struct memory_type {
    float* stream = nullptr;        // [rows][hidden]
    float* normed = nullptr;        // [rows][hidden or query_size] inputs of products
    float* projected = nullptr;     // [rows][query_size + 2 kv_size or 2 inner], or logits [rows][vocab]
    float* angles = nullptr;        // [rows][head_dim] head_dim / 2 cosines, then as many sines
    float* scores = nullptr;        // [positions + 1][heads that are computed together]
    void* integers = nullptr;       // the inputs of a product, rounded to integers
    std::int32_t* slots = nullptr;  // [positions] slots that a row sees after the prefix
  };

  // Returns the number of floats for a pass of `rows` rows.
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

  // Runs a pass and returns its logits. Returns no rows if the batch does not fit.
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

  static constexpr std::int32_t most_heads = 3;  // heads that are computed together
  static constexpr std::int32_t scores_size(const small_shape& s) {
    return (std::min)(most_heads, s.heads / s.kv_heads) * (s.positions + 1);
  }

  bool fits(const contiguous_kv& kv, const forward_batch_view& batch) const {
    const small_shape& s = weights_.shape();
    if (weights_.fault() != nullptr || kv.n_layers() != s.layers || kv.row_size() != s.kv_size()) return false;
    if (batch.n_rows() > max_rows_ || kv.capacity() > s.positions) return false;
    const auto are_below = [](std::span<const std::int32_t> numbers, std::int32_t end) {
      return std::all_of(numbers.begin(), numbers.end(), [&](std::int32_t i) { return i >= 0 && i < end; });
    };
    std::int32_t end = 0;  // end of the rows of the sequences that were checked
    for (const batch_sequence& sequence : batch.sequences) {
      if (sequence.sequence < 0 || sequence.sequence >= kv.n_sequences()) return false;
      if (sequence.row_begin < end || sequence.row_end < sequence.row_begin || sequence.row_end > batch.n_rows())
        return false;
      end = sequence.row_end;
    }
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

  // Computes the cosines and sines of a position, by applying the rotations of the powers of two that add up to it, one
  // after the other.
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

  // Rotates the queries and keys of a row in place, then copies its keys and values into the cache.
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
    float *const key = kv.key(layer, sequence, slot), *const value = kv.value(layer, sequence, slot);
    for (std::int32_t i = 0; i < s.kv_size(); ++i) {
      key[i] = x[s.query_size() + i];
      value[i] = x[s.query_size() + s.kv_size() + i];
    }
  }

  // Lists, in memory_.slots, the slots that a row sees after the prefix, in ascending order, which along a path is the
  // order of the text. Returns the number of slots that the row sees, those of the prefix included.
  std::int32_t list_slots(const contiguous_kv& kv, const batch_sequence& sequence,
                          std::span<const std::uint32_t> mask) const {
    std::int32_t n = 0;
    const std::int32_t most = (std::min)(32 * sequence.mask_words, kv.capacity() - sequence.prefix);
    for (std::int32_t i = 0; i < most; ++i) {
      if ((mask[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1U) != 0) memory_.slots[n++] = sequence.prefix + i;
    }
    return sequence.prefix + n;
  }

  void attend(contiguous_kv& kv, std::int32_t layer, const forward_batch_view& batch, const batch_sequence& sequence,
              std::int32_t row) {
    const small_shape& s = weights_.shape();
    const std::int32_t n = list_slots(kv, sequence, batch.mask_of(sequence, row));
    const float* query = memory_.projected + row * (s.query_size() + 2 * s.kv_size());
    float* to = memory_.normed + row * s.query_size();
    const float* const keys = kv.key(layer, sequence.sequence, 0);
    const float* const values = kv.value(layer, sequence.sequence, 0);
    const std::int32_t group = s.heads / s.kv_heads;
    for (std::int32_t head = 0; head < s.heads;) {
      const std::int32_t left = group - head % group, offset = head / group * s.head_dim;
      const seen_rows seen{keys + offset, values + offset, sequence.prefix, n};
      const std::int32_t heads = (std::min)(left, most_heads);
      heads == 1 ? attend<1>(seen, query, to) : heads == 2 ? attend<2>(seen, query, to) : attend<3>(seen, query, to);
      head += heads, query += heads * s.head_dim, to += heads * s.head_dim;
    }
  }

  // The keys and values that a row of the batch sees, for the heads of a group: those in the slots of the prefix, then
  // those in the slots that list_slots() has found.
  struct seen_rows {
    const float *keys, *values;
    std::int32_t prefix, n;
  };

  // Returns the offset in the cache, in floats, of the i-th key or value that is seen.
  [[gnu::always_inline]] std::int32_t place(const seen_rows& seen, std::int32_t i) const {
    return (i < seen.prefix ? i : memory_.slots[i - seen.prefix]) * weights_.shape().kv_size();
  }

  // Computes the attention of several heads that see the same keys and values, and reads these once for all heads.
  template <std::int32_t Heads>
  void attend(const seen_rows& seen, const float* query, float* to) const {
    score<Heads>(seen, query);
    float parts[Heads];
    each<Heads>([&](auto h)
                    __attribute__((always_inline)) { parts[h] = 1.0F / weigh(memory_.scores + h, seen.n, Heads); });
    const std::int32_t dim = weights_.shape().head_dim;
    for (std::int32_t d = 0; d < dim; d += 8)
      mix<Heads>(seen, d, parts, to + d);
  }

  // Computes scores [n][Heads], two rows at a time. If n is odd, the last row is computed twice and written also as row
  // n.
  template <std::int32_t Heads>
  void score(const seen_rows& seen, const float* query) const {
    const std::int32_t dim = weights_.shape().head_dim;
    const float factor = inverse_root(static_cast<float>(dim));
    float* to = memory_.scores;
    for (std::int32_t i = 0; i < seen.n; i += 2, to += 2 * Heads) {
      const float* first = seen.keys + place(seen, i);
      const float* second = seen.keys + place(seen, (std::min)(i + 1, seen.n - 1));
      const float* queries[Heads];
      float sums[2][Heads];
      each<Heads>([&](auto h) __attribute__((always_inline)) {
        queries[h] = query + h * dim;
        sums[0][h] = sums[1][h] = 0.0F;
      });
      const float* const end = first + dim;
      do {
        each<8>([&](auto e) __attribute__((always_inline)) {
          const float keys[2] = {first[e], second[e]};
          each<Heads>([&](auto h) __attribute__((always_inline)) {
            const float q = queries[h][e];
            sums[0][h] = __builtin_fmaf(q, keys[0], sums[0][h]);
            sums[1][h] = __builtin_fmaf(q, keys[1], sums[1][h]);
          });
        });
        first += 8, second += 8;
        each<Heads>([&](auto h) __attribute__((always_inline)) { queries[h] += 8; });
      } while (first != end);
      each<2 * Heads>([&](auto j) __attribute__((always_inline)) { to[j] = sums[j / Heads][j % Heads] * factor; });
    }
  }

  // Replaces the scores of a head by their exponentials, relative to the greatest; returns the sum.
  float weigh(float* scores, std::int32_t n, std::int32_t heads) const {
    float greatest = scores[0];
    for (std::int32_t i = 1; i < n; ++i)
      greatest = (std::max)(greatest, scores[i * heads]);
    float sum = 0;
    for (; n > 0; --n, scores += heads) {
      *scores = exponential(*scores - greatest);
      sum += *scores;
    }
    return sum;
  }

  // Computes eight dimensions of the output of each head: the sum of the values' rows, weighted by their scores, times
  // the head's entry in `parts`.
  template <std::int32_t Heads>
  void mix(const seen_rows& seen, std::int32_t d, const float (&parts)[Heads], float* to) const {
    const std::int32_t dim = weights_.shape().head_dim;
    float sums[Heads][8];
    each<8 * Heads>([&](auto j) __attribute__((always_inline)) { sums[j / 8][j % 8] = 0.0F; });
    const float* scores = memory_.scores;
    for (std::int32_t i = 0; i < seen.n; ++i, scores += Heads) {
      const float* const row = seen.values + place(seen, i) + d;
      float own[Heads];
      each<Heads>([&](auto h) __attribute__((always_inline)) { own[h] = scores[h]; });
      each<8>([&](auto e) __attribute__((always_inline)) {
        const float value = row[e];
        each<Heads>([&](auto h)
                        __attribute__((always_inline)) { sums[h][e] = __builtin_fmaf(own[h], value, sums[h][e]); });
      });
    }
    each<Heads>([&](auto h) __attribute__((always_inline)) {
      each<8>([&](auto e) __attribute__((always_inline)) { to[h * dim + e] = sums[h][e] * parts[h]; });
    });
  }

  // Writes silu(gates[i]) * gates[inner + i] to to[i], for i from 0 to inner - 1. `to` may be `gates`, or begin before
  // it.
  void activate(const float* gates, float* to) const {
    const std::int32_t inner = weights_.shape().inner;
    for (std::int32_t i = 0; i < inner; ++i)
      to[i] = silu(gates[i]) * gates[inner + i];
  }

  small_weights weights_;
  std::int32_t max_rows_;
  memory_type memory_;
};

}  // namespace detail

//! A transformer of the Llama family for small machines. Weights of 8 bits are read from an image, see small_weights;
//! activations are rounded to 8 bits with a scale for each row. Matrix products are computed in integers, all else in
//! floats. All memory that it writes is in the object: no heap. From the mathematical library it needs only fmaf, and
//! only if the processor has no such instruction.
//!
//!     constexpr small_shape shape{.vocab = 512, .hidden = 96, ...};
//!     static small_llama<shape, 8> target(image);
//!
//! Shapes      logits [n_outputs][vocab]
//! Complexity  a pass reads each weight once for up to three rows, or six on a machine of 64 bits
//! Law         Backend's, bitwise: the row of a node depends on its path and the text, not on the rest of the batch
//! Errors      fault() is a sentence if the image is not one of this shape, else null. forward returns no rows, which a
//!             decoder takes for a failed pass, if there is a fault, for more than MaxRows rows, a cache of another
//!             shape or longer than the positions, and tokens, positions, slots, sequences or outputs that do not
//!             exist
//! Pre         the image outlives it; ancestors of a row are in lower slots than the row, as with a decoder.
//!             Contraction of products and sums (-ffp-contract) changes the numbers, so it must be the same wherever
//!             texts must be equal
template <small_shape Shape, std::int32_t MaxRows>
class small_llama {
  static_assert(Shape.is_sound(), "a small_llama has sizes that it cannot compute: see small_shape");
  static_assert(MaxRows > 0, "a small_llama needs a row");

 public:
  explicit small_llama(std::span<const std::byte> image)
      : pass_(small_weights(image), MaxRows, floats_.data(), integers_.data(), slots_.data()) {}
  small_llama(const small_llama&) = delete;
  small_llama& operator=(const small_llama&) = delete;

  const char* fault() const {
    if (pass_.weights().fault() != nullptr) return pass_.weights().fault();
    return pass_.weights().shape() == Shape ? nullptr : "the image of the model is of another shape.";
  }

  std::int32_t vocab_size() const { return Shape.vocab; }
  std::int32_t max_rows() const { return MaxRows; }
  std::int32_t max_positions() const { return Shape.positions; }

  vocab_rows<float> forward(contiguous_kv& kv, const forward_batch_view& batch) {
    if (fault() != nullptr) return {};
    return pass_.run(kv, batch);
  }

 private:
  std::array<float, detail::small_pass::floats(Shape, MaxRows)> floats_{};
  alignas(8) std::array<std::byte, detail::small_pass::integer_bytes(Shape)> integers_{};
  std::array<std::int32_t, static_cast<std::size_t>(Shape.positions)> slots_{};
  detail::small_pass pass_;
};

}  // namespace espalier
