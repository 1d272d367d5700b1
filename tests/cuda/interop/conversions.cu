// SPDX-License-Identifier: BSL-1.0
// Conversions on the device, of trees compiled there, against the host's of the same trees.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/interop/dense_mask.cuh"
#include "espalier/cuda/interop/flashinfer_mask.cuh"
#include "espalier/cuda/interop/sglang_mask.cuh"
#include "espalier/cuda/interop/sglang_tree.cuh"
#include "espalier/cuda/interop/tensorrt_tree.cuh"
#include "espalier/interop/sglang_tree.hpp"
#include "interop/batches.hpp"
#include "raises.hpp"

using namespace espalier;
namespace device = espalier::cuda;
namespace io = espalier::interop;
namespace device_io = espalier::cuda::interop;
using espalier_test::device_sequence;
using espalier_test::device_sequences;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

constexpr std::int32_t max_context = 1200;

// The trees of a batch, compiled on the device with so many rows for each.
class compiled_batch {
 public:
  compiled_batch(const tree_batch& of, node_order order, std::int32_t n_rows)
      : compiler_(n_rows - 1, order, static_cast<std::int32_t>(of.size())),
        sequences_(static_cast<std::int32_t>(of.size()), n_rows) {
    for (std::size_t s = 0; s < of.size(); ++s)
      sequences_.set(static_cast<std::int32_t>(s), of.trees[s].view(), of.prefixes[s] + 1);
    batch_ = compiler_.compile(sequences_.texts(max_context), n_rows, nullptr);
  }
  const device::forward_batch_view& view() const { return batch_; }

 private:
  device::tree_compiler compiler_;
  device_sequences sequences_;
  device::forward_batch_view batch_;
};

// Fresh memory on the device that holds nothing useful.
template <class ElementT>
device::device_array<ElementT> spoiled(std::int64_t n) {
  device::device_array<ElementT> memory(static_cast<std::size_t>(n));
  memory.fill_bytes(0x5A, nullptr);
  return memory;
}

std::int32_t largest(const tree_batch& b) {
  std::int32_t n = 0;
  for (std::size_t s = 0; s < b.size(); ++s)
    n = std::max(n, b.rows(s));
  return n;
}

std::int32_t deepest(const tree_batch& b) {
  std::int32_t depth = 0;
  for (const tree<>& t : b.trees) {
    for (node_id u = 0; u < t.size(); ++u)
      depth = std::max(depth, t.view().depth[u]);
  }
  return depth;
}

template <class ElementT, class ToNumberT>
bool dense_is_right(const tree_batch& b, const compiled_batch& on_device, std::int32_t n_rows, ToNumberT number) {
  const std::int32_t columns = max_context;
  const device::forward_batch_view& batch = on_device.view();
  using stored = std::conditional_t<std::is_same_v<ElementT, bool>, std::uint8_t, ElementT>;  // a vector<bool> is none
  const auto out = spoiled<stored>(static_cast<std::int64_t>(batch.n_rows) * columns);
  device_io::write_dense_mask(batch, columns, reinterpret_cast<ElementT*>(out.data()), nullptr);
  const auto found = to_host(out);
  using host_number = decltype(number(found[0]));
  std::vector<host_number> expected(static_cast<std::size_t>(b.view().n_rows() * columns));
  io::write_dense_mask(b.view(), columns, std::span(expected));
  std::size_t at = 0;
  for (std::size_t s = 0; s < b.size(); ++s) {
    for (std::int32_t row = 0; row < n_rows; ++row) {
      for (std::int32_t c = 0; c < columns; ++c) {
        const auto i =
            (s * static_cast<std::size_t>(n_rows) + static_cast<std::size_t>(row)) * static_cast<std::size_t>(columns) +
            static_cast<std::size_t>(c);
        const bool is_padding = row >= b.rows(s);
        const host_number want = is_padding ? io::dense_mask_element<host_number>(c <= b.prefixes[s]) : expected[at++];
        if (number(found[i]) != want) return false;
      }
    }
  }
  return true;
}

void check_all(const tree_batch& b, node_order order, std::int32_t n_rows) {
  const compiled_batch on_device(b, order, n_rows);
  const device::forward_batch_view& batch = on_device.view();
  const auto n_sequences = static_cast<std::int64_t>(b.size());

  const std::int64_t capacity = device_io::flashinfer_mask_capacity(batch);
  const auto packed = spoiled<std::uint8_t>(capacity);
  const auto indptr = spoiled<std::int32_t>(n_sequences + 1);
  device_io::write_flashinfer_mask(batch, packed.data(), capacity, indptr.data(), nullptr);
  std::vector<std::uint8_t> expected_packed(static_cast<std::size_t>(capacity));
  std::vector<std::int32_t> expected_indptr(b.size() + 1);
  io::write_flashinfer_mask(b.view(), expected_packed, expected_indptr);
  CHECK(to_host(indptr) == expected_indptr);
  const auto used = static_cast<std::size_t>(expected_indptr.back());
  expected_packed.resize(used);
  CHECK(to_host(packed.data(), used) == expected_packed);
  CHECK(to_host(packed).back() == 0x5A);

  using io::sglang_mask_mode;
  for (const auto mode :
       {sglang_mask_mode::full, sglang_mask_mode::qlen_only, sglang_mask_mode::qlen_only_bitpacking}) {
    const io::sglang_mask_layout layout{mode, n_rows};
    if (mode == sglang_mask_mode::qlen_only_bitpacking && n_rows > 32) continue;
    const std::int64_t most = device_io::sglang_mask_capacity(batch, layout);
    const auto mask = spoiled<std::uint8_t>(most);
    device_io::write_sglang_mask(batch, layout, mask.data(), most, nullptr);
    std::vector<std::uint8_t> expected(static_cast<std::size_t>(most), 0x5A);
    io::write_sglang_mask(b.view(), layout, expected);
    CHECK(to_host(mask) == expected);
  }

  const std::int64_t all = n_sequences * n_rows;
  const auto check_links = [&]<class IntegerT>(IntegerT, io::tree_numbering numbering) {
    const auto arrays = spoiled<IntegerT>(4 * all);
    IntegerT* const p = arrays.data();
    device_io::write_sglang_tree<IntegerT>(batch, n_rows, {p, p + all, p + 2 * all, p + 3 * all}, nullptr, numbering);
    std::vector<IntegerT> expected(static_cast<std::size_t>(4 * all));
    const auto part = [&](std::int64_t i) {
      return std::span(expected).subspan(static_cast<std::size_t>(i * all), static_cast<std::size_t>(all));
    };
    io::write_sglang_tree<IntegerT>(b.view(), n_rows, {part(0), part(1), part(2), part(3)}, numbering);
    CHECK(to_host(arrays) == expected);
  };
  check_links(std::int64_t{}, io::tree_numbering::of_batch);
  check_links(std::int32_t{}, io::tree_numbering::of_tree);

  if (order != node_order::breadth_first) return;
  for (const std::int32_t more : {0, 3}) {
    const io::tensorrt_tree_shape shape{n_rows + more, deepest(b) + 1 + more};
    const auto paths = spoiled<std::int32_t>(n_sequences * shape.n_paths());
    const auto words = spoiled<std::int32_t>(n_sequences * shape.n_words());
    const auto offsets = spoiled<std::int32_t>(n_sequences * shape.max_tokens);
    device_io::write_tensorrt_tree(batch, shape, {paths.data(), words.data(), offsets.data()}, nullptr);
    std::vector<std::int32_t> expected_paths(paths.size()), expected_words(words.size()),
        expected_offsets(offsets.size());
    io::write_tensorrt_tree(b.view(), shape, {expected_paths, expected_words, expected_offsets});
    CHECK(to_host(paths) == expected_paths);
    CHECK(to_host(words) == expected_words);
    CHECK(to_host(offsets) == expected_offsets);
  }
}

}  // namespace

TEST_CASE("Conversions on the device are the host's: several random trees, every order, with padding and without") {
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    const node_order order = all_orders[seed % 4];
    const tree_batch b = random_batch(seed * 5 + seed / 4, 120, order);
    INFO("seed " << seed << ", " << b.size() << " sequences");
    check_all(b, order, largest(b) + static_cast<std::int32_t>(seed % 3) * 7);
  }
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const tree_batch b = random_batch(seed, 24, node_order::breadth_first);
    check_all(b, node_order::breadth_first, 24 + static_cast<std::int32_t>(seed));
  }
}

TEST_CASE("Conversions on the device are the host's: the root alone, chains, stars, 1024 nodes") {
  const auto check = [](const tree<>& t, std::int32_t n_rows, std::int32_t prefix) {
    for (const node_order order : {node_order::breadth_first, node_order::heavy_path}) {
      tree_batch b;
      b.add(t, order, prefix);
      INFO(t.size() << " nodes");
      check_all(b, order, n_rows);
    }
  };
  check(tree_of({-1}), 1, 0);
  check(tree_of({-1}), 9, 100);
  check(espalier::testing::random_tree(70, 1, 500, 1), 70, 3);
  std::vector<node_id> star(300, 0);
  star[0] = -1;
  check(tree_of(star), 300, 12);
  check(espalier::testing::random_tree(1025, 2, 50000, 0.6), 1025, 170);
}

TEST_CASE("Dense masks on the device are the host's: bool, bytes, float, half, bfloat16") {
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    const tree_batch b = random_batch(seed + 1, 60, node_order::depth_first);
    const std::int32_t n_rows = largest(b) + 4;
    const compiled_batch on_device(b, node_order::depth_first, n_rows);
    const auto same = [](auto x) { return x; };
    const auto as_float = [](auto x) { return static_cast<float>(x); };
    CHECK(dense_is_right<std::uint8_t>(b, on_device, n_rows, same));
    CHECK(dense_is_right<bool>(b, on_device, n_rows, same));
    CHECK(dense_is_right<float>(b, on_device, n_rows, same));
    CHECK(dense_is_right<__half>(b, on_device, n_rows, as_float));
    CHECK(dense_is_right<__nv_bfloat16>(b, on_device, n_rows, as_float));
  }
}

TEST_CASE("Captured conversions replay with the tree of the time") {
  const device::tree_compiler compiler(64, node_order::breadth_first);
  tree_batch first;
  first.add(espalier::testing::random_tree(30, 1, 500, 0.4), node_order::breadth_first, 5);
  device_sequence s(first.trees[0].view(), 6, 64);
  const io::tensorrt_tree_shape shape{65, 65};
  const auto links = spoiled<std::int64_t>(4 * 65);
  const auto paths = spoiled<std::int32_t>(shape.n_paths());
  const auto words = spoiled<std::int32_t>(shape.n_words()), offsets = spoiled<std::int32_t>(65);
  const auto packed = spoiled<std::uint8_t>(65 * max_context), full = spoiled<std::uint8_t>(65 * (max_context + 65));
  const auto indptr = spoiled<std::int32_t>(2);
  cudaStream_t stream;
  device::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  device::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const auto batch = compiler.compile(s.texts(max_context), 65, stream);
  std::int64_t* const p = links.data();
  device_io::write_sglang_tree<std::int64_t>(batch, 65, {p, p + 65, p + 130, p + 195}, stream);
  device_io::write_tensorrt_tree(batch, shape, {paths.data(), words.data(), offsets.data()}, stream);
  device_io::write_flashinfer_mask(batch, packed.data(), 65 * max_context, indptr.data(), stream);
  device_io::write_sglang_mask(batch, {io::sglang_mask_mode::full, 65}, full.data(), 65 * (max_context + 65), stream);
  device::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  device::require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (const int n : {30, 65, 1, 44}) {
    tree_batch b;
    b.add(espalier::testing::random_tree(n, static_cast<std::uint32_t>(n), 500, 0.2), node_order::breadth_first, 3 * n);
    s.set(b.trees[0].view(), 3 * n + 1);
    device::require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::vector<std::int64_t> expected_links(4 * 65);
    const auto part = [&](std::size_t i) { return std::span(expected_links).subspan(65 * i, 65); };
    io::write_sglang_tree<std::int64_t>(b.view(), 65, {part(0), part(1), part(2), part(3)});
    CHECK(to_host(links) == expected_links);
    std::vector<std::int32_t> expected_paths(paths.size()), expected_words(words.size()), expected_offsets(65);
    io::write_tensorrt_tree(b.view(), shape, {expected_paths, expected_words, expected_offsets});
    CHECK(to_host(paths) == expected_paths);
    CHECK(to_host(words) == expected_words);
    std::vector<std::uint8_t> expected_packed(packed.size()), expected_full(full.size());
    std::vector<std::int32_t> expected_indptr(2);
    io::write_flashinfer_mask(b.view(), expected_packed, expected_indptr);
    CHECK(to_host(indptr) == expected_indptr);
    expected_packed.resize(static_cast<std::size_t>(expected_indptr[1]));
    CHECK(to_host(packed.data(), expected_packed.size()) == expected_packed);
    const io::sglang_mask_layout layout{io::sglang_mask_mode::full, 65};
    io::write_sglang_mask(b.view(), layout, expected_full);
    expected_full.resize(static_cast<std::size_t>(layout.bytes(3 * n)));
    CHECK(to_host(full.data(), expected_full.size()) == expected_full);
  }
  device::require(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  device::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  device::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("Of a batch without sequences conversions write what the host's write") {
  const tree_batch b = small_batch(2), none;
  const compiled_batch on_device(b, node_order::breadth_first, 40);
  device::forward_batch_view batch = on_device.view();
  batch.n_sequences = 0;
  const auto indptr = spoiled<std::int32_t>(2);
  const auto bytes = spoiled<std::uint8_t>(80 * max_context);
  std::vector<std::int32_t> expected{-1, 0x5A5A5A5A};
  io::write_flashinfer_mask(none.view(), {}, std::span(expected).first(1));
  // All rows are padding, or there are none.
  for (const std::int32_t n_rows : {80, 0}) {
    batch.n_rows = n_rows;
    indptr.fill_bytes(0x5A, nullptr);
    device_io::write_flashinfer_mask(batch, bytes.data(), 80 * max_context, indptr.data(), nullptr);
    CHECK(to_host(indptr) == expected);
  }
  for (const std::int32_t n : {1, 40})
    device_io::write_sglang_mask(batch, {io::sglang_mask_mode::full, n}, bytes.data(), 0, nullptr);
  device_io::write_sglang_tree<std::int64_t>(batch, 40, {}, nullptr);
  for (const std::int32_t n : {40, 500, 1000})
    device_io::write_tensorrt_tree(batch, {n, 9}, {}, nullptr);
  device_io::write_dense_mask<std::uint8_t>(batch, max_context, bytes.data(), nullptr);
  CHECK(to_host(bytes) == std::vector<std::uint8_t>(bytes.size(), 0x5A));
  // A padding row without a sequence sees nothing.
  batch.n_rows = 2;
  device_io::write_dense_mask<std::uint8_t>(batch, max_context, bytes.data(), nullptr);
  CHECK(to_host(bytes.data(), 2 * max_context + 1).back() == 0x5A);
  CHECK(to_host(bytes.data(), 2 * max_context) == std::vector<std::uint8_t>(2 * max_context));
  CHECK(says(message_of<input_error>([&] { device_io::write_sglang_tree<std::int64_t>(batch, 40, {}, nullptr); }),
             "40 rows", "2 rows of 0 sequences"));
}

TEST_CASE("A tree that a format cannot hold is reported from the device, and of several the first found") {
  tree_batch b;
  b.add(tree_of({-1}), node_order::breadth_first, 3);
  b.add(tree_of({-1, 0, 1, 1, 0}), node_order::insertion, 5);  // row 4 is the root's child, after those of row 1
  // Without padding, so that sequences have different numbers of rows.
  const compiled_batch on_device(b, node_order::insertion, 5);
  const device::forward_batch_view& batch = on_device.view();
  const auto memory = spoiled<std::int32_t>(2 * 5 * 5);
  const auto found = to_device(std::vector<device_io::misfit>(1));
  const auto message = [&](auto write) {
    device::require(cudaMemset(found.data(), 0, sizeof(device_io::misfit)), "cudaMemset");
    write();
    const device_io::misfit m = to_host(found).front();
    return message_of<input_error>([&] { device_io::raise_misfit(m); });
  };
  std::int32_t* const p = memory.data();
  const auto paths = spoiled<std::int32_t>(2 * 5 * 5), words = spoiled<std::int32_t>(2 * 5);
  const auto write_tree = [&](std::int32_t max_path) {
    return message([&] {
      device_io::write_tensorrt_tree(batch, {5, max_path}, {paths.data(), words.data(), p}, nullptr, found.data());
    });
  };
  CHECK(says(write_tree(3), "row 4 of sequence", "breadth-first"));
  tree_batch deep;
  deep.add(tree_of({-1}), node_order::breadth_first, 3);
  deep.add(tree_of({-1, 0, 1, 2}), node_order::breadth_first, 5);
  const compiled_batch chains(deep, node_order::breadth_first, 5);
  const auto write_chain = [&](std::int32_t max_path) {
    return message([&] {
      device_io::write_tensorrt_tree(chains.view(), {5, max_path}, {paths.data(), words.data(), p}, nullptr,
                                     found.data());
    });
  };
  CHECK(write_chain(4).empty());
  CHECK(says(write_chain(3), "row 3 of sequence", "deeper"));
  // Three rows a sequence on average, but one has four.
  device::forward_batch_view fewer = chains.view();
  fewer.n_rows = 6;
  const auto bytes = spoiled<std::uint8_t>(2 * 3 * max_context);
  CHECK(says(message([&] {
               device_io::write_sglang_mask(fewer, {io::sglang_mask_mode::qlen_only, 3}, bytes.data(),
                                            2 * 3 * max_context, nullptr, found.data());
             }),
             "has 4 rows"));
  const auto links = spoiled<std::int64_t>(4 * 2 * 3);
  std::int64_t* const l = links.data();
  CHECK(says(message([&] {
               device_io::write_sglang_tree<std::int64_t>(fewer, 3, {l, l + 6, l + 12, l + 18}, nullptr,
                                                          io::tree_numbering::of_batch, found.data());
             }),
             "has 4 rows"));
  CHECK(says(message([&] {
               device_io::write_tensorrt_tree(fewer, {3, 4}, {paths.data(), words.data(), p}, nullptr, found.data());
             }),
             "has 4 rows"));
}

TEST_CASE("Shapes that a format has no room for are refused before anything is launched") {
  const tree_batch b = small_batch(2);
  const compiled_batch on_device(b, node_order::breadth_first, 40);
  const device::forward_batch_view& batch = on_device.view();
  const auto message = [](auto call) { return message_of<input_error>(call); };
  CHECK(says(message([&] { device_io::write_dense_mask<float>(batch, max_context - 1, nullptr, nullptr); }),
             "1199 columns", "1200"));
  CHECK(
      says(message([&] { device_io::write_flashinfer_mask(batch, nullptr, 6000, nullptr, nullptr); }), "6000", "6001"));
  const auto mask = [&](io::sglang_mask_mode mode, std::int32_t n, std::int64_t capacity) {
    return message([&] { device_io::write_sglang_mask(batch, {mode, n}, nullptr, capacity, nullptr); });
  };
  CHECK(says(mask(io::sglang_mask_mode::qlen_only_bitpacking, 40, 1000), "32 rows", "40"));
  CHECK(says(mask(io::sglang_mask_mode::qlen_only, 39, 100000), "39 rows", "40 rows"));
  CHECK(says(mask(io::sglang_mask_mode::qlen_only, 40, 1599), "1599", "1600"));
  CHECK(says(message([&] { device_io::write_sglang_tree<std::int64_t>(batch, 39, {}, nullptr); }), "39 rows"));
  CHECK(says(message([&] { device_io::write_sglang_tree<std::int64_t>(batch, 4097, {}, nullptr); }), "4096"));
  CHECK(says(message([&] { device_io::write_tensorrt_tree(batch, {39, 9}, {}, nullptr); }), "39 rows"));
  CHECK(says(message([&] { device_io::write_tensorrt_tree(batch, {1089, 9}, {}, nullptr); }), "1088"));
}
