// SPDX-License-Identifier: BSL-1.0
// Measures the most that the card can do: the bandwidth of a copy, and the cost of a launch.
#include <cstddef>

#include "program.cuh"

namespace {

void measure(bench::bench_run& run) {
  run.found.add(bench::figure{.key = "copy.time",
                              .what = "copying 1 GiB inside the device",
                              .measured = run.most.copy,
                              .note = "bytes read and written give the bandwidth"});
  run.found.add(bench::figure{.key = "launch.further",
                              .what = "a further kernel that does nothing in the same graph",
                              .measured = run.most.further_launches,
                              .note = "a hundred of them, divided"});
  const std::size_t bytes = run.size(std::size_t{1} << 30, std::size_t{1} << 16);
  const espalier::cuda::device_array<unsigned char> words(bytes);
  const espalier::cuda::device_array<std::uint32_t> sink(1);
  words.fill_bytes(0x5A, nullptr);
  bench::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  auto race = run.race();
  race.add({.key = "read", .work = [&](cudaStream_t s) {
              bench::read_pass(words.data(), bytes, sink.data(), run.card.multiProcessorCount, s);
            }});
  race.run();
  run.found.add(bench::figure{.key = "read.time",
                              .what = "reading 1 GiB by a kernel",
                              .measured = race.of("read"),
                              .reading = run.most.reading(static_cast<double>(bytes))});
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_copy", "the bandwidth of a copy, and what a launch costs", measure);
}
