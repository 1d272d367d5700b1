// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/error.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

TEST_CASE("an error is a sentence of its pieces") {
  CHECK(message_of<input_error>([] { raise<input_error>("row ", 3, " is ", 1.5, ", ", true, "."); }) ==
        "row 3 is 1.5, true.");
  CHECK(message_of<error>([] { raise<numeric_error>("a"); }) == "a");
  CHECK(message_of<std::runtime_error>([] { raise<model_error>("b"); }) == "b");
}

TEST_CASE("options are checked against their range, both ends included") {
  require_option("size", 1, 1, 3);
  require_option("size", 3, 1, 3);
  CHECK(message_of<option_error>([] { require_option("size", 4, 1, 3); }) ==
        "option size is 4, but must lie between 1 and 3.");
  CHECK(says(message_of<option_error>([] { require_option("size", 0, 1, 3); }), "size is 0"));
  CHECK(says(
      message_of<option_error>([] { require_option("share", std::numeric_limits<double>::quiet_NaN(), 0.0, 1.0); }),
      "share is nan", "between 0 and 1"));
}

TEST_CASE("a number just outside its range does not print as if it were inside") {
  CHECK(says(message_of<option_error>([] { require_option("share", std::nextafter(1.0F, 2.0F), 0.0F, 1.0F); }),
             "share is 1.0000001"));
  CHECK(says(message_of<option_error>([] { require_option("share", -1e-30, 0.0, 1.0); }), "share is -1e-30"));
}
