// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace espalier {

//! The sizes of a small_llama, in the order in which its image has them. Head h reads key-value head h * kv_heads /
//! heads.
struct small_shape {
  std::int32_t vocab = 0;
  std::int32_t hidden = 0;  //!< a multiple of 8, as is every row that a matrix reads
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t inner = 0;      //!< numbers between the two halves of an MLP
  std::int32_t positions = 0;  //!< length of the longest text, a power of 2

  bool operator==(const small_shape&) const = default;

  constexpr std::int32_t query_size() const { return heads * head_dim; }
  constexpr std::int32_t kv_size() const { return kv_heads * head_dim; }
  constexpr std::int32_t widest_input() const { return (std::max)({hidden, query_size(), inner}); }
  //! Number of turns of positions 1, 2, 4 and so on, from which those of all positions are made.
  constexpr std::int32_t n_turns() const {
    std::int32_t n = 0;
    while (positions >> n > 1)
      ++n;
    return n;
  }
  //! True if small_llama can compute a model of these sizes.
  constexpr bool is_sound() const {
    const auto within = [](std::int32_t n, std::int32_t most) { return n > 0 && n <= most; };
    return within(vocab, 1 << 16) && within(hidden, 1024) && within(layers, 64) && within(heads, 64) &&
           within(kv_heads, heads) && within(head_dim, 128) && within(inner, 4096) && within(positions, 1 << 14) &&
           hidden % 8 == 0 && inner % 8 == 0 && head_dim % 8 == 0 && vocab % 4 == 0 && heads % kv_heads == 0 &&
           (positions & (positions - 1)) == 0;
  }
};

}  // namespace espalier
