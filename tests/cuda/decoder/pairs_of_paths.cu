// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

using namespace espalier_test;

// For decoder.cu, too.
template written espalier_test::host_text(const part<chain, chain_options>&, std::string_view, const setting&);

TEST_CASE("Host and device write the same text, whatever the parts: single paths") {
  CHECK(for_each_device_pair_of<trees::paths>(check_same_text) >= 25);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: single paths") {
  CHECK(for_each_device_pair_of<trees::paths>(check_same_padded_text) >= 25);
}
