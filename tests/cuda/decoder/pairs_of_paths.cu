// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

using espalier_test::trees;

TEST_CASE("Host and device write the same text, whatever the parts: single paths") {
  CHECK(espalier_test::check_same_text<trees::paths>() >= 20);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: single paths") {
  CHECK(espalier_test::check_same_padded_text<trees::paths>() >= 20);
}
