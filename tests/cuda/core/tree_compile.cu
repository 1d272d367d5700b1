// SPDX-License-Identifier: BSL-1.0
// The forward batch made on the device against the host's orders, masks and batches.
#include "espalier/cuda/core/tree_compile.cuh"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"

using namespace espalier;
namespace device = espalier::cuda;
using espalier_test::device_sequence;
using espalier_test::device_sequences;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

constexpr std::array orders{node_order::insertion, node_order::breadth_first, node_order::depth_first,
                            node_order::heavy_path};

// Where `n_rows` rows from `first` on differ from the host's batch of the tree; empty where they do not.
std::string difference(const device::tree_compiler& compiler, const device::forward_batch_view& batch, tree_view tree,
                       node_order which, std::int32_t prefix, std::int32_t sequence, std::int32_t s,
                       std::int32_t n_rows) {
  tree_order order(tree.n_nodes);
  order.compute(tree, which);
  forward_batch expected;
  expected.begin_sequence(sequence, prefix, n_rows);
  const token_id root = tree.token[0];
  expected.add_chain({&root, 1}, prefix, 1);
  expected.add_tree(tree, order, 0);
  const espalier::forward_batch_view host = expected.view();

  const auto rows = static_cast<std::size_t>(batch.n_rows), first = static_cast<std::size_t>(s * n_rows);
  const auto words = static_cast<std::size_t>(mask_words(n_rows));
  const auto nodes = to_host(compiler.nodes(), rows), row_of = to_host(compiler.rows(), rows);
  const auto tokens = to_host(batch.tokens, rows), positions = to_host(batch.positions, rows);
  const auto slots = to_host(batch.slots, rows), sequence_of = to_host(batch.sequence_of, rows);
  const auto mask = to_host(batch.mask, rows * words);
  const batch_sequence found = to_host(batch.sequences + s, 1)[0];
  if (found.sequence != sequence || found.row_begin != s * n_rows || found.row_end != s * n_rows + tree.n_nodes ||
      found.prefix != prefix || found.mask_begin != s * n_rows * static_cast<std::int32_t>(words) ||
      found.mask_words != static_cast<std::int32_t>(words))
    return "sequence";
  for (std::size_t i = 0; i < static_cast<std::size_t>(n_rows); ++i) {
    const std::string at = " of row " + std::to_string(i);
    const std::size_t r = first + i;
    const bool is_there = i < static_cast<std::size_t>(tree.n_nodes);
    if (nodes[r] != (is_there ? order.nodes()[i] : -1)) return "node" + at;
    if (row_of[r] != (is_there ? order.rows()[i] : -1)) return "row of node " + std::to_string(i);
    if (tokens[r] != (is_there ? host.tokens[i] : 0)) return "token" + at;
    if (positions[r] != (is_there ? host.positions[i] : 0)) return "position" + at;
    if (slots[r] != (is_there ? host.slots[i] : -1)) return "slot" + at;
    if (sequence_of[r] != (is_there ? s : -1)) return "sequence" + at;
    for (std::size_t w = 0; w < words; ++w) {
      if (mask[r * words + w] != (is_there ? host.mask[i * words + w] : 0U)) return "mask" + at;
    }
  }
  return "";
}

void poison(const device::forward_batch_view& batch, const device::tree_compiler& compiler) {
  const auto words = static_cast<std::size_t>(mask_words(batch.n_rows)), rows = static_cast<std::size_t>(batch.n_rows);
  const auto spoil = [](const auto* to, std::size_t n) {
    device::require(cudaMemset(const_cast<void*>(static_cast<const void*>(to)), 0x5A, n * sizeof *to), "cudaMemset");
  };
  spoil(batch.tokens, rows), spoil(batch.positions, rows), spoil(batch.slots, rows), spoil(batch.sequence_of, rows);
  spoil(batch.mask, rows * words), spoil(compiler.nodes(), rows), spoil(compiler.rows(), rows);
}

tree<> chain_of(int n_nodes) {
  tree<> t(n_nodes - 1);
  t.reset(3);
  for (int u = 1; u < n_nodes; ++u)
    t.append(u - 1, u, -1);
  return t;
}

tree<> star_of(int n_nodes) {
  tree<> t(n_nodes - 1);
  t.reset(3);
  for (int u = 1; u < n_nodes; ++u)
    t.append(0, u, -1);
  return t;
}

}  // namespace

TEST_CASE("Compiled trees are the host's, in every order: random trees, chains, stars, the root alone, 1024 nodes") {
  const auto which = GENERATE(from_range(orders));
  const device::tree_compiler compiler(1024, which);
  const auto check = [&](const tree<>& t, std::int32_t n_rows, std::int32_t text_size) {
    const device_sequence s(t, text_size);
    const auto batch = compiler.compile(s.texts(4000, 5), n_rows, nullptr);
    INFO(t.size() << " nodes in " << n_rows << " rows, order " << static_cast<int>(which));
    CHECK(batch.n_rows == n_rows);
    CHECK(batch.n_outputs == n_rows);
    CHECK(batch.max_context == 4000);
    CHECK(difference(compiler, batch, t, which, text_size - 1, 5, 0, n_rows) == "");
    poison(batch, compiler);
  };
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const int n_nodes = static_cast<int>(seed * 8 % 130) + 1;
    const tree<> t = testing::random_tree(n_nodes, seed, 5000, seed % 2 == 0 ? 0.0 : 0.8);
    check(t, n_nodes + static_cast<int>(seed % 3) * 50, static_cast<std::int32_t>(seed) + 1);
  }
  for (const int n_nodes : {1, 2, 31, 32, 33, 64, 65, 96, 97, 288, 289, 513, 544, 545, 1025})
    check(testing::random_tree(n_nodes, 7, 5000, 0.4), n_nodes, 100);
  check(testing::random_tree(700, 8, 5000, 0.95), 1025, 1);
  check(chain_of(1), 1025, 1);
  for (const int n_nodes : {40, 200, 1025}) {
    check(chain_of(n_nodes), n_nodes, 77);
    check(star_of(n_nodes), n_nodes, 77);
  }
}

TEST_CASE("Trees whose draws repeat tokens are compiled by nodes") {
  tree<> t(20);
  t.reset(1);
  for (const node_id parent : {0, 0, 1, 0, 1, 1, 2, 0})
    t.draw(parent, parent % 3 + t.size() % 2, -1);
  REQUIRE(t.view().n_draws == 8);
  REQUIRE(t.size() < 9);
  for (const node_order which : orders) {
    const device::tree_compiler compiler(16, which);
    const device_sequence s(t, 9);
    const auto batch = compiler.compile(s.texts(100), 17, nullptr);
    CHECK(difference(compiler, batch, t, which, 8, 0, 0, 17) == "");
  }
}

TEST_CASE("Several trees are compiled at once, each with a text of its own") {
  const std::array<int, 4> sizes{30, 1, 65, 12};
  const std::int32_t n_rows = 65;
  for (const node_order which : orders) {
    const device::tree_compiler compiler(100, which, 6);
    std::vector<tree<>> trees;
    device_sequences sequences(4, 100);
    for (std::int32_t i = 0; i < 4; ++i) {
      trees.push_back(
          testing::random_tree(sizes[static_cast<std::size_t>(i)], static_cast<std::uint32_t>(i), 500, 0.5));
      sequences.set(i, trees.back(), 10 * i + 1);
    }
    const auto batch = compiler.compile(sequences.texts(300, 9), n_rows, nullptr);
    CHECK(batch.n_rows == 4 * n_rows);
    CHECK(batch.n_sequences == 4);
    for (std::int32_t s = 0; s < 4; ++s)
      CHECK(difference(compiler, batch, trees[static_cast<std::size_t>(s)], which, 10 * s, 9 + s, s, n_rows) == "");
    // Lanes in another order, one of them empty.
    const std::array<std::int32_t, 5> places{2, 3, -1, 0, 1};
    const auto place_of = to_device(std::vector<std::int32_t>(places.begin(), places.end()));
    device::text_batch texts = sequences.texts(300, 9);
    texts.n = 5;
    texts.place_of = place_of.data();
    const auto mixed = compiler.compile(texts, n_rows, nullptr);
    for (std::int32_t lane = 0; lane < 5; ++lane) {
      const std::int32_t s = places[static_cast<std::size_t>(lane)];
      if (s < 0) {
        const auto tokens = to_host(mixed.sequence_of, static_cast<std::size_t>(mixed.n_rows));
        const auto first = tokens.begin() + lane * n_rows;
        CHECK(std::all_of(first, first + n_rows, [](std::int32_t t) { return t == -1; }));
      } else {
        CHECK(difference(compiler, mixed, trees[static_cast<std::size_t>(s)], which, 10 * s, 9 + s, lane, n_rows) ==
              "");
      }
    }
  }
}

TEST_CASE("Packed trees stand one after the other, each as it is with room of its own") {
  const std::array<int, 4> sizes{30, 1, 65, 12};
  const std::array<std::int32_t, 6> places{2, -1, 3, 0, 1, -1};
  constexpr std::int32_t n_rows = 70, n_nodes = 108;
  const auto packed = GENERATE(108, 109, 150, 420);
  for (const node_order which : orders) {
    const device::tree_compiler compiler(100, which, 6);
    device_sequences sequences(4, 100);
    for (std::int32_t i = 0; i < 4; ++i) {
      const auto size = sizes[static_cast<std::size_t>(i)];
      sequences.set(i, testing::random_tree(size, static_cast<std::uint32_t>(i), 500, 0.5), 10 * i + 1);
    }
    const auto place_of = to_device(std::vector<std::int32_t>(places.begin(), places.end()));
    device::text_batch texts = sequences.texts(300, 9);
    texts.n = 6;
    texts.place_of = place_of.data();
    const auto roomy = compiler.compile(texts, n_rows, nullptr);
    const auto words = static_cast<std::size_t>(mask_words(n_rows)), all = static_cast<std::size_t>(roomy.n_rows);
    const auto tokens = to_host(roomy.tokens, all), positions = to_host(roomy.positions, all);
    const auto slots = to_host(roomy.slots, all), sequence_of = to_host(roomy.sequence_of, all);
    const auto mask = to_host(roomy.mask, all * words);
    const auto nodes = to_host(compiler.nodes(), all), rows = to_host(compiler.rows(), all);
    const device::tree_compiler other(100, which, 6);
    const auto tight = other.compile(texts, n_rows, nullptr, packed);
    CHECK(tight.n_rows == packed);
    CHECK(tight.n_outputs == packed);
    CHECK(to_host(other.nodes(), all) == nodes);
    CHECK(to_host(other.rows(), all) == rows);
    const auto n = static_cast<std::size_t>(packed);
    const auto tight_tokens = to_host(tight.tokens, n), tight_positions = to_host(tight.positions, n);
    const auto tight_slots = to_host(tight.slots, n), tight_sequences = to_host(tight.sequence_of, n);
    const auto tight_mask = to_host(tight.mask, n * words);
    std::size_t next = 0;
    for (std::int32_t lane = 0; lane < 6; ++lane) {
      const batch_sequence s = to_host(tight.sequences + lane, 1)[0];
      CHECK(s.row_begin == static_cast<std::int32_t>(next));
      CHECK(s.mask_begin == s.row_begin * s.mask_words);
      for (std::int32_t i = s.row_begin; i < s.row_end; ++i, ++next) {
        const auto of = static_cast<std::size_t>(lane * n_rows + i - s.row_begin);
        CHECK(tight_tokens[next] == tokens[of]);
        CHECK(tight_positions[next] == positions[of]);
        CHECK(tight_slots[next] == slots[of]);
        CHECK(tight_sequences[next] == sequence_of[of]);
        CHECK(std::equal(tight_mask.begin() + static_cast<std::ptrdiff_t>(next * words),
                         tight_mask.begin() + static_cast<std::ptrdiff_t>((next + 1) * words),
                         mask.begin() + static_cast<std::ptrdiff_t>(of * words)));
      }
    }
    CHECK(next == n_nodes);
    for (; next < n; ++next) {
      CHECK(tight_sequences[next] == -1);
      CHECK(tight_slots[next] == -1);
      CHECK(tight_tokens[next] == 0);
      CHECK(tight_positions[next] == 0);
    }
    CHECK_THROWS_AS(compiler.compile(texts, n_rows, nullptr, 6 * n_rows + 1), input_error);
  }
}

TEST_CASE("A captured compile replays with the tree and the text of the time") {
  const device::tree_compiler compiler(128, node_order::heavy_path);
  tree<> t = testing::random_tree(90, 1, 500, 0.5);
  device_sequence s(t, 20, 128);
  cudaStream_t stream;
  device::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  device::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const auto batch = compiler.compile(s.texts(300), 129, stream);
  device::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  device::require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (const int n_nodes : {90, 129, 1, 33}) {
    t = testing::random_tree(n_nodes, static_cast<std::uint32_t>(n_nodes), 500, 0.3);
    s.set(t, 20 + n_nodes);
    device::require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    CHECK(difference(compiler, batch, t, node_order::heavy_path, 19 + n_nodes, 0, 0, 129) == "");
    poison(batch, compiler);
  }
  device::require(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  device::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  device::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("A tree larger than its bucket loses its last nodes, and nothing else happens") {
  const tree<> t = testing::random_tree(50, 3, 500, 0.3);
  tree<> first(39);
  first.reset(t.view().token[0]);
  for (node_id u = 1; u < 40; ++u)
    first.append(t.view().parent[u], t.view().token[u], -1);
  const device::tree_compiler compiler(60, node_order::depth_first);
  const device_sequence s(t, 5);
  const auto batch = compiler.compile(s.texts(300), 40, nullptr);
  CHECK(difference(compiler, batch, first, node_order::depth_first, 4, 0, 0, 40) == "");
}

TEST_CASE("Shapes that the compiler has no room for are refused") {
  CHECK_THROWS_AS(device::tree_compiler(1025, node_order::insertion), option_error);
  CHECK_THROWS_AS(device::tree_compiler(-1, node_order::insertion), option_error);
  CHECK_THROWS_AS(device::tree_compiler(8, node_order::insertion, 0), option_error);
  const device::tree_compiler compiler(8, node_order::insertion, 2);
  const auto message = [&](std::int32_t n_rows, std::int32_t n_sequences) {
    device::text_batch texts;
    texts.n = n_sequences;
    return message_of<input_error>([&] { compiler.compile(texts, n_rows, nullptr); });
  };
  CHECK(says(message(10, 1), "10 rows", "1 to 9"));
  CHECK(says(message(0, 1), "0 rows", "1 to 9"));
  CHECK(says(message(9, 3), "3 trees", "1 to 2"));
}
