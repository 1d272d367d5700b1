// SPDX-License-Identifier: BSL-1.0
#include "espalier/interop/sglang_mask.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "interop/batches.hpp"

using namespace espalier;
namespace io = espalier::interop;

TEST_CASE("SGLang's masks, by hand: full, tree alone, bits") {
  tree_batch b = small_batch(2);
  b.add(tree_of({-1, 0}), node_order::insertion, 1);
  const auto write = [&](io::sglang_mask_mode mode, std::size_t bytes) {
    std::vector<std::uint8_t> out(bytes, 0xAA);
    io::write_sglang_mask(b.view(), {mode, 6}, out);
    return out;
  };
  const auto bits = [](const std::string& text) {
    std::vector<std::uint8_t> out;
    for (const char c : text)
      out.push_back(c == '1' ? 1 : 0);
    return out;
  };
  CHECK(write(io::sglang_mask_mode::full, 48 + 42) == bits("11100000"
                                                           "11110000"
                                                           "11101000"
                                                           "11110100"
                                                           "11110010"
                                                           "11101001"
                                                           "1100000"
                                                           "1110000"
                                                           "1100000"
                                                           "1100000"
                                                           "1100000"
                                                           "1100000"));
  CHECK(write(io::sglang_mask_mode::qlen_only, 72) == bits("100000"
                                                           "110000"
                                                           "101000"
                                                           "110100"
                                                           "110010"
                                                           "101001"
                                                           "100000"
                                                           "110000"
                                                           "100000"
                                                           "100000"
                                                           "100000"
                                                           "100000"));
  CHECK(write(io::sglang_mask_mode::qlen_only_bitpacking, 12) ==
        std::vector<std::uint8_t>{1, 3, 5, 11, 19, 37, 1, 3, 1, 1, 1, 1});
  std::vector<std::uint8_t> two(2 * 12), four(4 * 20);
  tree_batch chain;
  chain.add(espalier::testing::random_tree(12, 1, 500, 1), node_order::insertion, 0);
  io::write_sglang_mask(chain.view(), {io::sglang_mask_mode::qlen_only_bitpacking, 12}, two);
  CHECK(std::vector<std::uint8_t>(two.end() - 4, two.end()) == std::vector<std::uint8_t>{0xFF, 0x07, 0xFF, 0x0F});
  io::write_sglang_mask(chain.view(), {io::sglang_mask_mode::qlen_only_bitpacking, 20}, four);
  CHECK(std::vector<std::uint8_t>(four.begin() + 44, four.begin() + 52) ==
        std::vector<std::uint8_t>{0xFF, 0x0F, 0, 0, 1, 0, 0, 0});
}
