// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/attention/tree_attention.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

struct part {
  std::int32_t sequence = 0;
  std::int32_t prefix = 0;
  std::int32_t nodes = 1;  // below the root
};

// Numbers of the attention's inputs: peaked scores show wrong weights; equal scores and values that count slots show
// each slot that is missing or too many.
// Both belong to the node, not to where it lies.
enum class filling { peaked, counting };

struct setting {
  std::vector<part> parts{{0, 0, 1}};
  std::int32_t group = 1;
  std::int32_t kv_heads = 2;
  std::int32_t dim = 64;
  std::int32_t page_size = 0;  // 0: contiguous
  std::int32_t padding = 3;    // rows
  std::int32_t extra_context = 0;
  std::int32_t stride_beyond = 0;  // between rows of queries
  std::int32_t rows_before = 0;    // of the only part: in the cache and in masks, but not in the batch
  node_order order = node_order::depth_first;
  filling fill = filling::peaked;
  double lean = 0.5;
  bool batch_invariant = false;
  bool sinks = false;    // heads have sinks: below the scores, among them and far above
  bool windows = false;  // each row has a window of its own
};

float sink_of(std::int32_t head) {
  constexpr float of[] = {2.0F, -60.0F, 9.0F, 300.0F, 0.0F};
  return of[head % 5];
}

std::int32_t window_of(std::int32_t row) {
  constexpr std::int32_t of[] = {1, 70, 3, 1000, 17};
  return of[row % 5];
}

template <class NumberT>
double roundoff() {
  if constexpr (std::is_same_v<NumberT, __half>) return 1.0 / 2048;
  if constexpr (std::is_same_v<NumberT, __nv_bfloat16>) return 1.0 / 256;
  return 0;
}

// A batch, a cache and queries on the host: slots that no row sees, other layers and other sequences are NaN.
template <class NumberT>
struct problem {
  static constexpr std::int32_t n_layers = 2, layer = 1, n_sequences = 3;

  problem(const setting& with, std::uint32_t seed) : s(with) {
    std::mt19937 random(seed);
    std::int32_t slots = 1;
    for (const part& p : s.parts) {
      const tree<> t = testing::random_tree(p.nodes + 1, static_cast<std::uint32_t>(random()), 5000, s.lean);
      tree_order order(p.nodes + 1);
      order.compute(t.view(), s.order);
      batch.begin_sequence(p.sequence, p.prefix, p.nodes + 1);
      batch.add_row(0, p.prefix, 0, true);
      batch.add_tree(t.view(), order, 0);
      slots = std::max(slots, p.prefix + p.nodes + 1);
      nodes.emplace_back(order.nodes().begin(), order.nodes().end());
    }
    const forward_batch_view view = batch.view();
    mask.assign(view.mask.begin(), view.mask.end());
    sequences.assign(view.sequences.begin(), view.sequences.end());
    sequences[0].row_end -= s.rows_before;
    sequences[0].mask_begin += s.rows_before * sequences[0].mask_words;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      sequence_of.insert(sequence_of.end(), at(sequences[i].row_end - sequences[i].row_begin),
                         static_cast<std::int32_t>(i));
    sequence_of.insert(sequence_of.end(), at(s.padding), -1);
    max_context = slots + s.extra_context;

    // A cache with pages in a random order and the unused ones NaN; a contiguous one is a page a sequence.
    kv.page_size = s.page_size > 0 ? s.page_size : max_context;
    kv.max_pages = (max_context + kv.page_size - 1) / kv.page_size;
    kv.row_size = s.kv_heads * s.dim;
    kv.n_layers = n_layers;
    const std::int32_t n_pages = n_sequences * kv.max_pages;
    pages.resize(at(n_pages));
    std::iota(pages.begin(), pages.end(), 0);
    if (s.page_size > 0) std::shuffle(pages.begin(), pages.end(), random);
    kv.layer_stride = std::int64_t{n_pages} * 2 * kv.page_size * kv.row_size;
    cache.assign(at(n_layers * kv.layer_stride), static_cast<NumberT>(std::numeric_limits<float>::quiet_NaN()));
    kv.data = cache.data();
    kv.pages = pages.data();
    for (std::size_t i = 0; i < s.parts.size(); ++i) {
      const part& p = s.parts[i];
      for (std::int32_t slot = 0; slot <= p.prefix + p.nodes; ++slot) {
        const std::int32_t token = slot < p.prefix ? slot : p.prefix + nodes[i][at(slot - p.prefix)];
        std::minstd_rand own(seed + 7919U * static_cast<std::uint32_t>(token) +
                             31U * static_cast<std::uint32_t>(p.sequence));
        std::normal_distribution<float> normal;
        NumberT *key = kv.key(layer, p.sequence, slot), *value = kv.value(layer, p.sequence, slot);
        for (std::int32_t d = 0; d < kv.row_size; ++d) {
          key[d] = static_cast<NumberT>(normal(own));
          value[d] =
              static_cast<NumberT>(s.fill == filling::counting ? float(token % s.dim == d % s.dim) : normal(own));
        }
      }
    }
    stride = s.group * kv.row_size + s.stride_beyond;
    queries.assign(at(n_rows() * stride), static_cast<NumberT>(std::numeric_limits<float>::quiet_NaN()));
    for (std::int32_t row = 0; row < n_rows() - s.padding; ++row) {
      std::minstd_rand own(seed + 104729U * static_cast<std::uint32_t>(node_of(row)));
      std::normal_distribution<float> normal;
      for (std::int32_t d = 0; d < s.group * kv.row_size; ++d)
        queries[at(row * stride + d)] = static_cast<NumberT>(s.fill == filling::counting ? 0.0F : 4 * normal(own));
    }
  }

  // Row -> node of its tree.
  node_id node_of(std::int32_t row) const {
    const auto of = at(sequence_of[at(row)]);
    return nodes[of][at(row - sequences[of].row_begin + s.rows_before)];
  }

  std::int32_t n_rows() const { return static_cast<std::int32_t>(sequence_of.size()); }
  std::int32_t width() const { return s.group * s.kv_heads * s.dim; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(s.dim)); }

  gpu::attention_shape shape() const {
    return {s.group * s.kv_heads, s.kv_heads, s.dim, n_rows(), max_context, stride, s.batch_invariant};
  }

  // Padding rows are 7, and so are those that were not written.
  std::vector<NumberT> run(const gpu::attention_tuning& tuning) const {
    const on_device there(*this);
    const gpu::tree_attention<NumberT> attention(shape(), tuning);
    std::vector<float> numbers;
    for (std::int32_t head = 0; head < s.group * s.kv_heads; ++head)
      numbers.push_back(sink_of(head));
    const auto sinks = to_device(numbers);
    gpu::attention_scores scores{.scale = scale()};
    if (s.sinks) scores.sinks = sinks.data();
    std::vector<std::int32_t> of_rows;
    for (std::int32_t row = 0; row < n_rows(); ++row)
      of_rows.push_back(window_of(row));
    const auto windows = to_device(of_rows);
    if (s.windows) scores.windows = windows.data();
    attention.run(there.query.data(), there.kv, layer, there.view, scores, there.out.data(), nullptr);
    return to_host(there.out);
  }

  struct on_device {
    explicit on_device(const problem& p)
        : words(to_device(p.mask)),
          sequence(to_device(p.sequences)),
          belongs(to_device(p.sequence_of)),
          numbers(to_device(p.cache)),
          page(to_device(p.pages)),
          query(to_device(p.queries)),
          out(to_device(std::vector<NumberT>(at(p.n_rows() * p.width()), static_cast<NumberT>(7.0F)))) {
      view.n_rows = p.n_rows();
      view.n_sequences = static_cast<std::int32_t>(p.sequences.size());
      view.max_context = p.max_context;
      view.sequence_of = belongs.data();
      view.sequences = sequence.data();
      view.mask = words.data();
      kv = p.kv;
      kv.data = numbers.data();
      kv.pages = p.s.page_size > 0 ? page.data() : nullptr;
    }

    gpu::device_array<std::uint32_t> words;
    gpu::device_array<batch_sequence> sequence;
    gpu::device_array<std::int32_t> belongs;
    gpu::device_array<NumberT> numbers;
    gpu::device_array<std::int32_t> page;
    gpu::device_array<NumberT> query, out;
    gpu::forward_batch_view view;
    gpu::kv_view<NumberT> kv;
  };

  // Slots that a row sees, ascending.
  std::vector<std::int32_t> seen_by(std::int32_t row) const {
    const batch_sequence& of = sequences[at(sequence_of[at(row)])];
    std::vector<std::int32_t> slots(at(of.prefix));
    std::iota(slots.begin(), slots.end(), 0);
    const std::uint32_t* words = mask.data() + of.mask_begin + (row - of.row_begin) * of.mask_words;
    for (std::int32_t j = 0; j < 32 * of.mask_words; ++j)
      if ((words[j / 32] >> (j % 32) & 1U) != 0) slots.push_back(of.prefix + j);
    const auto seen = s.windows ? std::min(slots.size(), at(window_of(row))) : slots.size();
    slots.erase(slots.begin(), slots.end() - static_cast<std::ptrdiff_t>(seen));
    return slots;
  }

  // The worst error of any number, in units of what is allowed; a NaN or an untouched row is worse than any.
  double worst(const std::vector<NumberT>& out) const {
    double most = 0;
    for (std::int32_t row = 0; row < n_rows(); ++row) {
      const NumberT* const got = out.data() + at(row * width());
      if (sequence_of[at(row)] < 0) {
        if (std::any_of(got, got + width(), [](NumberT x) { return static_cast<float>(x) != 7.0F; })) return 1e30;
        continue;
      }
      const std::int32_t sequence = sequences[at(sequence_of[at(row)])].sequence;
      const std::vector<std::int32_t> slots = seen_by(row);
      for (std::int32_t head = 0; head < s.group * s.kv_heads; ++head) {
        const std::int32_t from = head / s.group * s.dim;
        const double error = s.fill == filling::counting
                                 ? count_error(row, slots, got + at(head * s.dim))
                                 : head_error(row, head, sequence, from, slots, got + at(head * s.dim));
        if (!(error <= most)) most = std::isnan(error) ? 1e30 : error;
      }
    }
    return most;
  }

  double count_error(std::int32_t row, const std::vector<std::int32_t>& slots, const NumberT* got) const {
    const auto of = at(sequence_of[at(row)]);
    const std::int32_t prefix = sequences[of].prefix;
    std::vector<int> counts(at(s.dim));
    for (const std::int32_t slot : slots)
      ++counts[at((slot < prefix ? slot : prefix + nodes[of][at(slot - prefix)]) % s.dim)];
    double most = 0;
    for (std::int32_t d = 0; d < s.dim; ++d) {
      const double exact = counts[at(d)],
                   found = static_cast<double>(static_cast<float>(got[d])) * static_cast<double>(slots.size());
      const double error = std::abs(found - exact) / (exact * roundoff<NumberT>() * 1.01 + 1e-3);
      if (!(error <= most)) most = std::isnan(error) ? 1e30 : error;
    }
    return most;
  }

  double head_error(std::int32_t row, std::int32_t head, std::int32_t sequence, std::int32_t from,
                    const std::vector<std::int32_t>& slots, const NumberT* got) const {
    std::vector<double> weights(slots.size()), sum(at(s.dim)), magnitude(at(s.dim)), query(at(s.dim));
    for (std::int32_t d = 0; d < s.dim; ++d)
      query[at(d)] = static_cast<double>(static_cast<float>(queries[at(row * stride + head * s.dim + d)]));
    double highest = -1e300, total = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const NumberT* const key = kv.key(layer, sequence, slots[i]) + from;
      double score = 0;
      for (std::int32_t d = 0; d < s.dim; ++d)
        score += query[at(d)] * static_cast<double>(static_cast<float>(key[d]));
      weights[i] = score * static_cast<double>(scale());
      highest = std::max(highest, weights[i]);
    }
    for (double& w : weights)
      total += w = std::exp(w - highest);
    if (s.sinks) total += std::exp(static_cast<double>(sink_of(head)) - highest);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (weights[i] < 1e-14) continue;
      const NumberT* const value = kv.value(layer, sequence, slots[i]) + from;
      for (std::int32_t d = 0; d < s.dim; ++d) {
        const double v = static_cast<double>(static_cast<float>(value[d])) * weights[i] / total;
        sum[at(d)] += v, magnitude[at(d)] += std::abs(v);
      }
    }
    double most = 0;
    for (std::int32_t d = 0; d < s.dim; ++d) {
      const double allowed =
          roundoff<NumberT>() * (magnitude[at(d)] + std::abs(sum[at(d)])) * 1.01 + 2e-5 * magnitude[at(d)] + 1e-7;
      const double error = std::abs(static_cast<double>(static_cast<float>(got[d])) - sum[at(d)]) / allowed;
      if (!(error <= most)) most = std::isnan(error) ? 1e30 : error;
    }
    return most;
  }

  setting s;
  forward_batch batch;
  std::vector<std::vector<node_id>> nodes;  // of each part, row -> node
  std::vector<std::uint32_t> mask;
  std::vector<batch_sequence> sequences;
  std::vector<std::int32_t> sequence_of, pages;
  std::vector<NumberT> cache, queries;
  gpu::kv_view<NumberT> kv;  // on the host
  std::int32_t max_context = 0, stride = 0;
};

// A tuning under which tiles of so many rows (192: by warpgroups), so many splits where there is work for them, and so
// many stages are chosen.
gpu::attention_tuning chosen(std::int32_t tile_rows, std::int32_t splits, std::int32_t stages) {
  gpu::attention_tuning tuning;
  tuning.multiprocessors = 1 << 20;
  tuning.max_splits = splits;
  tuning.start_cost = tuning.group_start_cost = tuning.merge_cost = 0;
  tuning.merge_bytes = 1 << 30;
  tuning.small_tile_cost = tile_rows == 64 ? 1 : 1000;
  tuning.large_tile_cost = tile_rows == 128 ? 1 : 1000;
  tuning.group_tile_cost = tile_rows == 192 ? 1 : 1000;
  tuning.resident_blocks = 1;
  tuning.shared_bytes = stages == 1 ? 0 : 228 * 1024;
  tuning.warpgroups = tile_rows == 192;
  return tuning;
}

template <class NumberT>
void check(const setting& s, const gpu::attention_tuning& tuning, std::uint32_t seed = 1) {
  const problem<NumberT> p(s, seed);
  const double worst = p.worst(p.run(tuning));
  INFO("prefix " << s.parts[0].prefix << ", nodes " << s.parts[0].nodes << ", group " << s.group << ", dim " << s.dim
                 << ", page " << s.page_size << ", splits " << tuning.max_splits << ", order "
                 << static_cast<int>(s.order));
  CHECK(worst <= 1.0);
}

}  // namespace

TEST_CASE("Attention on tensor cores is that of the formula") {
  const std::int32_t prefix = GENERATE(0, 1, 63, 64, 65, 300);
  const std::int32_t nodes = GENERATE(1, 17, 64);
  for (const std::int32_t dim : {64, 128}) {
    for (const std::int32_t group : {1, 4, 8}) {
      setting s;
      s.parts = {{1, prefix, nodes}};
      s.group = group, s.dim = dim, s.kv_heads = group == 1 ? 2 : 1;
      s.page_size = group == 4 ? 16 : 0;
      check<__half>(s, chosen(64, 1, 2));
      check<__nv_bfloat16>(s, chosen(128, 3, 1));
      s.fill = filling::counting;
      check<__half>(s, chosen(128, 1, 1));
      check<__half>(s, chosen(64, 4, 1));
      check<__half>(s, chosen(192, nodes == 17 ? 3 : 1, 2));
      s.fill = filling::peaked;
      check<__nv_bfloat16>(s, chosen(192, nodes == 64 ? 2 : 1, 2));
    }
  }
}

TEST_CASE("Attention by position is that of the formula, too") {
  setting s;
  s.batch_invariant = true;
  s.group = GENERATE(1, 3, 18);
  s.page_size = s.group == 3 ? 16 : 0;
  const std::int32_t prefix = GENERATE(0, 63, 600);
  for (const std::int32_t path_context : {0, 2000}) {
    auto small = chosen(64, 1, 2), large = chosen(128, 1, 1), groups = chosen(192, 1, 2);
    small.path_context = large.path_context = groups.path_context = path_context;
    for (const filling fill : {filling::peaked, filling::counting}) {
      s.fill = fill;
      s.parts = {{2, prefix, 30}, {0, 0, 20}, {1, 130, 5}};
      s.dim = 64, s.stride_beyond = 64;
      check<__half>(s, small);
      check<__nv_bfloat16>(s, large);
      if (fill == filling::peaked) check<__nv_bfloat16>(s, groups);
      s.parts = {{0, prefix, 7}};
      s.dim = 128, s.stride_beyond = 0;
      check<__half>(s, small);
      if (fill == filling::counting) check<__half>(s, groups);
      s.dim = 40;
      check<float>(s, small);
    }
  }
}

TEST_CASE("Attention sees every slot of a long prefix and of large trees, in every order") {
  const auto order =
      GENERATE(node_order::insertion, node_order::breadth_first, node_order::depth_first, node_order::heavy_path);
  setting s;
  s.kv_heads = 1, s.order = order, s.fill = filling::counting;
  s.parts = {{2, 2048, 300}};
  check<__half>(s, chosen(64, 1, 2));
  check<__half>(s, chosen(128, 7, 1));
  check<__half>(s, chosen(192, 2, 2));
  s.parts = {{0, 65, 1024}};
  s.lean = 0;
  check<__half>(s, chosen(128, 1, 2));
  check<__half>(s, chosen(192, 1, 2));
  s.fill = filling::peaked, s.page_size = 48;
  check<__nv_bfloat16>(s, chosen(64, 32, 1));
}

TEST_CASE("The order of nodes is no part of the result") {
  setting s;
  s.parts = {{0, 70, 300}};
  s.group = 2, s.kv_heads = 1, s.fill = filling::counting, s.padding = 0;
  s.order = node_order::insertion;
  // Counts are exact, and so is their sum in any order.
  const problem<__half> first(s, 5);
  const auto expected = first.run(chosen(64, 1, 2));
  for (const node_order order : {node_order::breadth_first, node_order::depth_first, node_order::heavy_path}) {
    s.order = order;
    const problem<__half> p(s, 5);
    const auto got = p.run(chosen(64, 1, 2));
    std::vector<std::int32_t> row_of(at(p.n_rows()));
    for (std::int32_t row = 0; row < p.n_rows(); ++row)
      row_of[at(first.node_of(row))] = row;
    int different = 0;
    for (std::int32_t row = 0; row < p.n_rows(); ++row) {
      const auto* const there = expected.data() + at(row_of[at(p.node_of(row))] * p.width());
      different += std::memcmp(got.data() + at(row * p.width()), there, at(p.width()) * sizeof(__half)) != 0 ? 1 : 0;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("Leaving out what a tile does not see changes no bit") {
  setting s;
  s.parts = {{0, 100, 700}};
  s.kv_heads = 1, s.padding = 0, s.lean = 0;
  const std::int32_t rows = GENERATE(64, 128, 192);
  problem<__half> p(s, 3);
  const auto expected = p.run(chosen(rows, 1, 2));
  REQUIRE(p.worst(expected) <= 1.0);
  // Then the last row of each tile sees everything, and so nothing is left out for its tile; the warps of other rows
  // still leave out what these do not see. Then four rows, a tile's last among them.
  const std::int32_t every = rows / GENERATE(1, 4);
  const batch_sequence of = p.sequences[0];
  const auto is_full = [&](std::int32_t row) { return row % every == every - 1; };
  for (std::int32_t row = 0; row < p.n_rows(); ++row) {
    if (is_full(row))
      mask_row{p.mask.data() + of.mask_begin + row * of.mask_words, of.mask_words}.include_first(p.n_rows());
  }
  const auto got = p.run(chosen(rows, 1, 2));
  CHECK(p.worst(got) <= 1.0);
  int different = 0;
  for (std::int32_t row = 0; row < p.n_rows(); ++row) {
    if (!is_full(row))
      different +=
          std::memcmp(got.data() + at(row * p.width()), expected.data() + at(row * p.width()), at(p.width()) * 2) != 0;
  }
  CHECK(different == 0);
}

TEST_CASE("Attention of ragged sequences in either cache") {
  setting s;
  s.page_size = GENERATE(0, 1, 100);
  s.parts = {{2, 130, 90}, {0, 0, 20}, {1, 64, 5}};
  s.padding = s.page_size == 0 ? 0 : 13;
  s.group = GENERATE(1, 3, 7);
  s.extra_context = 500;
  s.stride_beyond = 64;
  for (const filling fill : {filling::peaked, filling::counting}) {
    s.fill = fill;
    check<__half>(s, chosen(64, 1, 2));
    check<__nv_bfloat16>(s, chosen(128, 5, 2));
    check<__nv_bfloat16>(s, chosen(192, 5, 2));
    if (s.group == 3) check<float>(s, chosen(64, 4, 2));
  }
  check<__half>(s, gpu::attention_tuning_of_device());
}

TEST_CASE("Other number types and head dimensions run without tensor cores") {
  setting s;
  s.parts = {{1, GENERATE(0, 1, 33, 100), 17}, {0, 31, 40}};
  s.group = GENERATE(1, 4), s.page_size = s.group == 1 ? 16 : 0;
  for (const std::int32_t dim : {1, 64, 80, 256}) {
    if (dim == 256 && (s.group == 4 || s.parts[0].prefix > 33)) continue;
    s.dim = dim;
    s.fill = filling::peaked;
    check<float>(s, chosen(64, 1, 2));
    check<float>(s, chosen(64, 6, 2));
    if (dim == 64) continue;
    check<__half>(s, chosen(64, 1, 2));
    check<__nv_bfloat16>(s, chosen(64, 3, 2));
    s.fill = filling::counting;
    check<__half>(s, chosen(64, 1, 2));
  }
}

TEST_CASE("A sink takes its share of a head's weights, in every kernel") {
  setting s;
  s.sinks = true;
  s.parts = {{1, 70, 17}, {0, 0, 40}};
  s.group = 5, s.kv_heads = 1;
  for (const bool by_position : {false, true}) {
    s.batch_invariant = by_position;
    for (const std::int32_t splits : {1, 3}) {
      s.dim = 64;
      check<__half>(s, chosen(64, splits, 2));
      check<__nv_bfloat16>(s, chosen(128, splits, 1));
      check<__nv_bfloat16>(s, chosen(192, splits, 2));
      s.dim = 40;
      check<float>(s, chosen(64, splits, 2));
    }
  }
}

TEST_CASE("Each row may have a window of its own") {
  setting s;
  s.windows = true;
  s.parts = {{1, 70, 17}, {0, 0, 40}};
  s.group = 2, s.kv_heads = 2, s.dim = 64;
  for (const bool by_position : {false, true}) {
    s.batch_invariant = by_position;
    for (const std::int32_t splits : {1, 3}) {
      check<__nv_bfloat16>(s, chosen(128, splits, 1));
      check<float>(s, chosen(64, splits, 2));
    }
  }
}

TEST_CASE("Masks may have columns of rows that are in the cache already") {
  setting s;
  s.parts = {{0, 33, 300}};
  s.rows_before = GENERATE(1, 70, 290);
  s.group = 4;
  for (const filling fill : {filling::peaked, filling::counting}) {
    s.fill = fill;
    check<__half>(s, chosen(64, 1, 2));
    check<__half>(s, chosen(128, 3, 1));
    check<__half>(s, chosen(192, 3, 2));
    check<float>(s, chosen(64, 2, 2));
  }
}

TEST_CASE("Padding may lie among the rows of a sequence, with any mask") {
  setting s;
  s.parts = {{0, 70, 30}};
  s.group = 4, s.extra_context = 40;
  s.batch_invariant = GENERATE(false, true);
  problem<__half> p(s, 6);
  const batch_sequence of = p.sequences[0];
  for (const std::int32_t row : {0, 7, 30}) {
    p.sequence_of[at(row)] = -1;
    mask_row{p.mask.data() + of.mask_begin + row * of.mask_words, of.mask_words}.include_first(32 * of.mask_words);
  }
  auto tuning = chosen(GENERATE(64, 192), GENERATE(1, 3), 2);
  tuning.path_context = GENERATE(0, 2000);
  CHECK(p.worst(p.run(tuning)) <= 1.0);
}

TEST_CASE("Attention gives the same bits every time") {
  setting s;
  s.parts = {{0, 400, 100}};
  s.group = 4;
  const problem<__nv_bfloat16> p(s, 8);
  const auto tuning = chosen(GENERATE(64, 192), GENERATE(1, 6), 2);
  const auto first = p.run(tuning), second = p.run(tuning);
  CHECK(std::memcmp(first.data(), second.data(), first.size() * 2) == 0);
}

TEST_CASE("Rows are computed alike in tiles of either size") {
  setting s;
  s.parts = {{0, 100, 300}};
  s.group = 3, s.dim = GENERATE(64, 128), s.lean = 0;
  const problem<__half> p(s, 12);
  const auto small = p.run(chosen(64, 1, 2)), large = p.run(chosen(128, 1, 1));
  CHECK(std::memcmp(small.data(), large.data(), small.size() * 2) == 0);
}

TEST_CASE("What is not a number shows in the rows that see it") {
  setting s;
  s.parts = {{0, 70, 60}};
  s.padding = 0;
  problem<__half> p(s, 9);
  const auto splits = GENERATE(1, 3), rows = GENERATE(64, 192);
  const std::int32_t slot = 70 + 20;
  const bool in_value = GENERATE(false, true);
  (in_value ? p.kv.value(p.layer, 0, slot) : p.kv.key(p.layer, 0, slot))[p.s.dim + 3] =
      static_cast<__half>(std::numeric_limits<float>::quiet_NaN());
  const auto got = p.run(chosen(rows, splits, 2));
  int wrong = 0, hit = 0;
  for (std::int32_t row = 0; row < p.n_rows(); ++row) {
    const auto slots = p.seen_by(row);
    const bool sees = std::find(slots.begin(), slots.end(), slot) != slots.end();
    hit += sees ? 1 : 0;
    for (std::int32_t d = 0; d < 2 * p.s.dim; ++d) {
      // The second head, all of it for a key. Weights of zero do not hide a value from rows of the same tile.
      const bool found = std::isnan(static_cast<float>(got[at(row * p.width() + d)]));
      const bool expected = in_value ? d == p.s.dim + 3 : d >= p.s.dim;
      wrong += (sees && found != expected) || (!sees && found && !(in_value && expected)) ? 1 : 0;
    }
  }
  CHECK(hit > 0);
  CHECK(hit < p.n_rows());
  CHECK(wrong == 0);
}

TEST_CASE("A captured attention follows lengths in the memory of the device") {
  setting s;
  s.parts = {{0, 500, 30}};
  s.group = 4, s.fill = filling::counting, s.batch_invariant = GENERATE(false, true);
  problem<__half> p(s, 4);
  const problem<__half>::on_device there(p);
  auto tuning = chosen(GENERATE(64, 192), 5, 2);
  tuning.path_context = GENERATE(0, 2000);
  const gpu::tree_attention<__half> attention(p.shape(), tuning);
  cudaStream_t stream;
  gpu::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  gpu::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  attention.run(there.query.data(), there.kv, p.layer, there.view, {p.scale()}, there.out.data(), stream);
  gpu::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t round;
  gpu::require(cudaGraphInstantiate(&round, graph, 0), "cudaGraphInstantiate");
  for (const std::int32_t prefix : {500, 0, 1, 64, 200, 470}) {
    // The tree moves down with its prefix: what is there then are tokens of the old prefix, with other counts.
    p.sequences[0].prefix = prefix;
    there.sequence.upload(p.sequences, stream);
    gpu::require(cudaGraphLaunch(round, stream), "cudaGraphLaunch");
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const auto got = to_host(there.out);
    int wrong = 0;
    for (std::int32_t row = 0; row < p.n_rows() - s.padding; ++row) {
      const auto slots = p.seen_by(row);
      std::vector<int> counts(at(s.dim));
      for (const std::int32_t slot : slots)
        ++counts[at((slot < 500 ? slot : 500 + p.nodes[0][at(slot - 500)]) % s.dim)];
      for (std::int32_t d = 0; d < s.dim; ++d) {
        const float exact = static_cast<float>(counts[at(d)]) / static_cast<float>(slots.size());
        wrong += std::abs(static_cast<float>(got[at(row * p.width() + d)]) - exact) <= exact * 6e-4F ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
  gpu::require(cudaGraphExecDestroy(round), "cudaGraphExecDestroy");
  gpu::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  gpu::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("Attention is planned by shapes") {
  const gpu::attention_shape shape{32, 8, 128, 1025, 20000};
  const auto h100 = gpu::attention_tuning_for(90, 132);
  const auto plan = [&](std::int32_t rows, std::int32_t context) {
    return gpu::detail::plan_attention(shape, h100, rows, 1, context);
  };
  // One row fills the device by splits; many rows do so by tiles, large ones. Warpgroups take over where there is work
  // for whole tiles.
  CHECK(plan(1, 17000).n_splits >= 16);
  CHECK(plan(1, 17000).row_groups == 1);
  CHECK(plan(65, 17000).n_splits >= 3);
  CHECK(plan(65, 17000).row_groups == 3);
  CHECK(plan(1025, 17000).n_splits <= 3);
  CHECK(plan(1025, 17000).row_groups == 3);
  CHECK(plan(1025, 600).row_groups == 2);
  CHECK(plan(5, 40).n_splits == 1);
  gpu::attention_tuning without = h100;
  without.warpgroups = false;
  for (const std::int32_t rows : {1, 65, 1025})
    CHECK(gpu::detail::plan_attention(shape, without, rows, 1, 17000).row_groups == (rows == 1 ? 1 : 2));
  for (const std::int32_t rows : {1, 16, 17, 65, 257, 1025}) {
    const auto p = plan(rows, 17000);
    CHECK(p.n_tiles * 64 * p.row_groups >= rows * 4);
    // Parts have room; what has none is split less.
    CHECK(gpu::detail::rows_of_parts(shape, h100) >= static_cast<std::size_t>(p.n_splits > 1 ? p.n_splits * rows : 0));
  }
  // By position there are always 8 splits where the context has as many blocks; short contexts need no tiles.
  gpu::attention_shape invariant = shape;
  invariant.batch_invariant = true;
  for (const std::int32_t rows : {1, 65, 1025}) {
    for (const std::int32_t context : {100, 1024, 17000}) {
      const auto p = gpu::detail::plan_attention(invariant, h100, rows, 1, context);
      CHECK(p.n_splits == std::min(8, (context + 63) / 64));
      CHECK((p.n_tiles == 0) == (context == 100 ? rows < 1025 : context == 1024 && rows == 1));
    }
  }
  CHECK(gpu::detail::rows_of_parts(invariant, h100) == 8 * 1025);
  for (const std::int32_t rows : {64, 128, 192}) {
    for (const std::int32_t splits : {1, 5}) {
      const auto p = gpu::detail::plan_attention(shape, chosen(rows, splits, 2), 40, 1, 3000);
      CHECK(p.row_groups == rows / 64);
      CHECK(p.n_splits == splits);
    }
  }
}

TEST_CASE("Attention has warpgroups where they are compiled, of numbers and dimensions that have them") {
  const gpu::attention_shape shape{4, 2, 128, 8, 300};
  const bool compiled = gpu::tree_attention<__half>(shape, chosen(192, 1, 2)).has_warpgroups();
  if (gpu::ptx::has_warpgroup_products) CHECK(compiled);
  CHECK(gpu::tree_attention<__nv_bfloat16>(shape, chosen(192, 1, 2)).has_warpgroups() == compiled);
  CHECK_FALSE(gpu::tree_attention<__half>(shape, chosen(64, 1, 2)).has_warpgroups());
  CHECK(gpu::tree_attention<__half>(shape).has_warpgroups() == compiled);
  CHECK_FALSE(gpu::tree_attention<float>(shape, chosen(192, 1, 2)).has_warpgroups());
  CHECK_FALSE(gpu::tree_attention<__half>({4, 2, 80, 8, 300}, chosen(192, 1, 2)).has_warpgroups());
}

TEST_CASE("Attention refuses shapes that no kernel takes") {
  using attention = gpu::tree_attention<float>;
  CHECK(says(message_of<option_error>([] { attention({6, 4, 64, 1, 1}); }), "multiple of n_kv_heads"));
  CHECK(says(message_of<option_error>([] { attention({4, 2, 257, 1, 1}); }), "head_dim"));
  CHECK(says(message_of<option_error>([] { attention({4, 0, 64, 1, 1}); }), "n_kv_heads"));
  CHECK(says(message_of<option_error>([] { attention({4, 2, 64, 0, 1}); }), "max_rows"));
  CHECK(says(message_of<option_error>([] { attention({4, 2, 64, 1, 0}); }), "max_context"));
}
