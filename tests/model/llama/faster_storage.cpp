// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/faster_storage.hpp"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "llama_driver.hpp"
#include "model_writer.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::string target = std::string(ESPALIER_TEST_MODELS) + "/target";

}  // namespace

TEST_CASE("floats are faster where the least times of one row and of 16 have a product of 0.9 or less") {
  std::vector<std::string> asked;
  int calls = 0;
  // Stored weights are better at one row, floats at 16; of three turns the first and the last are disturbed.
  const auto seconds = [&](double floats_at_16) {
    return [&, floats_at_16](int form, int rows) {
      asked.push_back(std::to_string(form) + " " + std::to_string(rows));
      const double disturbed = calls++ / 4 % 3 == 1 ? 1.0 : 9.0;
      return disturbed * (form == 0 ? (rows == 1 ? 1.0 : 8.0) : (rows == 1 ? 2.0 : floats_at_16));
    };
  };
  CHECK(detail::are_floats_faster(seconds(3.5)));
  CHECK_FALSE(detail::are_floats_faster(seconds(3.7)));
  CHECK(asked.size() == 24);
  CHECK(std::vector<std::string>(asked.begin(), asked.begin() + 5) ==
        std::vector<std::string>{"0 1", "1 1", "0 16", "1 16", "0 1"});
}

TEST_CASE("short passes are measured more often, though not for ever") {
  int calls = 0;
  double each = 0x1p-10;
  const auto seconds = [&](int, int) {
    ++calls;
    return each;
  };
  detail::are_floats_faster(seconds);
  CHECK(calls == 4 * 13);  // for 0.05 seconds
  each = calls = 0;
  detail::are_floats_faster(seconds);
  CHECK(calls == 4 * 100);
}

TEST_CASE("the matrices of a file are counted, and the type of most of their weights found") {
  const model_files files = model_files::open(target);
  const detail::matrix_weights held(*files.tensors);
  CHECK(held.type == weight_type::i8_rows);
  CHECK(held.weights > 12'000'000);
  CHECK(held.weights < 14'000'000);
}

TEST_CASE("a model is held in the form that is measured as the faster one, and its logits are the same") {
  llama_backend measured = llama_backend::load(target, {.threads = 2}),
                stored = llama_backend::load(target, {.threads = 2, .weights = weight_storage::as_stored}),
                floats = llama_backend::load(target, {.threads = 2, .weights = weight_storage::f32});
  CHECK((measured.weight_bytes() == stored.weight_bytes() || measured.weight_bytes() == floats.weight_bytes()));
  CHECK(stored.weight_bytes() < floats.weight_bytes());
  auto kv = llama_driver::cache_for(measured, 16), other = llama_driver::cache_for(stored, 16);
  const std::vector<token_id> tokens = {5, 17, 101};
  const auto found = llama_driver::plainly(measured, kv, tokens),
             expected = llama_driver::plainly(stored, other, tokens);
  REQUIRE(found.size() == expected.size());
  for (std::size_t row = 0; row < found.size(); ++row)
    CHECK(std::memcmp(found[row].data(), expected[row].data(), found[row].size() * sizeof(float)) == 0);
}

TEST_CASE("products of integers take bytes, whatever is faster") {
  llama_backend integers = llama_backend::load(target, {.threads = 1, .arithmetic = matrix_arithmetic::integer});
  CHECK(integers.weights()->head.matrix.has_bytes());
}

TEST_CASE("floats stay as they are stored") {
  auto file = model_writer::open(model_writer::random_llama(model_writer::wide_config(), 4).text());
  CHECK(detail::matrix_weights(file).type == weight_type::f32);
  thread_team team(1);
  CHECK(detail::faster_storage(file, team) == weight_storage::as_stored);
}

TEST_CASE("weights that are loaded without a backend name their form") {
  auto file = model_writer::open(model_writer::random_llama(model_writer::wide_config(), 4).text());
  CHECK(message_of<option_error>([&] {
          model_weights::load(model_writer::wide_config(), file, weight_storage::fastest);
        }) == "option weights is fastest, which only llama_backend::load() measures: name another form.");
}
