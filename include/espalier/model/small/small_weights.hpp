// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/small/small_llama.cpp
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace espalier {

//! The sizes of a small_llama, in the order in which its image has them. Head h reads key-value head h * kv_heads /
//! heads.
struct small_shape {
  std::int32_t vocab = 0;
  std::int32_t hidden = 0;  //!< a multiple of 8, as are the lengths of all rows that a matrix is multiplied with
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t inner = 0;      //!< numbers in the intermediate row of an MLP
  std::int32_t positions = 0;  //!< length of the longest text, a power of 2

  bool operator==(const small_shape&) const = default;

  constexpr std::int32_t query_size() const { return heads * head_dim; }
  constexpr std::int32_t kv_size() const { return kv_heads * head_dim; }
  constexpr std::int32_t widest_input() const { return (std::max)({hidden, query_size(), inner}); }
  //! The number of turns in the image, the rotations of the rotary position encoding: one for each of the positions 1,
  //! 2, 4 and so on below `positions`. The rotations of all positions are made from these.
  constexpr std::int32_t n_turns() const {
    std::int32_t n = 0;
    while (positions >> n > 1)
      ++n;
    return n;
  }
  //! Returns true if small_llama can compute a model of these sizes.
  constexpr bool is_sound() const {
    const auto within = [](std::int32_t n, std::int32_t most) { return n > 0 && n <= most; };
    return within(vocab, 1 << 16) && within(hidden, 1024) && within(layers, 64) && within(heads, 64) &&
           within(kv_heads, heads) && within(head_dim, 128) && within(inner, 4096) && within(positions, 1 << 14) &&
           hidden % 8 == 0 && inner % 8 == 0 && head_dim % 8 == 0 && vocab % 4 == 0 && heads % kv_heads == 0 &&
           (positions & (positions - 1)) == 0;
  }
};

//! A view of the weights of a small_llama in memory, such as flash: nothing is copied. The weights are an image, which
//! examples/models/train.py writes.
//!
//! An image is 12 words of 32 bits (magic, version, number of bytes of the image, the eight numbers of small_shape,
//! epsilon of the norms as a float), then floats, then integers of 8 bits, all of them little-endian:
//!
//!     floats    turns [n_turns][head_dim] of positions 1, 2, 4, ...: head_dim / 2 cosines, then as many sines
//!               scales of the final norm [hidden]; a scale for each row of the embedding [vocab]
//!               a layer: scales of the norms of attention [hidden] and MLP [hidden]; row scales of the four matrices
//!     integers  embedding [vocab][hidden], which is the output matrix, too
//!               a layer: query, key, value [query_size + 2 kv_size][hidden]; output [hidden][query_size];
//!                        gate, up [2 inner][hidden]; down [hidden][inner]
//!
//! Errors      fault() is a sentence if the bytes are no such image, or the machine is big-endian; else it is null.
//!             After a fault all sizes of shape() are 0, and no weights may be asked for
//! Pre         the bytes outlive it
class small_weights {
 public:
  //! A matrix: rows of integers, each with a scale.
  struct matrix_type {
    const std::int8_t* rows = nullptr;
    const float* scales = nullptr;
    std::int32_t outputs = 0, inputs = 0;
  };
  struct layer_type {
    const float *attention_norm = nullptr, *mlp_norm = nullptr;
    matrix_type query_key_value, out, gate_up, down;
  };

  small_weights() = default;
  explicit small_weights(std::span<const std::byte> image) : image_(image.data()) {
    static_assert(sizeof(small_shape) == 8 * sizeof(std::int32_t));
    fault_ = fault_of(image);
    if (fault_ == nullptr) {
      std::memcpy(&epsilon_, image_ + 4 * 11, 4);
    } else {
      shape_ = {};
    }
  }

  const char* fault() const { return fault_; }
  const small_shape& shape() const { return shape_; }
  float epsilon() const { return epsilon_; }
  //! Returns the number of bytes of the image; further bytes may follow it.
  std::size_t bytes() const { return first_integer() + integers_in_front_of(shape_.layers); }

  //! Returns the cosines, then the sines, of position 2^i, [head_dim].
  const float* turn(std::int32_t i) const { return floats(i * shape_.head_dim); }
  const float* final_norm() const { return floats(shape_.n_turns() * shape_.head_dim); }
  matrix_type embedding() const {
    return {integers(0), floats(shape_.n_turns() * shape_.head_dim + shape_.hidden), shape_.vocab, shape_.hidden};
  }
  layer_type layer(std::int32_t i) const {
    const small_shape& s = shape_;
    layer_type layer;
    const float* numbers = floats(static_cast<std::int32_t>(floats_in_front_of(i)));
    const std::int8_t* rows = integers(integers_in_front_of(i));
    layer.attention_norm = numbers;
    layer.mlp_norm = numbers + s.hidden;
    numbers += 2 * s.hidden;
    const auto take = [&](std::int32_t outputs, std::int32_t inputs) {
      const matrix_type matrix{rows, numbers, outputs, inputs};
      rows += outputs * inputs;
      numbers += outputs;
      return matrix;
    };
    layer.query_key_value = take(s.query_size() + 2 * s.kv_size(), s.hidden);
    layer.out = take(s.hidden, s.query_size());
    layer.gate_up = take(2 * s.inner, s.hidden);
    layer.down = take(s.hidden, s.inner);
    return layer;
  }

 private:
  static constexpr std::size_t header_bytes = 48;
  static constexpr std::uint32_t magic = 0x4C505345;  // ESPL

  const char* fault_of(std::span<const std::byte> image) {
    std::array<std::uint32_t, 3> words{};
    if constexpr (std::endian::native != std::endian::little)
      return "images of models are little-endian, and this machine is not.";
    if (image.size() < header_bytes) return "the image of the model ends within its first 48 bytes.";
    if (reinterpret_cast<std::uintptr_t>(image_) % 4 != 0)
      return "the image of the model must begin at a multiple of 4.";
    std::memcpy(words.data(), image_, sizeof words);
    std::memcpy(&shape_, image_ + sizeof words, sizeof shape_);
    if (words[0] != magic) return "the image of the model does not begin with ESPL.";
    if (words[1] != 1) return "the image of the model has another version than 1.";
    if (!shape_.is_sound()) return "the image of the model has sizes that no model has.";
    if (words[2] != bytes()) return "the image of the model has not the bytes that its sizes take.";
    if (image.size() < bytes()) return "the image of the model is cut short.";
    return nullptr;
  }

  std::size_t floats_in_front_of(std::int32_t layer) const {
    const small_shape& s = shape_;
    const std::int32_t outputs = s.query_size() + 2 * s.kv_size() + 2 * s.hidden + 2 * s.inner;
    return static_cast<std::size_t>(s.n_turns() * s.head_dim + s.hidden + s.vocab) +
           static_cast<std::size_t>(layer) * static_cast<std::size_t>(2 * s.hidden + outputs);
  }
  std::size_t integers_in_front_of(std::int32_t layer) const {
    const small_shape& s = shape_;
    const std::int32_t numbers =
        (s.query_size() + 2 * s.kv_size() + 2 * s.inner) * s.hidden + s.hidden * (s.query_size() + s.inner);
    return static_cast<std::size_t>(s.vocab) * static_cast<std::size_t>(s.hidden) +
           static_cast<std::size_t>(layer) * static_cast<std::size_t>(numbers);
  }
  std::size_t first_integer() const { return header_bytes + 4 * floats_in_front_of(shape_.layers); }

  const float* floats(std::int32_t i) const { return reinterpret_cast<const float*>(image_ + header_bytes) + i; }
  const std::int8_t* integers(std::size_t i) const {
    return reinterpret_cast<const std::int8_t*>(image_ + first_integer() + i);
  }

  const std::byte* image_ = nullptr;
  const char* fault_ = "there is no image of a model.";
  small_shape shape_{};
  float epsilon_ = 0;
};

}  // namespace espalier
