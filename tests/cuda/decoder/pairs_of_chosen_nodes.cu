// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

using namespace espalier_test;

// For decoder.cu, too.
template written espalier_test::host_text(const part<dynatree, dynatree_options>&, std::string_view, const setting&);
template written espalier_test::device_text(const part<dynatree, dynatree_options>&, std::string_view, const setting&,
                                            bool);

TEST_CASE("Host and device write the same text, whatever the parts: chosen nodes") {
  CHECK(for_each_device_pair_of<trees::chosen_nodes>(check_same_text) >= 10);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: chosen nodes", "[long]") {
  CHECK(for_each_device_pair_of<trees::chosen_nodes>(check_same_padded_text) >= 10);
}
