// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/weight_row.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "vectors.hpp"

namespace {

using namespace espalier;

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

weight_type type_named(const std::string& name) {
  return *std::find_if(std::begin(weight_types), std::end(weight_types),
                       [&](weight_type type) { return name_of(type) == name; });
}

}  // namespace

// The vectors were made by the Python package gguf 0.19 (gguf.quants.dequantize), of random blocks.
TEST_CASE("weights have bit for bit the values that ggml gives them") {
  int n_types = 0;
  for (const auto& vector : load_vectors("weight_rows.json")) {
    const weight_type type = type_named(vector.at("type"));
    INFO(name_of(type));
    const std::vector<std::byte> bytes = bytes_of(vector.at("bytes")), expected = bytes_of(vector.at("floats"));
    const int n = static_cast<int>(expected.size() / sizeof(float));
    REQUIRE(row_bytes(type, n) == bytes.size());
    std::vector<float> found(static_cast<std::size_t>(n));
    weight_row{type, bytes, n}.decode(found.data());
    CHECK(std::memcmp(found.data(), expected.data(), expected.size()) == 0);
    ++n_types;
  }
  CHECK(n_types == 15);
}

TEST_CASE("a row of floats is itself, and one of int8 is multiplied by its scale") {
  const std::vector<float> values = {1.0F, -0.0F, 3e-40F};
  std::vector<float> found(3);
  weight_row::of(values.data(), 3).decode(found.data());
  CHECK(std::memcmp(found.data(), values.data(), 12) == 0);
  const std::byte bytes[] = {std::byte{1}, std::byte{0x80}, std::byte{0x7F}};
  weight_row{weight_type::i8_rows, bytes, 3, 0.1F}.decode(found.data());
  CHECK(found == std::vector<float>{0.1F, -128.0F * 0.1F, 127.0F * 0.1F});
}

TEST_CASE("a row's size is that of its blocks") {
  for (const weight_type type : weight_types) {
    INFO(name_of(type));
    const int n = 3 * block_weights(type);
    CHECK(row_bytes(type, n) == static_cast<std::size_t>(3 * block_bytes(type)));
  }
  CHECK(row_bytes(weight_type::q4_k, 256) == 144);
  CHECK(row_bytes(weight_type::f32, 5) == 20);
}

// What lets products hold the integers and scales instead of the floats.
TEST_CASE("the product of a weight's integer and its scale is exact") {
  for (const auto& vector : load_vectors("weight_rows.json")) {
    const weight_type type = type_named(vector.at("type"));
    if (block_weights(type) == 1) continue;
    INFO(name_of(type));
    const std::vector<std::byte> bytes = bytes_of(vector.at("bytes"));
    const int runs = block_weights(type) / detail::run_weights(type);
    for (int index = 0; index < runs; ++index) {
      const detail::weight_run run = detail::unpack_run(type, bytes.data(), index);
      for (const std::int8_t q : run.q) {
        const float unit = run.scale() / static_cast<float>(run.scale_step == 0 ? 1 : run.scale_step);
        const double exact = static_cast<double>(unit) * run.scale_step * q;
        REQUIRE(static_cast<double>(run.scale() * static_cast<float>(q)) == exact);
      }
    }
  }
}
