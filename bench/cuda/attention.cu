// SPDX-License-Identifier: BSL-1.0
// Measures tree attention over one layer with 32 heads of 128 and 8 key-value heads: by the order in which the nodes of
// the tree are rows; with rows that do not depend on their batch; and, where there are warpgroups, with each of the two
// instructions in every shape. attention_torch.py measures the same shapes. Measures also the kernel without tensor
// cores in the shapes of models that need it.
#include <cuda_bf16.h>

#include <algorithm>
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

// One layer over a text and a tree of shape.max_rows nodes: cached keys and values, and rows of queries.
template <class NumberT>
struct one_layer {
  device::attention_shape shape;
  device::contiguous_kv<NumberT> kv;
  device::device_array<NumberT> queries, out;
  bench::grown_tree tree;
  bench::device_text text;  // its last token is pending: the cache holds the others

  one_layer(const device::attention_shape& of, std::size_t vocab)
      : shape(of),
        kv(1, of.n_kv_heads * of.head_dim, 1, of.max_context),
        queries(static_cast<std::size_t>(of.max_rows * of.n_heads * of.head_dim)),
        out(queries.size()),
        tree(of.max_rows - 1, vocab),
        text(of.max_context - of.max_rows + 1, of.max_context + 1) {
    const std::size_t numbers = 2 * static_cast<std::size_t>(of.max_context * kv.row_size());
    bench::fill_random(kv.view().data, numbers, 1, 1, nullptr);
    bench::fill_random(queries.data(), queries.size(), 1, 2, nullptr);
  }

  device::forward_batch_view compiled(const device::tree_compiler& by, cudaStream_t s) const {
    return by.compile(device::text_batch::of(tree.writer(), text.view(), shape.max_context), shape.max_rows, s);
  }
};

void measure_one(bench::bench_run& run, std::int32_t prefix, std::int32_t n) {
  const std::int32_t heads = run.size(32, 4), kv_heads = run.size(8, 2), size = run.size(128, 64);
  const std::int32_t context = prefix + n;
  const one_layer<number> layer(
      {.n_heads = heads, .n_kv_heads = kv_heads, .head_dim = size, .max_rows = n, .max_context = context},
      run.size<std::size_t>(20000, 2000));
  std::vector<std::unique_ptr<device::tree_attention<number>>> attentions;  // in the order of `ways`
  for (const way& w : ways) {
    device::attention_shape shape = layer.shape;
    shape.batch_invariant = w.batch_invariant;
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
    const auto batch = layer.compiled(compilers[i], race.in());
    const auto* attention = attentions[i].get();
    race.add({.key = ways[i].name, .work = [&, batch, attention](cudaStream_t s) {
                attention->run(layer.queries.data(), layer.kv.view(), 0, batch, {0.088388F}, layer.out.data(), s);
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

// Attention that no tile computes, in the shape of a model whose layers need it.
struct plain_layer {
  const char* name;
  std::int32_t heads, kv_heads, size;
  std::int32_t window = 0;
  float cap = 0;
  bool sinks = false;
};

template <class NumberT>
void measure_plain(bench::bench_run& run, const plain_layer& of, std::int32_t prefix, std::int32_t n) {
  const std::int32_t window = run.options.tiny ? of.window / 64 : of.window, context = prefix + n;
  const one_layer<NumberT> layer(
      {.n_heads = of.heads, .n_kv_heads = of.kv_heads, .head_dim = of.size, .max_rows = n, .max_context = context},
      run.size<std::size_t>(20000, 2000));
  const device::tree_attention<NumberT> attention(layer.shape);
  const device::device_array<float> sinks(static_cast<std::size_t>(of.heads));
  bench::fill_random(sinks.data(), sinks.size(), 1, 3, nullptr);
  const device::attention_scores scores{
      .scale = 0.088388F, .cap = of.cap, .window = window, .sinks = of.sinks ? sinks.data() : nullptr};
  auto race = run.race();
  const device::tree_compiler compiler(n - 1, node_order::depth_first);
  const auto batch = layer.compiled(compiler, race.in());
  race.add({.key = of.name, .work = [&](cudaStream_t s) {
              attention.run(layer.queries.data(), layer.kv.view(), 0, batch, scores, layer.out.data(), s);
            }});
  race.run();
  const double seen = window > 0 ? std::min(context, window + n) : context;
  run.found.add({.key = "attention.plain." + std::string(of.name) + "." + std::to_string(n),
                 .what = "attention without tensor cores, prefix " + std::to_string(prefix) + ", " + std::to_string(n) +
                         " nodes, " + of.name,
                 .measured = race.of(of.name),
                 .reading = run.most.reading(2.0 * sizeof(NumberT) * seen * of.kv_heads * of.size)});
}

void measure(bench::bench_run& run) {
  for (const std::int32_t prefix : {512, 2048, 16384}) {
    for (const std::int32_t n : {1, 16, 64, 256, 1024})
      measure_one(run, run.options.tiny ? prefix / 128 : prefix, run.options.tiny ? n / 16 + 1 : n);
  }
  for (const std::int32_t n : run.options.tiny ? std::vector{3} : std::vector{1, 64, 512}) {
    const std::int32_t prefix = run.size(2048, 16);
    measure_plain<number>(run, {"gpt-oss, window of 128 and sinks", 64, 8, 64, 128, 0, true}, prefix, n);
    measure_plain<number>(run, {"Gemma 3, window of 1024", 8, 4, 256, 1024}, prefix, n);
    measure_plain<number>(run, {"Gemma 2, capped scores", 16, 8, 256, 0, 50}, prefix, n);
    measure_plain<number>(run, {"Phi-3, heads of 96", 32, 32, 96}, prefix, n);
    measure_plain<float>(run, {"float, 32 heads of 128", 32, 8, 128}, prefix, n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_attention", "tree attention by the order of rows", measure);
}
