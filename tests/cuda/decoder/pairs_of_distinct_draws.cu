// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

using namespace espalier_test;

// For decoder.cu, too.
template written espalier_test::host_text(const part<dyspec_greedy, dyspec_greedy_options>&, std::string_view,
                                          const setting&);
template written espalier_test::host_text(const part<dyspec_threshold, dyspec_threshold_options>&, std::string_view,
                                          const setting&);
template written espalier_test::device_text(const part<dyspec_greedy, dyspec_greedy_options>&, std::string_view,
                                            const setting&, bool);
template written espalier_test::device_text(const part<dyspec_threshold, dyspec_threshold_options>&, std::string_view,
                                            const setting&, bool);

TEST_CASE("Host and device write the same text, whatever the parts: distinct draws") {
  CHECK(for_each_device_pair_of<trees::distinct_draws>(check_same_text) >= 15);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: distinct draws", "[long]") {
  CHECK(for_each_device_pair_of<trees::distinct_draws>(check_same_padded_text) >= 15);
}
