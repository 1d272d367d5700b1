// SPDX-License-Identifier: BSL-1.0
// Measures a pass of a transformer by the size of the tree: with random weights of Qwen3-8B's shape in bfloat16, made
// on the device; and with the bundled pair, whose weights stay in the second-level cache from pass to pass.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/model/llama/recurrent_block.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "grown_tree.cuh"
#include "large_model.cuh"
#include "program.cuh"
#include "random_numbers.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using number = __nv_bfloat16;

// Trees of the given sizes, root included, after a prefix, and their forward batches.
class tree_batches {
 public:
  tree_batches(const std::vector<std::int32_t>& sizes, std::int32_t prefix, std::size_t vocab, cudaStream_t s)
      : text_(prefix + 1, prefix + sizes.back() + 1) {
    for (const std::int32_t n : sizes) {
      trees_.push_back(std::make_unique<bench::grown_tree>(n - 1, vocab));
      compilers_.emplace_back(n - 1, node_order::depth_first);
      const auto texts = device::text_batch::of(trees_.back()->writer(), text_.view(), prefix + n + 1);
      batches_.push_back(compilers_.back().compile(texts, n, s));
    }
  }

  const device::forward_batch_view& of(std::size_t i) const { return batches_[i]; }

 private:
  bench::device_text text_;
  std::vector<std::unique_ptr<bench::grown_tree>> trees_;
  std::vector<device::tree_compiler> compilers_;
  std::vector<device::forward_batch_view> batches_;
};

// Fills a cache of one sequence with random keys and values, and returns it.
template <class KVStoreT>
KVStoreT filled(KVStoreT kv) {
  const std::size_t rows = 2 * static_cast<std::size_t>(kv.n_layers() * kv.capacity());
  bench::fill_random(kv.view().data, rows * static_cast<std::size_t>(kv.row_size()), 1, 3, nullptr);
  return kv;
}
device::contiguous_kv<number> random_cache(const model_config& config, std::int32_t capacity) {
  return filled(device::contiguous_kv<number>(config.n_layers, config.kv_size(), 1, capacity));
}

// A pass of one of the bundled pair.
void measure_bundled(bench::bench_run& run, const std::string& which, const std::string& what, double limit) {
  const std::int32_t prefix = run.size(256, 24);
  auto model = device::llama_backend<number>::load(run.options.models + "/" + which);
  const model_config& config = model.config();
  device::contiguous_kv<number> kv = random_cache(config, model.max_positions());
  bench::contest race = run.race();
  const std::vector<std::int32_t> sizes = run.options.tiny ? std::vector{1, 8} : std::vector{1, 8, 16, 64};
  const tree_batches batches(sizes, prefix, 400, race.in());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    race.add({.key = std::to_string(sizes[i]),
              .work = [&model, &kv, batch = batches.of(i)](cudaStream_t s) { (void)model.forward(kv, batch, s); },
              .cold = false});
  }
  race.run();
  for (const std::int32_t n : sizes) {
    run.found.add({.key = "forward." + which + "." + std::to_string(n),
                   .what = what + ", " + std::to_string(n) + " rows after " + std::to_string(prefix) + " tokens",
                   .measured = race.of(std::to_string(n)),
                   .limit = limit,
                   .target = "asked for"});
  }
}

// A pass of four layers of a model with mixtures of experts, which reads the more experts the more rows it has. States
// of recurrent layers are four tokens behind, as after a round that has accepted three.
void measure_mixture(bench::bench_run& run, const model_config& config, const std::string& key,
                     const std::string& what) {
  const std::int32_t prefix = run.size(512, 24), most = run.size(256, 16), context = prefix + most + 1;
  device::llama_backend<number> model(config, bench::random_weights(config),
                                      {.max_rows = most, .max_positions = context, .max_context = context});
  auto kv = filled(device::device_cache<number>(config, 1, context, context));
  const espalier::recurrent_shape states = config.recurrent_shape();
  const device::device_array<std::int32_t> seen(
      std::span<const std::int32_t>(std::vector<std::int32_t>(static_cast<std::size_t>(states.layers), prefix - 4)));
  const auto fall_behind = [&](cudaStream_t s) {
    if (seen.size() > 0)
      device::require(cudaMemcpyAsync(kv.states().seen, seen.data(), sizeof(std::int32_t) * seen.size(),
                                      cudaMemcpyDeviceToDevice, s),
                      "cudaMemcpyAsync");
  };
  bench::contest race(run.flush, std::max(1, run.options.repetitions / 5));
  const std::vector<std::int32_t> sizes = run.options.tiny ? std::vector{1, 8} : std::vector{1, 8, 16, 64, 256};
  const tree_batches batches(sizes, prefix, run.size<std::size_t>(20000, 400), race.in());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    model.reserve(sizes[i]);
    race.add({.key = std::to_string(sizes[i]),
              .work = [&model, &kv, batch = batches.of(i)](cudaStream_t s) { (void)model.forward(kv, batch, s); },
              .prepare = fall_behind});
  }
  race.run();
  const mixture_shape& m = config.mixture;
  const double expert_bytes = 6.0 * config.hidden_size * m.size * config.n_layers,
               other_bytes = static_cast<double>(model.weight_bytes()) - expert_bytes * m.experts,
               state_bytes = 4.0 * states.layers * states.state_size;
  for (const std::int32_t n : sizes) {
    const std::string rows = std::to_string(n);
    // Random routers choose almost independently.
    const double read = m.experts * (1.0 - std::pow(1.0 - 1.0 * m.used / m.experts, n));
    run.found.add({.key = "forward." + key + "." + rows,
                   .what = "a pass of " + rows + " rows after " + std::to_string(prefix) + " tokens, four layers of " +
                           what + "'s shape",
                   .measured = race.of(rows),
                   .reading = run.most.reading(other_bytes + expert_bytes * read + 2 * state_bytes)});
  }
}

// The kernels of one recurrent layer alone, in the shape of such a model's.
void measure_recurrent(bench::bench_run& run, const model_config& config) {
  const std::int32_t prefix = run.size(512, 24), most = run.size(256, 16), context = prefix + most + 1;
  const recurrent_block_shape& shape = config.recurrence;
  auto random = [seed = 10U](int rows, int columns, float scale, float mean) mutable {
    device::device_array<float> numbers(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    bench::fill_random(numbers.data(), numbers.size(), scale, seed++, nullptr, mean);
    return numbers;
  };
  const auto convolution = random(shape.taps, shape.convolved(), 0.5F, 0), norm = random(1, shape.norm_size(), 0.1F, 1),
             step_bias = random(1, shape.heads, 0.1F, 1), decay = random(1, shape.heads, 0.1F, -1),
             read = random(most, shape.inner(), 1, 0);
  const device::device_array<number> projected(static_cast<std::size_t>(most) *
                                               static_cast<std::size_t>(shape.projected())),
      out(read.size());
  bench::fill_random(projected.data(), projected.size(), 1, 4, nullptr);
  const device::recurrent_kv<number> kv(1, config.kv_size(), shape.kept(1), 1, context, context);
  const std::int32_t behind = prefix - 4;
  const device::device_array<std::int32_t> seen{std::span<const std::int32_t>(&behind, 1)};
  const device::detail::recurrent_job<number> job{.shape = shape,
                                                  .weights = {.convolution = convolution.data(),
                                                              .step_bias = step_bias.data(),
                                                              .decay = decay.data(),
                                                              .norm = norm.data()},
                                                  .states = kv.states(),
                                                  .projected = projected.data(),
                                                  .read = read.data(),
                                                  .out = out.data(),
                                                  .epsilon = config.norm_epsilon};
  auto race = run.race();
  const std::vector<std::int32_t> sizes = run.options.tiny ? std::vector{1, 8} : std::vector{1, 8, 64, 256};
  const tree_batches batches(sizes, prefix, run.size<std::size_t>(20000, 400), race.in());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    race.add({.key = std::to_string(sizes[i]),
              .work =
                  [&job, batch = batches.of(i)](cudaStream_t s) {
                    device::detail::recurrent_launcher<number>{job, batch, s}.run();
                  },
              .prepare =
                  [&](cudaStream_t s) {
                    device::require(cudaMemcpyAsync(job.states.seen, seen.data(), sizeof(std::int32_t),
                                                    cudaMemcpyDeviceToDevice, s),
                                    "cudaMemcpyAsync");
                  }});
  }
  race.run();
  const espalier::recurrent_shape kept = shape.kept(1);
  for (const std::int32_t n : sizes) {
    // The state is read and written. Of a row the projection is read, the kept row is written and read, and the output
    // is written.
    const double row_bytes = 2.0 * shape.projected() + 8.0 * kept.row_size + 2.0 * shape.inner();
    run.found.add({.key = "forward.recurrent." + std::to_string(n),
                   .what = "a gated delta network of Qwen3-Next's shape without its projections, " + std::to_string(n) +
                           " rows, 4 tokens behind",
                   .measured = race.of(std::to_string(n)),
                   .reading = run.most.reading(8.0 * kept.state_size + row_bytes * n)});
  }
}

void measure(bench::bench_run& run) {
  measure_bundled(run, "target", "a pass of the bundled target", 90);
  measure_bundled(run, "draft", "a level of the bundled draft", 35);
  measure_mixture(run, bench::mixture_of_experts(run.options.tiny), "mixture", "Qwen3-30B-A3B");
  measure_mixture(run, bench::hybrid_shape(run.options.tiny), "hybrid", "Qwen3-Next-80B-A3B");
  measure_recurrent(run, bench::hybrid_shape(run.options.tiny));
  const model_config config = bench::large_shape(run.options.tiny);
  const std::int32_t prefix = run.size(2048, 40), most = run.size(1024, 16), context = prefix + most + 1;
  const double kv_bytes = 4.0 * config.n_layers * config.kv_size();
  auto weights = bench::random_weights(config);
  const double weight_bytes = static_cast<double>(weights.bytes());
  device::llama_backend<number> model(config, std::move(weights),
                                      {.max_rows = most, .max_positions = context, .max_context = context});
  device::contiguous_kv<number> kv = random_cache(config, context);

  bench::contest race(run.flush, std::max(1, run.options.repetitions / 5));
  std::vector<std::int32_t> sizes;
  for (std::int32_t n = 1; n <= most; n *= 2)
    sizes.push_back(n);
  const tree_batches batches(sizes, prefix, run.size<std::size_t>(20000, 400), race.in());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    model.reserve(sizes[i]);
    race.add({.key = std::to_string(sizes[i]),
              .work = [&model, &kv, batch = batches.of(i)](cudaStream_t s) { (void)model.forward(kv, batch, s); }});
  }
  // The passes of few rows again, without reading weights ahead between products.
  device::llama_backend<number> as_needed(
      config, model.weights(),
      {.max_rows = most, .max_positions = context, .max_context = context, .read_ahead_bytes = 0});
  const std::vector<std::size_t> compared{0, sizes.size() / 2};
  for (const std::size_t i : compared) {
    as_needed.reserve(sizes[i]);
    race.add(
        {.key = std::to_string(sizes[i]) + " as needed",
         .work = [&as_needed, &kv, batch = batches.of(i)](cudaStream_t s) { (void)as_needed.forward(kv, batch, s); }});
  }
  race.run();
  for (const std::size_t i : compared) {
    const std::string rows = std::to_string(sizes[i]);
    bench::samples share;
    share.add(race.of(rows).median() / race.of(rows + " as needed").median());
    run.found.add({.key = "forward.ahead." + rows,
                   .what = "a pass of " + rows + " rows: time with weights asked for ahead, as a share of without",
                   .measured = share,
                   .unit = "of a pass",
                   .limit = 1,
                   .target = "no more than without"});
  }
  const double one = race.of("1").median();
  for (const std::int32_t n : sizes) {
    const std::string rows = std::to_string(n);
    char ratio[48];
    std::snprintf(ratio, sizeof ratio, "%.3f of a pass of one row", race.of(rows).median() / one);
    run.found.add({.key = "forward." + rows,
                   .what = "a pass of " + rows + " rows after " + std::to_string(prefix) + " tokens, Qwen3-8B's shape",
                   .measured = race.of(rows),
                   .reading = run.most.reading(weight_bytes + kv_bytes * (prefix + n)),
                   .note = ratio});
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_forward", "cost of a pass against tree size", measure);
}
