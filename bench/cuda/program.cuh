// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "../program.hpp"
#include "cache_flush.cuh"
#include "ceilings.cuh"
#include "figures.hpp"

namespace bench {

struct program_options {
  std::string json{};
  std::string inputs{};
  std::string models{};
  int repetitions = 101;
  bool tiny = false;

  void add_to(program& to) {
    to.add("--json", json, "write the figures there");
    to.add("--repetitions", repetitions, "of each measurement, by turns", 1, 100000);
    to.add("--inputs", inputs, "folder for the inputs, for the comparison in PyTorch");
    to.add("--models", models, "folder of the bundled models; measure_decoding takes any model's path");
    to.add("--tiny", tiny, "small sizes, once: shows that the program works, and measures nothing");
  }
};

//! The things that every program of this folder needs: the card, a flush of the caches, the ceilings of the card, and
//! the figures of the run.
struct bench_run {
  program_options options;
  cudaDeviceProp card;
  cache_flush flush;
  ceilings most;
  figures found;

  template <class ValueT>
  ValueT size(ValueT full, ValueT small) const {
    return options.tiny ? small : full;
  }
  contest race() const { return contest(flush, options.repetitions); }
};

namespace detail {

inline cudaDeviceProp this_card() {
  int device = 0;
  cudaDeviceProp card{};
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaGetDeviceProperties(&card, device), "cudaGetDeviceProperties");
  return card;
}

}  // namespace detail

//! Runs a program of this folder. It reads the common arguments and those that add_arguments(program) adds, measures
//! the ceilings, calls work(run) and writes the figures.
//!
//! Post        returns 0; 1 if work has thrown, with the message on stderr and the figures so far written; otherwise as
//!             bench::program
template <class WorkT>
int run_program(
    int argc, char** argv, const char* name, const char* what, WorkT&& work,
    const std::function<void(program&)>& add_arguments = [](program&) {}) {
  program_options options;
#if defined(ESPALIER_BENCH_MODELS)
  options.models = ESPALIER_BENCH_MODELS;
#endif
  bench::program program(name, what);
  options.add_to(program);
  add_arguments(program);
  return program.run(argc, argv, [&] {
    if (options.tiny) options.repetitions = 1;
    const cudaDeviceProp card = detail::this_card();
    std::fprintf(stderr, "%s on %s\n", name, card.name);
    bench_run run{options, card, cache_flush(card, options.tiny), {}, figures(name, card.name, options.tiny)};
    run.most = measure_ceilings(run.flush, options.tiny ? 1 : 31, options.tiny);
    run.found.add("copy", "copy inside the device, bytes read and written", run.most.bytes_per_us() / 1e3, "GB/s");
    run.found.add(
        figure{.key = "launch", .what = "a graph of one kernel that does nothing", .measured = run.most.launch});
    int status = 0;
    try {
      work(run);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", name, e.what());
      status = 1;
    }
    if (!options.json.empty()) run.found.write(options.json);
    return status;
  });
}

}  // namespace bench
