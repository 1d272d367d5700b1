// SPDX-License-Identifier: BSL-1.0
// Masks of other engines, all of them: back again from random trees, and what is refused.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/interop/dense_mask.hpp"
#include "espalier/interop/flashinfer_mask.hpp"
#include "espalier/interop/sglang_mask.hpp"
#include "interop/batches.hpp"
#include "raises.hpp"

using namespace espalier;
namespace io = espalier::interop;

namespace {

constexpr float hidden = -std::numeric_limits<float>::infinity();

std::span<const std::uint8_t> from(const std::vector<std::uint8_t>& bytes, std::int64_t begin) {
  return std::span(bytes).subspan(static_cast<std::size_t>(begin));
}

}  // namespace

TEST_CASE("Random trees come back from every mask, in every order, several sequences at once") {
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    const tree_batch b = random_batch(seed, 90, all_orders[seed % 4]);
    const forward_batch_view view = b.view();
    INFO("seed " << seed);
    const std::int32_t columns = 150;
    std::vector<std::int8_t> dense(static_cast<std::size_t>(view.n_rows() * columns), 5);
    std::vector<double> added(dense.size(), 5);
    io::write_dense_mask(view, columns, std::span(dense));
    io::write_dense_mask(view, columns, std::span(added));
    std::vector<std::uint8_t> packed(dense.size());
    std::vector<std::int32_t> indptr(b.size() + 1);
    io::write_flashinfer_mask(view, packed, indptr);
    std::int64_t full_begin = 0, tree_begin = 0;
    const io::sglang_mask_layout full{io::sglang_mask_mode::full, 90}, alone{io::sglang_mask_mode::qlen_only, 90};
    std::vector<std::uint8_t> full_mask(90 * 140 * 4), tree_mask(90 * 90 * 4);
    io::write_sglang_mask(view, full, full_mask);
    io::write_sglang_mask(view, alone, tree_mask);
    for (std::size_t s = 0; s < b.size(); ++s) {
      const std::int32_t n = b.rows(s), prefix = b.prefixes[s];
      std::vector<node_id> parents(static_cast<std::size_t>(n), -7);
      const auto first = static_cast<std::size_t>(view.sequences[s].row_begin * columns);
      io::read_dense_mask(std::span<const std::int8_t>(dense).subspan(first), n, columns, prefix, parents);
      REQUIRE(parents == b.parents[s]);
      parents.assign(parents.size(), -7);
      io::read_dense_mask(std::span<const double>(added).subspan(first), n, columns, prefix, parents);
      REQUIRE(parents == b.parents[s]);
      parents.assign(parents.size(), -7);
      io::read_flashinfer_mask(from(packed, indptr[s]), n, prefix, parents);
      REQUIRE(parents == b.parents[s]);
      // Rows that are padding hang below the root, but do not see themselves: what is there comes back.
      std::vector<std::uint8_t> rows(static_cast<std::size_t>(n * (prefix + n))),
          square(static_cast<std::size_t>(n * n));
      for (std::int32_t row = 0; row < n; ++row) {
        for (std::int32_t c = 0; c < prefix + n; ++c) {
          rows[static_cast<std::size_t>(row * (prefix + n) + c)] =
              full_mask[static_cast<std::size_t>(full_begin + row * (prefix + 90) + c)];
        }
        for (std::int32_t c = 0; c < n; ++c)
          square[static_cast<std::size_t>(row * n + c)] =
              tree_mask[static_cast<std::size_t>(tree_begin + row * 90 + c)];
      }
      parents.assign(parents.size(), -7);
      io::read_sglang_mask(rows, {io::sglang_mask_mode::full, n}, prefix, parents);
      REQUIRE(parents == b.parents[s]);
      parents.assign(parents.size(), -7);
      io::read_sglang_mask(square, {io::sglang_mask_mode::qlen_only, n}, prefix, parents);
      REQUIRE(parents == b.parents[s]);
      full_begin += full.bytes(prefix);
      tree_begin += alone.bytes(prefix);
    }
  }
  for (int n = 1; n <= 32; ++n) {
    tree_batch b;
    b.add(espalier::testing::random_tree(n, static_cast<std::uint32_t>(n), 500, 0.5), node_order::depth_first, n);
    std::vector<std::uint8_t> bits(static_cast<std::size_t>(4 * n));
    std::vector<node_id> parents(static_cast<std::size_t>(n));
    const io::sglang_mask_layout layout{io::sglang_mask_mode::qlen_only_bitpacking, n};
    io::write_sglang_mask(b.view(), layout, bits);
    io::read_sglang_mask(bits, layout, n, parents);
    REQUIRE(parents == b.parents[0]);
  }
}

TEST_CASE("Memory that is too small and shapes that do not fit are refused") {
  const tree_batch b = small_batch(3);
  std::vector<std::uint8_t> out(1000);
  std::vector<std::uint16_t> halves(100);
  std::vector<std::int32_t> indptr(2);
  const auto message = [](auto call) { return message_of<input_error>(call); };
  const auto bytes = [&](std::size_t n) { return std::span(out).first(n); };
  CHECK(says(message([&] { io::write_dense_mask(b.view(), 9, bytes(53)); }), "dense mask", "53 elements", "54"));
  CHECK(says(message([&] { io::write_dense_mask(b.view(), 8, bytes(1000)); }), "8 columns", "9 slots of sequence 0"));
  CHECK(says(message([&] { io::write_flashinfer_mask(b.view(), bytes(6), indptr); }), "FlashInfer", "6 elements", "7"));
  CHECK(says(message([&] { io::write_flashinfer_mask(b.view(), out, std::span(indptr).first(1)); }), "mask_indptr"));
  CHECK(says(message([&] { io::write_xqa_mask(b.view(), 5, halves); }), "XQA", "5 rows", "6 rows of sequence 0"));
  CHECK(says(message([&] { io::write_xqa_mask(b.view(), 6, std::span(halves).first(11)); }), "XQA", "12"));
  using io::sglang_mask_mode;
  const auto sglang = [&](sglang_mask_mode mode, std::int32_t n, std::size_t size) {
    return message([&] { io::write_sglang_mask(b.view(), {mode, n}, bytes(size)); });
  };
  CHECK(says(sglang(sglang_mask_mode::full, 6, 53), "SGLang's mask", "54"));
  CHECK(says(sglang(sglang_mask_mode::qlen_only, 6, 35), "36"));
  CHECK(says(sglang(sglang_mask_mode::qlen_only, 5, 1000), "5 rows", "6 rows"));
  CHECK(says(sglang(sglang_mask_mode::qlen_only_bitpacking, 33, 1000), "32 rows", "33"));
  CHECK(says(sglang(sglang_mask_mode::full, 0, 1000), "0 rows"));
}

TEST_CASE("Masks of no tree are refused with the row that is wrong") {
  std::vector<node_id> parents(3);
  const auto message = [&](std::vector<std::uint8_t> mask) {
    return message_of<input_error>([&] {
      io::read_sglang_mask(mask, {io::sglang_mask_mode::qlen_only, 3}, 0, parents);
    });
  };
  CHECK(message({1, 0, 0, 1, 1, 0, 1, 1, 1}).empty());
  CHECK(says(message({1, 0, 0, 1, 0, 0, 1, 0, 1}), "row 1", "itself"));
  CHECK(says(message({1, 0, 0, 1, 1, 1, 1, 0, 1}), "row 1", "row 2", "after"));
  CHECK(says(message({1, 0, 0, 0, 1, 0, 1, 0, 1}), "row 1", "root"));
  CHECK(says(message({1, 0, 0, 1, 1, 0, 0, 1, 1}), "row 2", "parent is row 1", "row 0"));
  CHECK(says(message({1, 0, 0, 1}), "4 elements", "9"));

  const std::vector<float> added{0, 0, hidden, 0, 0, 0};
  CHECK_NOTHROW(io::read_dense_mask(std::span(added), 2, 3, 1, parents));
  CHECK(parents[1] == 0);
  const auto dense = [&](std::size_t i, float value, std::int32_t columns, std::int32_t prefix) {
    std::vector<float> changed = added;
    changed[i] = value;
    return message_of<input_error>(
        [&] { io::read_dense_mask(std::span<const float>(changed), 2, columns, prefix, parents); });
  };
  CHECK(says(dense(4, -3.0F, 3, 1), "column 1", "row 1", "neither"));
  CHECK(says(dense(4, std::numeric_limits<float>::quiet_NaN(), 3, 1), "neither"));
  CHECK(says(dense(0, hidden, 3, 1), "column 0", "row 0", "hidden"));
  CHECK(says(dense(2, 0, 3, 0), "column 2", "no row"));
  CHECK(says(dense(0, 0, 3, 2), "3 columns", "2 committed", "2 rows"));
  const std::vector<std::uint8_t> packed{0b1101, 0};
  CHECK_NOTHROW(io::read_flashinfer_mask(packed, 2, 0, parents));
  const std::vector<std::uint8_t> no_prefix{0b110010};
  CHECK(says(message_of<input_error>([&] { io::read_flashinfer_mask(no_prefix, 2, 1, parents); }), "row 0", "slot 0"));
  const std::vector<std::uint8_t> beyond{0b11101};
  CHECK(says(message_of<input_error>([&] { io::read_flashinfer_mask(beyond, 2, 0, parents); }), "bit 4"));
}
