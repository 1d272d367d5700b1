// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "report_file.hpp"

namespace bench {

//! What every program of tables is told.
struct table_arguments {
  std::string models = ESPALIER_BENCH_MODELS;
  std::string prompts = ESPALIER_BENCH_MODELS "/prompts.jsonl";
  std::vector<std::string> domains;
  int threads = 0;
  std::string markdown;
  std::string json;

  void add_to(CLI::App& app) {
    app.add_option("--models", models, "folder with target/, draft/ and tokenizer.model")->capture_default_str();
    app.add_option("--prompts", prompts, "JSON Lines: strings, or objects with text or tokens, and domain")
        ->capture_default_str();
    app.add_option("--domains", domains, "only these domains of the prompts")->delimiter(',');
    app.add_option("--threads", threads, "threads of a forward pass; 0: one a processor")->capture_default_str();
    app.add_option("--markdown", markdown, "also write the tables to this file");
    app.add_option("--json", json, "also write every figure to this file");
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

//! A number that must be from `least` to 2^20.
inline void add_count(CLI::App& app, const std::string& name, int& value, const std::string& help, int least = 1) {
  app.add_option(name, value, help)->check(CLI::Range(least, 1 << 20))->capture_default_str();
}

//! Calls run(app) and returns what it does, or 2 after a message where arguments or files do not do.
template <class RunT>
int run_program(const char* name, const char* description, const RunT& run) {
  CLI::App app{description};
  try {
    return run(app);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 2;
  }
}

}  // namespace bench
