// SPDX-License-Identifier: BSL-1.0
// With shape.batch_invariant a row's bits depend on its query and on what it sees, in order, and on nothing else.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/testing/random_tree.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

using ids = std::vector<std::int32_t>;

// A row: a token, and the columns of a pass that it sees besides the prefix.
struct seeing {
  std::int32_t token;
  ids columns;
};

// A pass after a prefix: tokens in slots, and rows. A token's query, key and value belong to it wherever it lies.
struct pass {
  ids prefix, columns;
  std::vector<seeing> rows;
};

struct model {
  std::int32_t group = 2, kv_heads = 2, dim = 64;

  std::int32_t width() const { return group * kv_heads * dim; }
};

// How a pass is computed; no bit may depend on it.
struct manner {
  std::int32_t tile_rows = 64;  // 0: rows read all their keys themselves
  std::int32_t page_size = 0;
  std::int32_t padding = 0;
  std::int32_t extra_context = 0;
  std::int32_t shared_bytes = 228 * 1024;
  bool warpgroups = false;

  gpu::attention_tuning tuning() const {
    gpu::attention_tuning of;
    of.multiprocessors = 132;
    of.shared_bytes = shared_bytes;
    of.small_tile_cost = tile_rows == 64 ? 1 : 1000;
    of.large_tile_cost = tile_rows == 64 ? 1000 : 1;
    of.warpgroups = warpgroups;
    of.path_context = tile_rows == 0 ? 1 << 20 : 0;
    of.path_bytes = std::int64_t{1} << 40;
    return of;
  }
};

template <class NumberT>
void fill(NumberT* to, std::int32_t n, std::int32_t token, unsigned kind, float scale) {
  std::minstd_rand random(7919U * static_cast<unsigned>(token) + kind + 1);
  std::normal_distribution<float> normal;
  for (std::int32_t i = 0; i < n; ++i)
    to[i] = static_cast<NumberT>(scale * normal(random));
}

// Outputs of the rows, [width] each.
template <class NumberT>
std::vector<std::vector<NumberT>> run(const model& m, const pass& p, const manner& how) {
  const auto prefix = static_cast<std::int32_t>(p.prefix.size()), columns = static_cast<std::int32_t>(p.columns.size()),
             n_rows = static_cast<std::int32_t>(p.rows.size()), all_rows = n_rows + how.padding;
  const std::int32_t context = prefix + columns + how.extra_context, words = mask_words(columns);
  gpu::kv_view<NumberT> kv;
  kv.page_size = how.page_size > 0 ? how.page_size : context;
  kv.max_pages = (context + kv.page_size - 1) / kv.page_size;
  kv.row_size = m.kv_heads * m.dim;
  kv.n_layers = 1;
  kv.layer_stride = std::int64_t{2} * kv.max_pages * kv.page_size * kv.row_size;
  ids pages(at(kv.max_pages));
  std::iota(pages.begin(), pages.end(), 0);
  if (how.page_size > 0) std::shuffle(pages.begin(), pages.end(), std::mt19937(4));
  std::vector<NumberT> cache(at(kv.layer_stride), static_cast<NumberT>(NAN));
  kv.data = cache.data(), kv.pages = pages.data();
  const auto keep = [&](std::int32_t token, std::int32_t slot) {
    fill(kv.key(0, 0, slot), kv.row_size, token, 0, 1.0F);
    fill(kv.value(0, 0, slot), kv.row_size, token, 1, 1.0F);
  };
  for (std::int32_t slot = 0; slot < prefix; ++slot)
    keep(p.prefix[at(slot)], slot);
  for (std::int32_t column = 0; column < columns; ++column)
    keep(p.columns[at(column)], prefix + column);
  std::vector<NumberT> queries(at(all_rows * m.width()), static_cast<NumberT>(NAN));
  std::vector<std::uint32_t> mask(at(n_rows * words));
  ids sequence_of(at(all_rows), -1);
  for (std::int32_t row = 0; row < n_rows; ++row) {
    fill(queries.data() + at(row * m.width()), m.width(), p.rows[at(row)].token, 2, 2.0F);
    for (const std::int32_t column : p.rows[at(row)].columns)
      mask[at(row * words + column / 32)] |= 1U << (column % 32);
    sequence_of[at(row)] = 0;
  }
  const std::vector<batch_sequence> sequences{{0, 0, n_rows, prefix, 0, words}};

  const auto on_device = to_device(cache), asked = to_device(queries),
             out = to_device(std::vector<NumberT>(at(all_rows * m.width()), static_cast<NumberT>(NAN)));
  const auto belongs = to_device(sequence_of), page = to_device(pages);
  const auto bits = to_device(mask);
  const auto sequence = to_device(sequences);
  kv.data = on_device.data();
  kv.pages = how.page_size > 0 ? page.data() : nullptr;
  gpu::forward_batch_view batch;
  batch.n_rows = all_rows;
  batch.n_sequences = 1;
  batch.max_context = context;
  batch.sequence_of = belongs.data();
  batch.sequences = sequence.data();
  batch.mask = bits.data();
  gpu::attention_shape shape{m.group * m.kv_heads, m.kv_heads, m.dim, all_rows, context};
  shape.batch_invariant = true;
  const gpu::tree_attention<NumberT> attention(shape, how.tuning());
  attention.run(asked.data(), kv, 0, batch, {1.0F / std::sqrt(static_cast<float>(m.dim))}, out.data(), nullptr);
  const auto got = to_host(out);
  std::vector<std::vector<NumberT>> rows;
  for (std::int32_t row = 0; row < n_rows; ++row)
    rows.emplace_back(got.begin() + row * m.width(), got.begin() + (row + 1) * m.width());
  return rows;
}

// Tokens 0 to text - 1, and then a tree: node u is token text + u.
struct drafted {
  std::int32_t text;
  tree<> nodes;

  ids begin(std::int32_t n) const {
    ids of(at(n));
    std::iota(of.begin(), of.end(), 0);
    return of;
  }

  // Tokens on the way to node u, itself included.
  ids path(node_id u) const {
    ids up;
    for (; u != no_node; u = nodes.view().parent[u])
      up.push_back(text + u);
    std::reverse(up.begin(), up.end());
    return up;
  }

  // Node u as plain decoding meets it: all that it sees is in the prefix.
  pass alone(node_id u) const {
    pass p{begin(text), {text + u}, {{text + u, {0}}}};
    const ids way = path(u);
    p.prefix.insert(p.prefix.end(), way.begin(), way.end() - 1);
    return p;
  }

  // The subtree of node v after the text and the way to v, `drawn_back` tokens of which are columns, not prefix.
  pass subtree(node_id v, node_order by, std::int32_t drawn_back = 0) const {
    tree_order order(nodes.size());
    order.compute(nodes.view(), by);
    pass p{begin(text), {}, {}};
    const ids way = path(v);
    p.prefix.insert(p.prefix.end(), way.begin(), way.end() - 1);
    p.columns.assign(p.prefix.end() - drawn_back, p.prefix.end());
    p.prefix.resize(p.prefix.size() - at(drawn_back));
    std::vector<node_id> rows;
    for (const node_id u : order.nodes()) {
      const ids own = path(u);
      if (std::find(own.begin(), own.end(), text + v) != own.end()) rows.push_back(u);
    }
    for (const node_id u : rows)
      p.columns.push_back(text + u);
    for (const node_id u : rows) {
      const ids own = path(u);
      seeing row{text + u, {}};
      for (std::int32_t column = 0; column < static_cast<std::int32_t>(p.columns.size()); ++column) {
        const std::int32_t token = p.columns[at(column)];
        if (column < drawn_back || std::find(own.begin(), own.end(), token) != own.end()) row.columns.push_back(column);
      }
      p.rows.push_back(std::move(row));
    }
    return p;
  }
};

// Tokens first to end - 1 of a text, as one pass.
pass chunk(std::int32_t first, std::int32_t end) {
  pass p;
  p.prefix.resize(at(first));
  std::iota(p.prefix.begin(), p.prefix.end(), 0);
  p.columns.resize(at(end - first));
  std::iota(p.columns.begin(), p.columns.end(), first);
  for (std::int32_t i = first; i < end; ++i) {
    seeing row{i, ids(at(i - first + 1))};
    std::iota(row.columns.begin(), row.columns.end(), 0);
    p.rows.push_back(std::move(row));
  }
  return p;
}

template <class NumberT>
bool same(const std::vector<NumberT>& a, const std::vector<NumberT>& b) {
  const bool finite = std::all_of(a.begin(), a.end(), [](NumberT x) { return std::isfinite(static_cast<float>(x)); });
  return finite && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(NumberT)) == 0;
}

// How many rows of a pass are not what they are alone. alone[token].
template <class NumberT>
int differing(const model& m, const pass& p, const manner& how, const std::vector<std::vector<NumberT>>& alone) {
  const auto rows = run<NumberT>(m, p, how);
  int n = 0;
  for (std::size_t i = 0; i < rows.size(); ++i)
    n += same(rows[i], alone[at(p.rows[i].token)]) ? 0 : 1;
  return n;
}

const std::vector<manner> warp_manners{{.tile_rows = 64},
                                       {.tile_rows = 0, .padding = 3},
                                       {.tile_rows = 128, .page_size = 48, .extra_context = 700},
                                       {.tile_rows = 64, .padding = 5, .extra_context = 100, .shared_bytes = 0},
                                       {.tile_rows = 0, .page_size = 7, .extra_context = 3000, .shared_bytes = 0}};

// The sums of wgmma are other bits than those of mma.sync: a device has one of them for all rows.
const std::vector<manner> group_manners{
    {.warpgroups = true},
    {.tile_rows = 0, .padding = 3, .warpgroups = true},
    {.page_size = 48, .extra_context = 700, .warpgroups = true},
    {.padding = 5, .extra_context = 100, .shared_bytes = 0, .warpgroups = true},
    {.tile_rows = 0, .page_size = 7, .extra_context = 3000, .shared_bytes = 0, .warpgroups = true}};

template <class NumberT>
void check_trees(const model& m, std::int32_t text, std::int32_t nodes, double lean,
                 const std::vector<manner>& manners) {
  const drafted d{text, testing::random_tree(nodes, 3, 5000, lean)};
  INFO("group " << m.group << ", dim " << m.dim << ", text " << text << ", lean " << lean);
  std::vector<std::vector<NumberT>> alone(at(text + nodes));
  for (node_id u = 0; u < nodes; ++u)
    alone[at(text + u)] = run<NumberT>(m, d.alone(u), manners[0])[0];
  node_id inner = 0;
  while (inner + 1 < nodes && d.path(inner).size() < 3)
    ++inner;
  std::size_t i = 0;
  for (const node_order order :
       {node_order::insertion, node_order::breadth_first, node_order::depth_first, node_order::heavy_path}) {
    CHECK(differing(m, d.subtree(0, order), manners[i++ % manners.size()], alone) == 0);
    CHECK(differing(m, d.subtree(inner, order), manners[i++ % manners.size()], alone) == 0);
    CHECK(differing(m, d.subtree(0, order, std::min(text, 70)), manners[i++ % manners.size()], alone) == 0);
  }
}

}  // namespace

TEST_CASE("A node's row is the same alone, in a tree in every order, and after its ancestors were committed") {
  const std::int32_t text = GENERATE(1, 63, 64, 500);
  for (const double lean : {0.0, 0.9})
    check_trees<__nv_bfloat16>({.group = 4, .kv_heads = 1}, text, 40, lean, warp_manners);
  check_trees<__half>({.group = 3, .kv_heads = 2, .dim = 128}, text, 12, 0.5, warp_manners);
  check_trees<__half>({.group = 18, .kv_heads = 1}, text, 9, 0.5, warp_manners);
}

TEST_CASE("So it is by warpgroups") {
  const std::int32_t text = GENERATE(1, 63, 64, 500);
  for (const double lean : {0.0, 0.9})
    check_trees<__nv_bfloat16>({.group = 4, .kv_heads = 1}, text, 40, lean, group_manners);
  check_trees<__half>({.group = 3, .kv_heads = 2, .dim = 128}, text, 12, 0.5, group_manners);
  check_trees<__half>({.group = 70, .kv_heads = 1}, text, 9, 0.5, group_manners);
}

TEST_CASE("So it is without tensor cores") {
  const std::int32_t text = GENERATE(1, 64, 700);
  check_trees<float>({.group = 2, .kv_heads = 1, .dim = 16}, text, 40, 0.5, warp_manners);
  check_trees<__half>({.group = 1, .kv_heads = 1, .dim = 80}, text, 20, 0.9, warp_manners);
}

TEST_CASE("A row is the same in a prompt cut anyhow") {
  const model m{.group = 2, .kv_heads = 1};
  constexpr std::int32_t n = 310;
  const auto& manners = GENERATE(false, true) ? group_manners : warp_manners;
  std::vector<std::vector<__nv_bfloat16>> alone(n);
  for (std::int32_t i = 0; i < n; ++i)
    alone[at(i)] = run<__nv_bfloat16>(m, chunk(i, i + 1), manners[1])[0];
  for (const manner& how : manners) {
    CHECK(differing(m, chunk(0, n), how, alone) == 0);
    for (const std::int32_t cut : {2, 64, 100, 129}) {
      for (std::int32_t first = 0; first < n; first += cut)
        CHECK(differing(m, chunk(first, std::min(first + cut, n)), how, alone) == 0);
    }
  }
}

TEST_CASE("A chain as long as a tree may be is the same as a text") {
  const model m{.group = 8, .kv_heads = 1};
  const pass whole = chunk(37, 37 + 600);
  const bool warpgroups = GENERATE(false, true);
  const auto rows = run<__half>(m, whole, {.tile_rows = 128, .warpgroups = warpgroups});
  for (const std::int32_t i : {0, 26, 27, 28, 300, 599}) {
    INFO(i);
    CHECK(same(run<__half>(m, chunk(37 + i, 38 + i), {.tile_rows = 64, .warpgroups = warpgroups})[0], rows[at(i)]));
  }
}
