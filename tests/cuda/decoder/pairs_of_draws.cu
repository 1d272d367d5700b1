// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

using espalier_test::trees;

TEST_CASE("Host and device write the same text, whatever the parts: independent draws") {
  CHECK(espalier_test::check_same_text<trees::independent_draws>() >= 20);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: independent draws") {
  CHECK(espalier_test::check_same_padded_text<trees::independent_draws>() >= 20);
}
