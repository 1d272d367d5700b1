// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/delayed_selector.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"
#include "selector/made_up_features.hpp"
#include "selector/made_up_tensors.hpp"

using namespace espalier;

TEST_CASE("erf of float is erf") {
  double worst = 0;
  for (double x = -6; x <= 6; x += 1e-4) {
    const auto from = static_cast<float>(x);
    worst = std::max(worst, std::abs(static_cast<double>(detail::erf_of(from)) - std::erf(static_cast<double>(from))));
  }
  CHECK(worst < 5e-7);
}

TEST_CASE("products of bytes with whole numbers stay within their sums, however long the rows") {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> byte(-127, 127);
  std::normal_distribution<float> normal;
  for (const std::size_t n : {64U, 448U, 1024U, 1088U, 8192U}) {
    for (const bool largest : {false, true}) {
      std::vector<std::int8_t> rows(detail::layer_rows * n);
      std::vector<float> x(n);
      for (float& number : x)
        number = largest ? 3.0F : normal(random);
      for (std::int8_t& weight : rows)
        weight = static_cast<std::int8_t>(largest ? 127 : byte(random));
      std::vector<std::int16_t> whole(n);
      const float scale = detail::to_whole(x.data(), n, whole.data());
      const auto products = detail::products(rows.data(), whole.data(), n);
      INFO(n << " terms");
      for (std::size_t r = 0; r < detail::layer_rows; ++r) {
        double expected = 0, size = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const double term = rows[r * n + i] * static_cast<double>(x[i]);
          expected += term, size += std::abs(term);
        }
        CHECK(std::abs(static_cast<double>(products[r] * scale) - expected) < 1e-4 * size);
      }
      CHECK(*std::max_element(whole.begin(), whole.end()) <= 16383);
      CHECK(*std::min_element(whole.begin(), whole.end()) >= -16383);
    }
  }
  std::vector<std::int16_t> whole(64, 7);
  CHECK(detail::to_whole(std::vector<float>(64).data(), 64, whole.data()) == 0);
  CHECK(whole == std::vector<std::int16_t>(64));
}

TEST_CASE("the network gives what PyTorch's gives, in float and with bytes") {
  std::ifstream file(std::string(ESPALIER_TEST_DATA) + "/selector/golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::int32_t target = golden["target_hidden"], draft = golden["draft_hidden"];
  for (const bool whole : {false, true}) {
    const char* kind = whole ? "int8" : "float32";
    delayed_selector selector(target, draft, whole ? selector_weights::int8 : selector_weights::float32);
    made_up_tensors tensors;
    selector.read(tensors);
    double worst = 0;
    int compared = 0;
    for (std::size_t i = 0; i < golden["rows"].size(); ++i) {
      const made_up_features inputs(static_cast<int>(i), target, draft);
      const auto& row = golden["rows"][i];
      const std::vector<double> expected = row[kind];
      const std::int32_t choice = selector.choose(inputs.features);
      const std::int32_t expected_choice = row[std::string(kind) + "_choice"];
      for (std::size_t k = 0; k < expected.size(); ++k, ++compared) {
        const std::size_t action = k * static_cast<std::size_t>(golden["every"]);
        worst = std::max(worst, std::abs(static_cast<double>(selector.scores()[action]) - expected[k]));
      }
      INFO(kind << ", input " << i);
      CHECK(choice == expected_choice);
      CHECK(selector.scores()[static_cast<std::size_t>(choice)] ==
            *std::max_element(selector.scores().begin(), selector.scores().end()));
    }
    INFO(kind);
    CHECK(worst < (whole ? 1e-3 : 1e-4));
    CHECK(compared == 20 * 36);
  }
}

TEST_CASE("a selector that is copied chooses the same, and choosing allocates nothing") {
  delayed_selector selector(24, 8, selector_weights::int8);
  made_up_tensors tensors;
  selector.read(tensors);
  delayed_selector other = selector;
  const made_up_features inputs(3, 24, 8), more(4, 24, 8);
  const std::int32_t choice = selector.choose(inputs.features);
  other.choose(more.features);
  const allocation_count count;
  CHECK(other.choose(inputs.features) == choice);
  CHECK(count.so_far() == 0);
  CHECK(std::equal(selector.scores().begin(), selector.scores().end(), other.scores().begin()));
}

TEST_CASE("inputs far from all that was seen count as 8 deviations") {
  delayed_selector selector(24, 8, selector_weights::float32);
  made_up_tensors tensors;
  selector.read(tensors);
  made_up_features far(1, 24, 8);
  const auto with = [&](float length) {
    far.features.scalars[6] = length;
    selector.choose(far.features);
    return std::vector<float>(selector.scores().begin(), selector.scores().end());
  };
  CHECK(with(1e6F) == with(1e9F));
  CHECK(with(1e6F) != with(1));
}

TEST_CASE("hidden states of other sizes are refused") {
  delayed_selector selector(24, 8, selector_weights::int8);
  const made_up_features target(1, 23, 8), draft(1, 24, 9);
  CHECK(
      says(message_of<input_error>([&] { selector.choose(target.features); }), "target", "23 numbers", "made for 24"));
  CHECK(says(message_of<input_error>([&] { selector.choose(draft.features); }), "draft", "9 numbers", "made for 8"));
  CHECK(says(message_of<option_error>([] { delayed_selector(0, 8, selector_weights::int8); }), "target_hidden"));
}
