// SPDX-License-Identifier: BSL-1.0
// Measures the compaction of the accepted path in a cache of Qwen3-8B's shape: 36 layers, 8 key-value heads of 128,
// bfloat16; and in a cache of a model with recurrent layers. Measures also what paged caches do to share a beginning,
// and what a cache of the host is told.
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/on_host_kv.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"
#include "espalier/kv_store/recurrent_shape.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"
#include "program.cuh"
#include "random_numbers.cuh"

namespace {

namespace device = espalier::cuda;
using number = __nv_bfloat16;

void measure(bench::bench_run& run) {
  const std::int32_t layers = run.size(36, 2), row_size = run.size(1024, 64), base = run.size(4096, 100), tree = 1024;
  device::contiguous_kv<number> contiguous(layers, row_size, 1, base + tree + 1);
  constexpr std::int32_t page_size = 16;
  const std::int32_t n_pages = (base + tree + page_size) / page_size;
  device::paged_kv<number> paged(layers, row_size, 1, n_pages * page_size, page_size, n_pages);
  paged.ensure(0, base + tree, nullptr);
  bench::fill_random(contiguous.view().data,
                     static_cast<std::size_t>(2 * layers * (base + tree + 1)) * static_cast<std::size_t>(row_size), 1,
                     1, nullptr);
  bench::fill_random(paged.view().data,
                     static_cast<std::size_t>(2 * layers * n_pages * page_size) * static_cast<std::size_t>(row_size), 1,
                     2, nullptr);
  // The cache of Qwen3-Next-80B-A3B: 12 layers of attention with 2 key-value heads of 256, and 36 recurrent layers.
  const espalier::recurrent_block_shape block{.kind = espalier::recurrence_kind::gated_delta,
                                              .heads = run.size(32, 4),
                                              .head_dim = run.size(128, 16),
                                              .groups = run.size(16, 2),
                                              .state = run.size(128, 16),
                                              .taps = 4};
  const espalier::recurrent_shape states = block.kept(run.size(36, 3));
  const std::int32_t attention_layers = run.size(12, 1), attention_row = run.size(512, 64);
  const device::recurrent_kv<number> recurrent(attention_layers, attention_row, states, 1, base + tree + 1, tree + 1);
  const device::device_array<std::int32_t> base_there{std::span<const std::int32_t>(&base, 1)};

  auto race = run.race();
  std::vector<device::device_array<std::int32_t>> kept, n_kept;
  const std::vector<std::int32_t> lengths{2, 8, 16, 256};
  for (const std::int32_t n : lengths) {
    // The root stays; the others come from all over the tree.
    std::vector<std::int32_t> rows;
    for (std::int32_t i = 0; i < n; ++i)
      rows.push_back(i * (tree / n) + (i > 0 && n == 2 ? 3 : 0));
    kept.emplace_back(std::span<const std::int32_t>(rows));
    n_kept.emplace_back(std::span<const std::int32_t>(&n, 1));
    const std::int32_t* which = kept.back().data();
    const std::int32_t* how_many = n_kept.back().data();
    race.add({.key = "contiguous." + std::to_string(n), .work = [&, which, how_many, n](cudaStream_t s) {
                contiguous.commit({}, {base_there.data(), which, how_many, n}, s);
              }});
    race.add({.key = "paged." + std::to_string(n), .work = [&, which, how_many, n](cudaStream_t s) {
                paged.commit({}, {base_there.data(), which, how_many, n}, s);
              }});
    race.add({.key = "recurrent." + std::to_string(n), .work = [&, which, how_many, n](cudaStream_t s) {
                recurrent.commit({}, {base_there.data(), which, how_many, n}, s);
              }});
  }
  // A page gets a copy, a text shares the pages of another one, and the host is told what stays.
  race.add({.key = "page", .work = [&](cudaStream_t s) { device::detail::copy_page(paged.view(), 0, 1, s); }});
  device::paged_kv<number> shared(1, 64, 2, n_pages * page_size, page_size, 2 * n_pages);
  shared.ensure(0, base, nullptr);
  shared.remember(0, 0, std::vector<espalier::token_id>(static_cast<std::size_t>(base), 1));
  race.add({.key = "share", .work = [&](cudaStream_t s) { shared.fork(0, 1, s); }});
  const std::int32_t longest = lengths.back();
  const device::pinned_array<std::int32_t> words(static_cast<std::size_t>(3 + longest));
  race.add({.key = "told", .work = [&](cudaStream_t s) {
              device::launch("bring_kept", device::detail::bring_kept<>,
                             {.threads = device::detail::bring_kept_threads}, s,
                             device::detail::kept_on_host{words.data(), longest}, device::text_batch{},
                             device::kept_rows{base_there.data(), kept.back().data(), n_kept.back().data(), longest});
            }});
  race.run();
  const double page_bytes = 8.0 * layers * page_size * row_size;
  run.found.add({.key = "commit.page",
                 .what = "copying a page of " + std::to_string(page_size) + " rows",
                 .measured = race.of("page"),
                 .reading = run.most.reading(page_bytes),
                 .limit = run.most.reading(page_bytes) + run.most.one_launch(),
                 .target = "a copy of the rows, and a launch"});
  run.found.add({.key = "commit.share",
                 .what = "sharing the pages of " + std::to_string(base) + " tokens with another text",
                 .measured = race.of("share")});
  run.found.add({.key = "commit.told",
                 .what = "telling a cache of the host that " + std::to_string(longest) + " rows stay",
                 .measured = race.of("told")});
  for (const std::string kind : {"contiguous", "paged", "recurrent"}) {
    for (const std::int32_t n : lengths) {
      const double row_bytes = kind == "recurrent"
                                   ? 4.0 * attention_layers * attention_row + 4.0 * states.layers * states.row_size
                                   : 4.0 * layers * row_size;
      const double bytes = 2.0 * (n - 1) * row_bytes;
      const double launches = run.most.one_launch() + (kind == "recurrent" ? run.most.further_launches.median() : 0);
      const std::string key = kind + "." + std::to_string(n);
      char rate[64];
      std::snprintf(rate, sizeof rate, "%.0f GB/s", bytes / race.of(key).median() * 1e-3);
      run.found.add(
          {.key = "commit." + key,
           .what = "compaction, " + kind + ", " + std::to_string(n - 1) + " rows moved",
           .measured = race.of(key),
           .reading = run.most.reading(bytes),
           .limit = run.most.reading(bytes) + launches,
           .target = kind == "recurrent" ? "a copy of the rows, and two launches" : "a copy of the rows, and a launch",
           .note = rate});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_commit", "compaction of the accepted path", measure);
}
