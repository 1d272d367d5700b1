// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/delayed_selector.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"
#include "selector/made_up_features.hpp"
#include "selector/made_up_tensors.hpp"

using namespace espalier;

TEST_CASE("the network gives what PyTorch's gives, with weights of 32 bits and of 4") {
  std::ifstream file(std::string(ESPALIER_TEST_DATA) + "/selector/golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::int32_t target = golden["target_hidden"], draft = golden["draft_hidden"];
  for (const bool four_bits : {false, true}) {
    const char* kind = four_bits ? "int4" : "float32";
    delayed_selector selector(target, draft, four_bits ? selector_weights::int4 : selector_weights::float32);
    made_up_tensors tensors;
    selector.read(tensors);
    std::vector<double> worst;  // of each input
    for (const auto& row : golden["rows"]) {
      const int number = row["input"];
      const made_up_features inputs(number, target, draft);
      const std::vector<double> expected = row[kind];
      REQUIRE(expected.size() == 36);
      const std::int32_t choice = selector.choose(inputs.features);
      const std::int32_t expected_choice = row[std::string(kind) + "_choice"];
      worst.push_back(0);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        const std::size_t action = k * static_cast<std::size_t>(golden["every"]);
        worst.back() = std::max(worst.back(), std::abs(static_cast<double>(selector.scores()[action]) - expected[k]));
      }
      INFO(kind << ", input " << number);
      CHECK(choice == expected_choice);
      CHECK(selector.scores()[static_cast<std::size_t>(choice)] ==
            *std::max_element(selector.scores().begin(), selector.scores().end()));
    }
    INFO(kind);
    REQUIRE(worst.size() == 20);
    std::sort(worst.begin(), worst.end());
    CHECK(worst[worst.size() / 4] < 1e-5);
    CHECK(worst.back() < (four_bits ? 1e-3 : 1e-4));
  }
}

namespace {

// Matrices that 4 bits hold exactly, some of their rows all zero.
struct coarse_tensors : made_up_tensors {
  template <class VisitT>
  void matrix(const std::string& name, int rows, int columns, VisitT&& set_row) const {
    made_up_tensors::matrix(name, rows, columns, [&](int row, const float* values) {
      std::vector<float> coarse(values, values + columns);
      float largest = 0;
      for (const float value : coarse)
        largest = std::max(largest, std::abs(value));
      for (float& value : coarse)
        value = row % 10 == 3 ? 0 : std::round(value / largest * 7) * largest / 7;
      set_row(row, coarse.data());
    });
  }
};

}  // namespace

TEST_CASE("hidden states of any size give what floats give, but for what their rounding to bytes changes") {
  for (const auto& [target, draft] : {std::pair{1, 3}, {7, 65}, {8, 1}, {130, 16}}) {
    coarse_tensors tensors;
    delayed_selector exact(target, draft, selector_weights::float32), rounded(target, draft, selector_weights::int4);
    exact.read(tensors);
    rounded.read(tensors);
    double difference = 0, size = 0;
    for (int number = 0; number < 10; ++number) {
      const made_up_features inputs(number, target, draft);
      exact.choose(inputs.features);
      rounded.choose(inputs.features);
      for (std::size_t i = 0; i < exact.scores().size(); ++i) {
        const double score = exact.scores()[i];
        difference += std::abs(rounded.scores()[i] - score);
        size += std::abs(score);
      }
    }
    INFO("hidden states of " << target << " and " << draft << ": " << difference / size);
    CHECK(difference < 0.02 * size);
  }
}

TEST_CASE("hidden states that are not finite make some choice") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const auto weights : {selector_weights::float32, selector_weights::int4}) {
    delayed_selector selector(24, 8, weights);
    made_up_tensors tensors;
    selector.read(tensors);
    for (const float bad : {infinity, -infinity, std::nanf("")}) {
      made_up_features inputs(1, 24, 8);
      std::vector<float> hidden(24, bad);
      inputs.features.target_hidden = hidden;
      const std::int32_t choice = selector.choose(inputs.features);
      CHECK((choice >= 0 && choice < delayed_action::count));
    }
  }
}

TEST_CASE("a selector that is copied chooses the same, and choosing allocates nothing") {
  delayed_selector selector(24, 8, selector_weights::int4);
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
  delayed_selector selector(24, 8, selector_weights::int4);
  const made_up_features target(1, 23, 8), draft(1, 24, 9);
  CHECK(
      says(message_of<input_error>([&] { selector.choose(target.features); }), "target", "23 numbers", "made for 24"));
  CHECK(says(message_of<input_error>([&] { selector.choose(draft.features); }), "draft", "9 numbers", "made for 8"));
  CHECK(says(message_of<option_error>([] { delayed_selector(0, 8, selector_weights::int4); }), "target_hidden"));
}
