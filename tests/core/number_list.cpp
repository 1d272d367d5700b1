// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/number_list.hpp"

#include <array>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/option.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

struct rated {
  number_list rates = {0.5, 0.25};

  static constexpr void describe(auto see) { see(option{"rates", &rated::rates, "how often"}); }
};

}  // namespace

TEST_CASE("a list of numbers holds what it was made from") {
  constexpr number_list none, two = {1, 2.5};
  static_assert(none.size() == 0 && two.size() == 2 && two.data()[1] == 2.5);
  const std::vector<double> many(number_list::most, 0.1);
  CHECK(number_list(many).size() == 64);
  CHECK(number_list(std::array{1.0, 2.5}) == two);
  CHECK(number_list(std::span(many).first(2)) == number_list{0.1, 0.1});
  CHECK_FALSE(two == number_list{1});
  const std::span<const double> seen = two;
  CHECK(std::vector<double>(seen.begin(), seen.end()) == std::vector<double>{1, 2.5});
  CHECK(says(message_of<option_error>([] { number_list(std::vector<double>(65)); }),
             "a list of numbers has 65 of them; it may have 64"));
}

TEST_CASE("an option can be a list, which its part checks") {
  rated options;
  options.rates = {7};
  CHECK(require_options(options).rates == number_list{7});
  int seen = 0;
  for_each_option(options, [&](const auto& one, const number_list& value) {
    CHECK(one.name == "rates");
    CHECK(value.size() == 1);
    ++seen;
  });
  CHECK(seen == 1);
}
