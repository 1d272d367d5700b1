// SPDX-License-Identifier: BSL-1.0
// Measures tree attention over one layer with 32 heads of 128 and 8 key-value heads: by the order in which the nodes of
// the tree are rows; with rows that do not depend on their batch; and, where there are warpgroups, with each of the two
// instructions in every shape. attention_torch.py measures the same shapes.
#include <cuda_bf16.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "grown_tree.cuh"
#include "program.cuh"
#include "random_numbers.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using number = __nv_bfloat16;

enum class form { chosen, mma_sync, warpgroups };

struct way {
  node_order order;
  const char* name;
  bool batch_invariant = false;
  form by = form::chosen;
};

constexpr std::array<way, 8> ways{
    way{node_order::insertion, "insertion"},
    way{node_order::breadth_first, "breadth_first"},
    way{node_order::depth_first, "depth_first"},
    way{node_order::breadth_first, "breadth_first, batch_invariant", true},
    way{node_order::depth_first, "depth_first, batch_invariant", true},
    way{node_order::depth_first, "depth_first, mma.sync", false, form::mma_sync},
    way{node_order::depth_first, "depth_first, warpgroups", false, form::warpgroups},
    way{node_order::depth_first, "depth_first, batch_invariant, mma.sync", true, form::mma_sync}};

device::attention_tuning tuning_of(form by) {
  auto tuning = device::attention_tuning_of_device();
  if (by == form::mma_sync) tuning.warpgroups = false;
  if (by == form::warpgroups) tuning.small_tile_cost = tuning.large_tile_cost = 1 << 20;
  return tuning;
}

// The time in microseconds that is asked for, of one H100; none for other shapes.
std::optional<double> asked(std::int32_t prefix, std::int32_t n) {
  if (prefix == 2048) return n == 64 ? 15 : n == 256 ? 30 : n == 1024 ? 90 : std::optional<double>();
  if (prefix == 16384) return n == 64 ? 45 : n == 256 ? 150 : n == 1024 ? 550 : std::optional<double>();
  return {};
}

void measure_one(bench::bench_run& run, std::int32_t prefix, std::int32_t n) {
  const std::int32_t heads = run.size(32, 4), kv_heads = run.size(8, 2), size = run.size(128, 64);
  const std::int32_t context = prefix + n;
  const device::contiguous_kv<number> kv(1, kv_heads * size, 1, context);
  const device::device_array<number> queries(static_cast<std::size_t>(n * heads * size)), out(queries.size());
  bench::fill_random(kv.view().data, 2 * static_cast<std::size_t>(context * kv_heads * size), 1, 1, nullptr);
  bench::fill_random(queries.data(), queries.size(), 1, 2, nullptr);
  const bench::grown_tree tree(n - 1, run.size<std::size_t>(20000, 2000));
  // The text's last token is pending: the cache holds the others.
  const bench::device_text text(prefix + 1, context + 1);
  std::vector<std::unique_ptr<device::tree_attention<number>>> attentions;  // in the order of `ways`
  for (const way& w : ways) {
    const device::attention_shape shape{.n_heads = heads,
                                        .n_kv_heads = kv_heads,
                                        .head_dim = size,
                                        .max_rows = n,
                                        .max_context = context,
                                        .batch_invariant = w.batch_invariant};
    attentions.push_back(std::make_unique<device::tree_attention<number>>(shape, tuning_of(w.by)));
  }
  const auto is_there = [&](std::size_t i) {
    return ways[i].by == form::chosen || attentions.front()->has_warpgroups();
  };

  auto race = run.race();
  std::vector<device::tree_compiler> compilers;
  for (const way& w : ways)
    compilers.emplace_back(n - 1, w.order);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (!is_there(i)) continue;
    const auto batch = compilers[i].compile(device::text_batch::of(tree.writer(), text.view(), context), n, race.in());
    const auto* attention = attentions[i].get();
    race.add({.key = ways[i].name, .work = [&, batch, attention](cudaStream_t s) {
                attention->run(queries.data(), kv.view(), 0, batch, {0.088388F}, out.data(), s);
              }});
  }
  race.run();
  const double flops = 4.0 * n * heads * size * context;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (!is_there(i)) continue;
    const std::string name = ways[i].name;
    char rate[96];
    std::snprintf(rate, sizeof rate, "%.0f TFLOP/s of the full mask; %.2f of the time in breadth-first order",
                  flops / race.of(name).median() * 1e-6, race.of(name).median() / race.of("breadth_first").median());
    run.found.add(
        {.key = "attention." + std::to_string(prefix) + "." + std::to_string(n) + "." + name,
         .what = "tree attention, prefix " + std::to_string(prefix) + ", " + std::to_string(n) + " nodes, " + name,
         .measured = race.of(name),
         .reading = run.most.reading(4.0 * context * kv_heads * size),
         .limit = name == "depth_first" ? asked(prefix, n) : std::nullopt,
         .target = "asked for",
         .note = rate});
  }
}

void measure(bench::bench_run& run) {
  for (const std::int32_t prefix : {512, 2048, 16384}) {
    for (const std::int32_t n : {1, 16, 64, 256, 1024})
      measure_one(run, run.options.tiny ? prefix / 128 : prefix, run.options.tiny ? n / 16 + 1 : n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_attention", "tree attention by the order of rows", measure);
}
