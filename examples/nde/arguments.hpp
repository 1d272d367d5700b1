// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "../models/model_paths.hpp"
#include "collection.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "ot_verifiers.hpp"

namespace nde {

struct target_arguments {
  models::model_paths models{NDE_MODELS};
  int threads = 0;
  espalier::matrix_arithmetic arithmetic = espalier::matrix_arithmetic::exact;

  void add_to(CLI::App& app);
  //! Number of threads: if none is given, as many as the hardware runs at once.
  int n_threads() const;
};

struct model_arguments : target_arguments {
  void add_to(CLI::App& app);
};

struct collect_arguments : model_arguments {
  std::string prompts;
  std::string out;
  std::vector<std::string> samplings;
  std::vector<ot_verifier> known;      //!< all that the program knows
  std::vector<std::string> verifiers;  //!< names of those that are wanted; empty: all
  collection how;
  int count = 0;
  int part = 0;  //!< number of this process among the processes that share the work
  int parts = 1;
  std::uint64_t seed = 1;

  void add_to(CLI::App& app);
};

struct costs_arguments : model_arguments {
  std::string out;
  std::string sampling = "1";
  int rows = 256;
  double seconds = 10;

  void add_to(CLI::App& app);
};

struct inspect_arguments {
  std::vector<std::string> paths;

  void add_to(CLI::App& app);
};

struct rates_arguments : model_arguments {
  std::string prompts;
  std::vector<std::string> samplings{"1"};
  std::vector<int> draws{1, 2, 3, 4};
  int count = 0;
  int tokens = 64;
  int spacing = 8;
  std::uint64_t seed = 1;
  std::vector<ot_verifier> known;  //!< all that the program knows

  void add_to(CLI::App& app);
};

struct replay_arguments {
  std::string texts;
  std::string tokenizer = NDE_MODELS;
  int budget = 16;
  int memory = 1 << 18;

  void add_to(CLI::App& app);
};

struct head_tokens_arguments {
  std::string texts;
  std::string tokenizer;
  std::string out;
  int count = 8192;

  void add_to(CLI::App& app);
};

struct write_arguments : target_arguments {
  std::string prompts;
  std::string out;
  std::vector<std::string> samplings{"0", "0.6", "0", "0.8", "0", "1"};
  int count = 0;
  int tokens = 256;
  int together = 16;
  std::uint64_t seed = 1;

  void add_to(CLI::App& app);
};

//! Each runs a command of the program and returns its exit status.
int collect(const collect_arguments& arguments);
int costs(const costs_arguments& arguments);
int inspect(const inspect_arguments& arguments);
int rates(const rates_arguments& arguments);
int replay(const replay_arguments& arguments);
int head_tokens(const head_tokens_arguments& arguments);
int write(const write_arguments& arguments);

}  // namespace nde
