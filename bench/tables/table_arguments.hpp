// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <vector>

#include "../program.hpp"
#include "model_paths.hpp"
#include "report_file.hpp"

namespace bench {

//! The arguments of every program of tables.
struct table_arguments {
  models::model_paths models{ESPALIER_BENCH_MODELS};
  std::string prompts = ESPALIER_BENCH_MODELS "/prompts.jsonl";
  std::vector<std::string> domains;
  int threads = 0;
  std::string markdown;
  std::string json;

  void add_to(program& to) {
    to.add("--model", models.model, "folder with target/, draft/ and a tokenizer, or a model");
    to.add("--draft", models.draft,
           "what drafts: a smaller model, a head or a block draft; empty: the model beside the target");
    to.add("--block", models.block, "a block draft; empty: the one beside the target");
    to.add("--prompts", prompts, "JSON Lines: strings, or objects with text or tokens, and domain");
    to.add("--domains", domains, "only these domains of the prompts");
    to.add("--threads", threads, "threads of a forward pass; 0: one a processor", 0, 256);
    to.add("--markdown", markdown, "also write the tables to this file");
    to.add("--json", json, "also write every figure to this file");
  }
};

//! Prints a report's tables, and writes the files that were asked for.
//!
//! Errors      input_error for a file that cannot be written
template <class ReportT>
void deliver(const ReportT& made, const table_arguments& asked, const std::string& plot) {
  report(made.markdown(), asked.markdown);
  if (!asked.json.empty()) write_file(asked.json, made.json().dump(1));
  if (!plot.empty()) write_file(plot, made.plot());
}

}  // namespace bench
