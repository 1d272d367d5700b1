// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/weight_row.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace espalier {

//! The form in which a file stores the weights of a matrix: as numbers, or in blocks of small integers with a scale.
//!
//! A weight of a quantised type is scale * q + offset. q has as many bits as the type's name says; in iq4_nl, iq4_xs
//! and mxfp4 four bits choose q from a table of sixteen numbers. The K types and iq4_xs have blocks of 256 weights with
//! a scale for each 32 (q2_k, q3_k and q6_k: 16) and, in q2_k, q4_k and q5_k, an offset; scales and offsets are
//! quantised, too. The scales of mxfp4 are powers of two.
//!
//! Law         scale, offset and, except in i8_rows, scale * q are exact in F32. So a weight is rounded at most once:
//!             in the sum with its offset or, in i8_rows, in the product with its scale, which is any F32
//! Source      ggml's block formats of the same names; i8_rows is this library's: a tensor of int8 and one of scales
enum class weight_type : std::uint8_t {
  f32,
  f16,
  bf16,
  i8_rows,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  iq4_nl,
  mxfp4,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_xs
};

inline constexpr weight_type weight_types[] = {
    weight_type::f32,   weight_type::f16,   weight_type::bf16, weight_type::i8_rows, weight_type::q4_0,
    weight_type::q4_1,  weight_type::q5_0,  weight_type::q5_1, weight_type::q8_0,    weight_type::iq4_nl,
    weight_type::mxfp4, weight_type::q2_k,  weight_type::q3_k, weight_type::q4_k,    weight_type::q5_k,
    weight_type::q6_k,  weight_type::iq4_xs};

//! The name as in GGUF and safetensors files, but in small letters; i8_rows is called I8 there.
constexpr const char* name_of(weight_type type) {
  constexpr const char* names[] = {"f32",    "f16",   "bf16", "i8_rows", "q4_0", "q4_1", "q5_0", "q5_1",  "q8_0",
                                   "iq4_nl", "mxfp4", "q2_k", "q3_k",    "q4_k", "q5_k", "q6_k", "iq4_xs"};
  return names[static_cast<std::size_t>(type)];
}

//! Number of weights in a block; a row is a whole number of blocks.
constexpr int block_weights(weight_type type) {
  if (type < weight_type::q4_0) return 1;
  return type < weight_type::q2_k ? 32 : 256;
}

//! Number of bytes of a block; for i8_rows without the row's scale.
constexpr int block_bytes(weight_type type) {
  constexpr int bytes[] = {4, 2, 2, 1, 18, 20, 22, 24, 34, 18, 17, 84, 110, 144, 176, 210, 136};
  return bytes[static_cast<std::size_t>(type)];
}

//! Number of bytes of a row of n weights.
//!
//! Pre         n is a multiple of block_weights(type)
constexpr std::size_t row_bytes(weight_type type, int n) {
  return static_cast<std::size_t>(n / block_weights(type)) * static_cast<std::size_t>(block_bytes(type));
}

namespace detail {

// The name as files write it.
inline std::string file_name_of(weight_type type) {
  if (type == weight_type::i8_rows) return "I8";
  std::string name = name_of(type);
  for (char& letter : name)
    letter = letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  return name;
}

// The types of tensors that need no second tensor of scales, as a list for a sentence: "F32, ..., Q6_K or IQ4_XS".
inline std::string names_of_file_types() {
  std::string names;
  for (const weight_type type : weight_types) {
    if (type == weight_type::i8_rows) continue;
    const bool last = type == weight_types[sizeof weight_types / sizeof *weight_types - 1];
    names += (names.empty() ? "" : last ? " or " : ", ") + file_name_of(type);
  }
  return names;
}

}  // namespace detail

}  // namespace espalier
