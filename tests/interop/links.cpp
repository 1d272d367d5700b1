// SPDX-License-Identifier: BSL-1.0
// Trees of other engines as links, paths and selections, all of them: back again from random trees, and what is
// refused.
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "espalier/interop/medusa_tree.hpp"
#include "espalier/interop/sglang_tree.hpp"
#include "espalier/interop/tensorrt_tree.hpp"
#include "interop/arrays.hpp"
#include "interop/batches.hpp"
#include "raises.hpp"

using namespace espalier;
namespace io = espalier::interop;

namespace {

std::int32_t depth_of(tree_view tree) {
  std::int32_t depth = 0;
  for (node_id u = 0; u < tree.n_nodes; ++u)
    depth = std::max(depth, tree.depth[u]);
  return depth;
}

}  // namespace

TEST_CASE("Random trees come back from links, selections, paths and packed masks") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    const tree_batch any = random_batch(seed, 100, all_orders[seed % 4]);
    const std::int32_t n = 100;
    const sglang_arrays<std::int64_t> links(any, n);
    const sglang_arrays<std::int32_t> small(any, n);
    for (std::size_t s = 0; s < any.size(); ++s) {
      std::vector<node_id> parents(any.parents[s].size(), -7);
      const std::size_t first = s * static_cast<std::size_t>(n);
      const auto part = [&](const auto& all) { return std::span(all).subspan(first, parents.size()); };
      io::read_sglang_tree<std::int64_t>(part(links.next_token), part(links.next_sibling), parents);
      REQUIRE(parents == any.parents[s]);
      parents.assign(parents.size(), -7);
      io::read_sglang_tree<std::int32_t>(part(small.next_token), part(small.next_sibling), parents);
      REQUIRE(parents == any.parents[s]);
    }

    const tree_batch b = random_batch(seed, 70, node_order::breadth_first);
    std::int32_t depth = 0;
    for (const tree<>& t : b.trees)
      depth = std::max(depth, depth_of(t));
    const io::tensorrt_tree_shape shape{75, depth + 1};
    const tensorrt_arrays arrays(b, shape);
    for (std::size_t s = 0; s < b.size(); ++s) {
      const std::int32_t rows = b.rows(s);
      std::vector<node_id> parents(b.parents[s].size(), -7);
      const auto paths =
          std::span<const std::int32_t>(arrays.paths)
              .subspan(s * static_cast<std::size_t>(shape.n_paths()), static_cast<std::size_t>(shape.n_paths()));
      io::read_parents_of_paths(paths, shape.max_path, rows, parents);
      REQUIRE(parents == b.parents[s]);
      for (std::size_t p = 1; p < 75 && paths[p * static_cast<std::size_t>(shape.max_path)] == 0; ++p) {
        const auto width = static_cast<std::size_t>(shape.max_path);
        REQUIRE(std::lexicographical_compare(paths.begin() + static_cast<std::ptrdiff_t>((p - 1) * width),
                                             paths.begin() + static_cast<std::ptrdiff_t>(p * width),
                                             paths.begin() + static_cast<std::ptrdiff_t>(p * width),
                                             paths.begin() + static_cast<std::ptrdiff_t>((p + 1) * width)));
      }
      parents.assign(parents.size(), -7);
      io::read_tensorrt_mask(
          std::span<const std::int32_t>(arrays.mask).subspan(s * static_cast<std::size_t>(shape.n_words())), rows, 75,
          parents);
      REQUIRE(parents == b.parents[s]);

      longs list(75), selected(static_cast<std::size_t>(rows) - 1);
      io::write_sglang_selection(b.view(), s, 70, list, selected);
      parents.assign(parents.size(), -7);
      io::read_sglang_selection(list, selected, 70, parents);
      REQUIRE(parents == b.parents[s]);

      const auto size = static_cast<std::size_t>(rows);
      ints ranks(size);
      for (std::size_t row = 2; row < size; ++row)
        ranks[row] = b.parents[s][row] == b.parents[s][row - 1] ? ranks[row - 1] + 1 : 0;
      longs indices(size), positions(size), retrieve(size * static_cast<std::size_t>(depth + 1));
      std::vector<float> mask(size * size);
      for (const io::leaf_order leaves : {io::leaf_order::medusa, io::leaf_order::eagle}) {
        const std::int32_t n_leaves =
            io::write_medusa_tree(b.view(), s, ranks, 70, depth + 1, leaves, {indices, positions, mask, retrieve});
        parents.assign(parents.size(), -7);
        io::read_parents_of_paths(
            std::span<const std::int64_t>(retrieve).first(static_cast<std::size_t>(n_leaves * (depth + 1))), depth + 1,
            rows, parents);
        REQUIRE(parents == b.parents[s]);
      }
    }
  }
}

TEST_CASE("Trees that a format has no room for, or not in this order, are refused") {
  const tree_batch b = small_batch(3);
  tree_batch deep_first;
  deep_first.add(tree_of({-1, 0, 1, 0}), node_order::insertion, 0);
  longs a(6), c(6), d(6), e(6), list(9), selected(9);
  const auto message = [](auto call) { return message_of<input_error>(call); };
  CHECK(says(message([&] { io::write_sglang_tree<std::int64_t>(b.view(), 5, {a, c, d, e}); }), "5 rows", "6 rows"));
  CHECK(says(message([&] { io::write_sglang_tree<std::int64_t>(b.view(), 7, {a, c, d, e}); }), "positions", "7"));
  const auto none = std::span(list).first(0);
  CHECK(says(message([&] { io::write_sglang_selection(b.view(), 0, 1, list, selected); }), "row 0", "more than 1"));
  CHECK(says(message([&] { io::write_sglang_selection(b.view(), 0, 2, none, selected); }), "parent_list"));
  CHECK(says(message([&] { io::write_sglang_selection(b.view(), 0, 2, std::span(list).first(2), selected); }),
             "parent_list"));
  CHECK(says(message([&] { io::write_sglang_selection(deep_first.view(), 0, 2, list, selected); }), "row 3",
             "breadth-first"));
  CHECK_THROWS_AS(io::write_sglang_selection(b.view(), 0, 0, list, selected), option_error);
  CHECK(says(message([&] { tensorrt_arrays(deep_first, {6, 4}); }), "row 3", "breadth-first"));
  CHECK(says(message([&] { tensorrt_arrays(b, {5, 4}); }), "5 tokens", "6 rows"));
  CHECK(says(message([&] { tensorrt_arrays(b, {6, 2}); }), "row 3", "depth 2", "paths of 2"));
  CHECK(says(message([&] { tensorrt_arrays(b, {0, 2}); }), "0 tokens"));
  std::vector<float> mask(36);
  const auto medusa = [&](const tree_batch& of, const ints& ranks, std::int32_t width, std::size_t room) {
    return message([&] {
      io::write_medusa_tree(of.view(), 0, ranks, 10, width, io::leaf_order::medusa,
                            {a, c, mask, std::span(selected).first(room)});
    });
  };
  CHECK(medusa(b, {0, 0, 1, 0, 1, 0}, 3, 9).empty());
  CHECK(says(medusa(b, {0, 1, 1, 0, 1, 0}, 3, 9), "row 2", "rank 1"));
  CHECK(says(medusa(b, {0, 0, 10, 0, 1, 0}, 3, 9), "row 2", "rank 10"));
  CHECK(says(medusa(b, {0, 0, 1, 0, 1, 0}, 2, 9), "row 3", "2 columns"));
  CHECK(says(medusa(b, {0, 0, 1, 0, 1, 0}, 3, 8), "retrieve_indices", "9"));
  CHECK(says(medusa(b, {0, 0, 1, 0, 1}, 3, 9), "ranks", "6"));
  CHECK(says(medusa(deep_first, {0, 0, 1, 0}, 3, 9), "row 3", "breadth-first"));
}

TEST_CASE("Links, selections and paths of no tree are refused") {
  std::vector<node_id> parents(4);
  const auto links = [&](longs child, longs sibling) {
    return message_of<input_error>([&] { io::read_sglang_tree<std::int64_t>(child, sibling, parents); });
  };
  CHECK(links({1, 3, -1, -1}, {-1, 2, -1, -1}).empty());
  CHECK(says(links({1, 0, -1, -1}, {-1, 2, 3, -1}), "row 1", "row 0"));
  CHECK(says(links({1, 4, -1, -1}, {-1, 2, 3, -1}), "row 1", "row 4"));
  CHECK(says(links({1, 2, -1, -1}, {-1, 2, 3, -1}), "row 2", "twice"));
  CHECK(says(links({1, -1, -1, -1}, {-1, 2, -1, -1}), "row 3", "not linked"));
  CHECK(says(links({1, -1, -1, -1}, {-1, 1, -1, -1}), "row 1", "row 1"));
  CHECK(says(links({1, -1, -1, -1}, {-1}), "retrive_next_sibling"));
  const auto selection = [&](longs list, longs selected) {
    return message_of<input_error>([&] { io::read_sglang_selection(list, selected, 2, parents); });
  };
  CHECK(selection({-1, 0, 1}, {0, 1, 2}).empty());
  CHECK(says(selection({-1, 0, 1}, {0, 2, 1}), "entry 2", "ascend"));
  CHECK(says(selection({-1, 0}, {0, 1, 4}), "candidate 4", "parent 2", "2 entries"));
  CHECK(says(selection({-1, 0, 1}, {0, 2, 5}), "candidate 5", "candidate 1", "not selected"));
  CHECK(says(selection({-1, 0, 1}, {-1, 2, 5}), "entry 0", "-1"));
  const auto paths = [&](ints all) {
    return message_of<input_error>([&] { io::read_parents_of_paths<std::int32_t>(all, 3, 4, parents); });
  };
  CHECK(paths({0, 1, 3, 0, 2, -1, -1, -1, -1}).empty());
  CHECK(says(paths({1, 2, 3}), "path 0", "row 1"));
  CHECK(says(paths({0, -1, 3}), "path 0", "depth 2"));
  CHECK(says(paths({0, 2, 1}), "row 2 to row 1"));
  CHECK(says(paths({0, 1, 4}), "row 1 to row 4"));
  CHECK(says(paths({0, 1, 3, 0, 2, 3}), "row 3", "row 2", "row 1"));
  CHECK(says(paths({0, 1, 3}), "row 2", "no path"));
}
