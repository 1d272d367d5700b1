// SPDX-License-Identifier: BSL-1.0
// Measures tree attention over one layer with 32 heads of 128 and 8 key-value heads: by the order in which the nodes of
// the tree are rows; with rows that do not depend on their batch; and by warpgroups, if the program is compiled for
// sm_90a and runs on compute capability 9.0. attention_torch.py measures the same shapes.
#include <cuda_bf16.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
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

struct way {
  node_order order;
  const char* name;
  bool batch_invariant;
  bool warpgroups;
};

constexpr std::array<way, 8> ways{way{node_order::insertion, "insertion", false, false},
                                  way{node_order::breadth_first, "breadth_first", false, false},
                                  way{node_order::depth_first, "depth_first", false, false},
                                  way{node_order::breadth_first, "breadth_first, batch_invariant", true, false},
                                  way{node_order::depth_first, "depth_first, batch_invariant", true, false},
                                  way{node_order::breadth_first, "breadth_first, warpgroups", false, true},
                                  way{node_order::depth_first, "depth_first, warpgroups", false, true},
                                  way{node_order::depth_first, "depth_first, batch_invariant, warpgroups", true, true}};

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
  std::vector<std::unique_ptr<device::tree_attention<number>>> attentions;
  for (const bool warpgroups : {false, true}) {
    for (const bool batch_invariant : {false, true}) {
      auto tuning = device::attention_tuning_of_device();
      tuning.warpgroups = warpgroups;
      const device::attention_shape shape{.n_heads = heads,
                                          .n_kv_heads = kv_heads,
                                          .head_dim = size,
                                          .max_rows = n,
                                          .max_context = context,
                                          .batch_invariant = batch_invariant};
      attentions.push_back(std::make_unique<device::tree_attention<number>>(shape, tuning));
    }
  }
  const auto is_there = [&](const way& w) { return !w.warpgroups || attentions[2]->by_warpgroups(); };

  auto race = run.race();
  std::vector<device::tree_compiler> compilers;
  for (const way& w : ways)
    compilers.emplace_back(n - 1, w.order);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (!is_there(ways[i])) continue;
    const auto batch = compilers[i].compile(device::text_batch::of(tree.writer(), text.view(), context), n, race.in());
    const auto* attention = attentions[(ways[i].warpgroups ? 2U : 0U) + (ways[i].batch_invariant ? 1U : 0U)].get();
    race.add({.key = ways[i].name, .work = [&, batch, attention](cudaStream_t s) {
                attention->run(queries.data(), kv.view(), 0, batch, {0.088388F}, out.data(), s);
              }});
  }
  race.run();
  const double flops = 4.0 * n * heads * size * context;
  for (const way& w : ways) {
    if (!is_there(w)) continue;
    const std::string name = w.name;
    char rate[96];
    std::snprintf(rate, sizeof rate, "%.0f TFLOP/s of the full mask; %.2f of the time in breadth-first order",
                  flops / race.of(name).median() * 1e-6, race.of(name).median() / race.of("breadth_first").median());
    run.found.add(
        {.key = "attention." + std::to_string(prefix) + "." + std::to_string(n) + "." + name,
         .what = "tree attention, prefix " + std::to_string(prefix) + ", " + std::to_string(n) + " nodes, " + name,
         .measured = race.of(name),
         .reading = run.most.reading(4.0 * context * kv_heads * size),
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
