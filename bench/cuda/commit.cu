// SPDX-License-Identifier: BSL-1.0
// Measures the compaction of the accepted path in a cache of Qwen3-8B's shape: 36 layers, 8 key-value heads of 128,
// bfloat16.
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
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
  }
  race.run();
  for (const std::string kind : {"contiguous", "paged"}) {
    for (const std::int32_t n : lengths) {
      const double bytes = 2.0 * (n - 1) * layers * 2 * row_size * static_cast<double>(sizeof(number));
      const std::string key = kind + "." + std::to_string(n);
      char rate[64];
      std::snprintf(rate, sizeof rate, "%.0f GB/s", bytes / race.of(key).median() * 1e-3);
      run.found.add({.key = "commit." + key,
                     .what = "compaction, " + kind + ", " + std::to_string(n - 1) + " rows moved",
                     .measured = race.of(key),
                     .reading = run.most.reading(bytes),
                     .limit = run.most.reading(bytes) + run.most.one_launch(),
                     .target = "a copy of the rows, and a launch",
                     .note = rate});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_commit", "compaction of the accepted path", measure);
}
