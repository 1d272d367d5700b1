// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../models/drafter_kind.hpp"
#include "../models/model_paths.hpp"
#include "../models/self_draft.hpp"
#include "../models/usage_error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/kv_store/slot_ledger.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/sampling/sampler.hpp"
#include "parts.hpp"

namespace models {
struct price_table;
}

namespace generate {

using models::drafter_kind;
using models::is_head;

//! The hardware that runs models and rounds.
enum class device_kind { cpu, cuda };

}  // namespace generate

namespace espalier {

template <>
inline constexpr auto known_values<generate::device_kind> = std::array{
    known_value<generate::device_kind>{generate::device_kind::cpu, "cpu", "on the processor"},
    known_value<generate::device_kind>{generate::device_kind::cuda, "cuda",
                                       "all of a round on a GPU, in 32-bit numbers, or bf16 with --weights bf16"}};

}  // namespace espalier

namespace generate {

//! The values that the command line gives.
struct arguments {
  std::vector<std::string> prompts;  //!< texts of --prompt
  std::string prompts_file;
  models::model_paths models;
  bool chat = false;
  bool raw = false;    //!< prompts are beginnings of texts, even for models that chat
  std::string system;  //!< the system's message, before a chat
  std::vector<std::string> stop;
  std::int32_t max_tokens = 128;
  std::string regex;            //!< pattern that texts match; empty: any text
  std::string json_schema;      //!< file with the schema of the text; empty: any text
  bool ignore_formats = false;  //!< formats that the schema names and the library does not have are passed over
  bool json_lines = false;      //!< JSON may have line breaks
  std::string grammar;          //!< file with the grammar of the text; empty: any text
  bool constrains() const { return !regex.empty() || !json_schema.empty() || !grammar.empty(); }

  std::vector<std::string> methods;    //!< names of tree policies; empty: the default ones, see default_methods
  std::vector<std::string> verifiers;  //!< names; empty: the best for each method
  drafter_kind drafter = drafter_kind::automatic;  //!< parse() leaves another one than automatic
  std::string text_method;  //!< name of the method that drafts from the text beside the drafter; empty: none does
  bool ahead = false;       //!< the draft model drafts while the target computes
  device_kind device = device_kind::cpu;
  espalier::commit_mode commit = espalier::commit_mode::compact;
  std::int32_t threads = 0;
  espalier::matrix_arithmetic arithmetic = espalier::matrix_arithmetic::exact;
  espalier::weight_storage weights = espalier::weight_storage::fastest;

  std::uint64_t seed = 0;
  espalier::decoder_options target;  //!< includes the target's sampling, and the seed
  espalier::sampling_options draft{.temperature = 1.0F};
  models::self_draft_options self;         //!< of a target that drafts for itself
  std::vector<std::string> draft_options;  //!< names of the draft options that flags have set: see draft_sampling
  generate::parts parts;                   //!< all that the program offers, with options from the flags

  std::string costs;      //!< file of costs; empty: they are measured
  std::string selectors;  //!< folder of selectors; empty: that of the models, if there is one

  bool compare = false;
  std::int32_t repeats = 3;
  bool show_tree = false;
  bool ascii = false;
  bool json = false;
  std::string svg;
  std::string dot;
  std::int32_t round = -1;  //!< the round drawn by svg and dot; -1: the one with the deepest accepted path
  std::shared_ptr<const models::price_table> price;  //!< what passes cost; null: seconds are the clock's

  static constexpr void describe(auto see) {
    using espalier::option;
    see(option{"drafter", &arguments::drafter, "what proposes tokens"});
    see(option{"device", &arguments::device, "where models and rounds run"});
    see(option{"commit", &arguments::commit, "how the cache keeps an accepted path"});
    see(option{"threads", &arguments::threads, "threads of a forward pass; 0: one for each processor", 0,
               espalier::thread_team::most_threads});
    see(option{"arithmetic", &arguments::arithmetic, "products with weights, on cpu"});
    see(option{"weights", &arguments::weights,
               "how matrices are held; products of integers take i8-rows; on cuda f32 or bf16"});
    see(option{"seed", &arguments::seed, "equal seeds write equal texts"});
    see(option{"repeats", &arguments::repeats, "runs of each method to compare; the median counts", 1, 1000});
  }
};

using models::usage_error;

//! Reads a command line of a program that offers these parts. If it contains --help, only `help` is set.
//!
//! Errors      usage_error
arguments parse(int argc, const char* const* argv, parts offered, std::string& help);

}  // namespace generate
