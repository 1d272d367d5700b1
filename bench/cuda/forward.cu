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
#include <string>
#include <utility>
#include <vector>

#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
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

// A cache of one sequence, with random numbers in it.
device::contiguous_kv<number> random_cache(const model_config& config, std::int32_t capacity) {
  device::contiguous_kv<number> kv(config.n_layers, config.kv_size(), 1, capacity);
  bench::fill_random(
      kv.view().data,
      static_cast<std::size_t>(2 * config.n_layers * capacity) * static_cast<std::size_t>(config.kv_size()), 1, 3,
      nullptr);
  return kv;
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

// A pass of a model with mixtures of experts, which reads the more experts the more rows it has.
void measure_mixture(bench::bench_run& run) {
  const model_config config = bench::mixture_of_experts(run.options.tiny);
  const std::int32_t prefix = run.size(512, 24), most = run.size(256, 16), context = prefix + most + 1;
  device::llama_backend<number> model(config, bench::random_weights(config),
                                      {.max_rows = most, .max_positions = context, .max_context = context});
  device::contiguous_kv<number> kv = random_cache(config, context);
  bench::contest race(run.flush, std::max(1, run.options.repetitions / 5));
  const std::vector<std::int32_t> sizes = run.options.tiny ? std::vector{1, 8} : std::vector{1, 8, 16, 64, 256};
  const tree_batches batches(sizes, prefix, run.size<std::size_t>(20000, 400), race.in());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    model.reserve(sizes[i]);
    race.add({.key = std::to_string(sizes[i]),
              .work = [&model, &kv, batch = batches.of(i)](cudaStream_t s) { (void)model.forward(kv, batch, s); }});
  }
  race.run();
  const mixture_shape& m = config.mixture;
  const double expert_bytes = 6.0 * config.hidden_size * m.size * config.n_layers,
               other_bytes = static_cast<double>(model.weight_bytes()) - expert_bytes * m.experts;
  for (const std::int32_t n : sizes) {
    const std::string rows = std::to_string(n);
    // Random routers choose almost independently.
    const double read = m.experts * (1.0 - std::pow(1.0 - 1.0 * m.used / m.experts, n));
    run.found.add({.key = "forward.mixture." + rows,
                   .what = "a pass of " + rows + " rows after " + std::to_string(prefix) +
                           " tokens, four layers of Qwen3-30B-A3B's shape",
                   .measured = race.of(rows),
                   .reading = run.most.reading(other_bytes + expert_bytes * read)});
  }
}

void measure(bench::bench_run& run) {
  measure_bundled(run, "target", "a pass of the bundled target", 90);
  measure_bundled(run, "draft", "a level of the bundled draft", 35);
  measure_mixture(run);
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
