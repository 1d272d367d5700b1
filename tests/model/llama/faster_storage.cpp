// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/faster_storage.hpp"

#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "model_writer.hpp"

using namespace espalier;

TEST_CASE("the faster of two forms has the smaller product of the least times of one row and of 16") {
  std::vector<std::string> asked;
  int turn = 0;
  // The first form is better at one row, the second at 16; single runs are disturbed.
  const auto seconds = [&](double first_at_16) {
    return [&, first_at_16](int form, int rows) {
      asked.push_back(std::to_string(form) + " " + std::to_string(rows));
      const double disturbed = ++turn % 3 == 0 ? 1.0 : 9.0;
      return disturbed * (form == 0 ? (rows == 1 ? 1.0 : first_at_16) : (rows == 1 ? 2.0 : 4.0));
    };
  };
  CHECK(detail::is_first_faster(seconds(7.5)));
  CHECK_FALSE(detail::is_first_faster(seconds(8.5)));
  CHECK(std::vector<std::string>(asked.begin(), asked.begin() + 3) == std::vector<std::string>{"0 1", "1 1", "0 1"});
}

TEST_CASE("the matrices of a file are counted, and the type of most of their weights found") {
  const std::string target = std::string(ESPALIER_TEST_MODELS) + "/target";
  const model_files files = model_files::open(target);
  const detail::matrix_weights held(*files.tensors);
  CHECK(held.type == weight_type::i8_rows);
  CHECK(held.weights > 12'000'000);
  CHECK(held.weights < 14'000'000);
  thread_team team(2);
  const weight_storage found = faster_storage(*files.tensors, team);
  CHECK((found == weight_storage::as_stored || found == weight_storage::f32));
}

TEST_CASE("floats stay as they are stored") {
  auto file = model_writer::open(model_writer::random_llama(model_writer::wide_config(), 4).text());
  CHECK(detail::matrix_weights(file).type == weight_type::f32);
  thread_team team(1);
  CHECK(faster_storage(file, team) == weight_storage::as_stored);
}
