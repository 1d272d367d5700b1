// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "cache_flush.cuh"
#include "ceilings.cuh"
#include "figures.hpp"

namespace bench {

struct program_options {
  std::string json{};    //!< where the figures go
  std::string inputs{};  //!< folder for inputs that a program in another language reads
  std::string models{};  //!< folder of the bundled models
  int repetitions = 101;
  bool tiny = false;  //!< small sizes, once: shows that the program works, and measures nothing
};

//! What every program of this folder needs: the card, a flush, what the card can do at most, and a place for figures.
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

inline void print_help(const char* name, const char* what) {
  std::printf(
      "%s: %s\n\n"
      "  --json FILE       write the figures there\n"
      "  --repetitions N   of each measurement, by turns (default 101)\n"
      "  --inputs DIR      write the inputs there, for the comparison in PyTorch\n"
      "  --models DIR      folder of the bundled models (default: examples/models)\n"
      "  --tiny            small sizes, once: shows that the program works\n",
      name, what);
}

// False: the help was asked for.
inline bool read(int argc, char** argv, program_options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) espalier::raise<espalier::input_error>(name, " needs a value.");
      return argv[++i];
    };
    if (name == "--help" || name == "-h") return false;
    if (name == "--json") {
      options.json = value();
    } else if (name == "--inputs") {
      options.inputs = value();
    } else if (name == "--models") {
      options.models = value();
    } else if (name == "--tiny") {
      options.tiny = true;
    } else if (name == "--repetitions") {
      options.repetitions = std::atoi(value().c_str());
    } else {
      espalier::raise<espalier::input_error>("there is no argument ", name, "; --help names them.");
    }
  }
  espalier::require_option("repetitions", options.repetitions, 1, 100000);
  if (options.tiny) options.repetitions = 1;
  return true;
}

}  // namespace detail

//! A program of this folder: reads its arguments, measures the ceilings, calls work(run) and writes what it found.
//!
//! Post        0; 1 after an error, whose message is on stderr; what was measured until then is written all the same
template <class WorkT>
int run_program(int argc, char** argv, const char* name, const char* what, WorkT&& work) {
  try {
    program_options options;
#if defined(ESPALIER_BENCH_MODELS)
    options.models = ESPALIER_BENCH_MODELS;
#endif
    if (!detail::read(argc, argv, options)) {
      detail::print_help(name, what);
      return 0;
    }
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
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return 1;
  }
}

}  // namespace bench
