// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/files/weight_row.hpp"

// A row of a type with random integers, scales and offsets, weights of magnitude about 1.
struct random_weights {
  random_weights(espalier::weight_type row_type, int n, std::mt19937& random)
      : type(row_type), bytes(espalier::row_bytes(row_type, n)), weights(n), scale(0.01F) {
    using enum espalier::weight_type;
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random());
    std::normal_distribution<float> normal;
    const auto put = [&](std::size_t at, float value) {
      const std::uint16_t bits =
          type == bf16 ? espalier::detail::bf16_from_float(value) : espalier::detail::f16_from_float(value);
      std::memcpy(&bytes[at], &bits, 2);
    };
    const auto block = static_cast<std::size_t>(espalier::block_bytes(type));
    for (std::size_t at = 0; at < bytes.size(); at += block) {
      if (type == f32) {
        const float value = normal(random);
        std::memcpy(&bytes[at], &value, 4);
      } else if (type == f16 || type == bf16) {
        put(at, normal(random));
      } else if (type == mxfp4) {
        bytes[at] = static_cast<std::byte>(123 + random() % 3);
      } else if (type == q2_k) {
        put(at + 80, 0.1F * normal(random));
        put(at + 82, 0.05F * normal(random));
      } else if (type == q3_k || type == q6_k) {
        put(at + block - 2, (type == q3_k ? 0.01F : 0.001F) * normal(random));
      } else if (type != i8_rows) {
        const bool steps = type == q4_k || type == q5_k;
        put(at, (steps                            ? 0.005F
                 : type == iq4_xs                 ? 0.001F
                 : type == q8_0 || type == iq4_nl ? 0.01F
                                                  : 0.1F) *
                    normal(random));
        if (espalier::detail::has_offsets(type)) put(at + 2, (steps ? 0.02F : 1.0F) * normal(random));
      }
    }
  }

  espalier::weight_row row() const { return {type, bytes, weights, scale}; }
  std::vector<float> floats() const {
    std::vector<float> values(static_cast<std::size_t>(weights));
    row().decode(values.data());
    return values;
  }

  espalier::weight_type type;
  std::vector<std::byte> bytes;
  int weights;
  float scale;
};
