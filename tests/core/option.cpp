// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/option.hpp"

#include <array>
#include <limits>
#include <string>

#include "catch.hpp"
#include "option_ranges.hpp"
#include "raises.hpp"

// A user's own, outside the library's namespace.
namespace shelf {

enum class wood { oak, ash };

struct options {
  int boards = 3;
  int most = 8;
  double width = 0.5;
  bool varnished = false;
  wood kind = wood::ash;
  std::string owner{};

  static constexpr void describe(auto see) {
    using espalier::option;
    see(option{"most", &options::most, "boards that it may have", 2, 64});
    see(option{"boards", &options::boards, "boards that it has", 1, &options::most});
    see(option{"width", &options::width, "of a board", 0.25});
    see(option{"varnished", &options::varnished, "whether it shines"});
    see(option{"kind", &options::kind, "what it is made of"});
  }
};

}  // namespace shelf

template <>
inline constexpr auto espalier::known_values<shelf::wood> =
    std::array{espalier::known_value<shelf::wood>{shelf::wood::oak, "oak", "heavy"},
               espalier::known_value<shelf::wood>{shelf::wood::ash, "ash", "tough"}};

using namespace espalier;

namespace {

std::string refusal(const shelf::options& options) {
  return message_of<option_error>([&] { require_options(options); });
}

}  // namespace

TEST_CASE("what is said of an option is known when compiling") {
  STATIC_REQUIRE(option_of(&shelf::options::boards).name == "boards");
  STATIC_REQUIRE(option_of(&shelf::options::boards).low == 1);
  STATIC_REQUIRE(option_of(&shelf::options::boards).high() == 64);
  STATIC_REQUIRE(option_of(&shelf::options::boards).high_name() == "most");
  STATIC_REQUIRE(option_of(&shelf::options::most).high_name().empty());
  STATIC_REQUIRE(option_of(&shelf::options::width).high() == (std::numeric_limits<double>::max)());
  STATIC_REQUIRE(option_of(&shelf::options::width).help == "of a board");
}

TEST_CASE("options are read and set by what is said of them") {
  shelf::options options;
  std::string names;
  for_each_option(options, [&](const auto& option, auto& value) {
    names += std::string(option.name) + " ";
    if (option.name == "boards") value = {};
  });
  CHECK(names == "most boards width varnished kind ");
  CHECK(options.boards == 0);
  CHECK(options.most == 8);
}

TEST_CASE("the first option out of range is named, with its value and its range") {
  const shelf::options good;
  CHECK(&require_options(good) == &good);
  CHECK(refusal({.boards = 8}) == "");
  CHECK(refusal({.boards = 9}) == "option boards is 9, but must lie between 1 and 8.");
  CHECK(refusal({.boards = 9, .most = 9}) == "");
  CHECK(refusal({.most = 1}) == "option most is 1, but must lie between 2 and 64.");
  CHECK(refusal({.boards = 65, .most = 65}) == "option most is 65, but must lie between 2 and 64.");
  CHECK(says(refusal({.width = std::numeric_limits<double>::quiet_NaN()}), "option width is nan, ", "between 0.25"));
  CHECK(says(refusal({.width = std::numeric_limits<double>::infinity()}), "option width is inf"));
  CHECK(refusal({.kind = static_cast<shelf::wood>(2)}) == "option kind is 2, but must lie between 0 and 1.");
  check_ranges(good, [](const shelf::options& options) { require_options(options); });
}
