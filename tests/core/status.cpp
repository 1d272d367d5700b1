// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/status.hpp"

#include <string>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("every status has a name of its own") {
  CHECK(std::string(to_string(status::running)) == "running");
  CHECK(std::string(to_string(status::stop_token)) == "stop token");
  CHECK(std::string(to_string(status::stop_string)) == "stop string");
  CHECK(std::string(to_string(status::length)) == "length");
  CHECK(std::string(to_string(status::context_full)) == "context full");
}
