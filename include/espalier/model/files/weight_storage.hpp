// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/rounded_row.cpp
#pragma once

#include <array>

#include "espalier/core/option.hpp"
#include "espalier/model/files/weight_type.hpp"

namespace espalier {

//! The form in which a model holds the weights of its matrices in memory.
enum class weight_storage { as_stored, f32, bf16, q8_0, q4_0, i8_rows, fastest };

template <>
inline constexpr std::array known_values<weight_storage> = {
    known_value<weight_storage>{weight_storage::as_stored, "as-stored", "as the file has them"},
    known_value<weight_storage>{weight_storage::f32, "f32", "as floats: the most memory, and the least work"},
    known_value<weight_storage>{weight_storage::bf16, "bf16", "floats rounded to 16 bits"},
    known_value<weight_storage>{weight_storage::q8_0, "q8-0", "floats rounded to 8 bits with a scale for each 32"},
    known_value<weight_storage>{weight_storage::q4_0, "q4-0", "floats rounded to 4 bits with a scale for each 32"},
    known_value<weight_storage>{weight_storage::i8_rows, "i8-rows", "rounded to 8 bits with a scale for each output"},
    known_value<weight_storage>{weight_storage::fastest, "fastest",
                                "as-stored or f32, whichever passes are faster with: measured when they are loaded"}};

//! The type in which rows of n weights of `type` are held. With f32 and i8_rows, every type becomes that one. With
//! bf16, q8_0 and q4_0, only f32, f16 and bf16 become that type, and only if it takes fewer bytes and its blocks divide
//! n. Otherwise the type stays.
//!
//! Pre         storage is not fastest
constexpr weight_type held_type(weight_type type, int n, weight_storage storage) {
  constexpr weight_type to[] = {weight_type::f32,  weight_type::f32,  weight_type::bf16,
                                weight_type::q8_0, weight_type::q4_0, weight_type::i8_rows};
  const weight_type held = to[static_cast<int>(storage)];
  if (storage == weight_storage::as_stored) return type;
  if (storage == weight_storage::f32 || storage == weight_storage::i8_rows) return held;
  const bool smaller = block_bytes(held) < block_weights(held) * block_bytes(type);
  const bool floats = type == weight_type::f32 || type == weight_type::f16 || type == weight_type::bf16;
  return floats && smaller && n % block_weights(held) == 0 ? held : type;
}

}  // namespace espalier
