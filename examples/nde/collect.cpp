// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../models/model_costs.hpp"
#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "collector.hpp"
#include "espalier/core/util/checksum.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "sampling_setting.hpp"
#include "text_tasks.hpp"
#include "trace_file.hpp"

namespace nde {

namespace {

std::string fingerprint(const std::vector<espalier::token_id>& tokens) {
  return espalier::detail::digits_of(espalier::detail::checksum(std::as_bytes(std::span(tokens))));
}

std::map<std::string, std::string> settings_of(const collect_arguments& a, const models::model_set& models,
                                               const std::vector<ot_verifier>& verifiers) {
  std::string names;
  for (const ot_verifier& verifier : verifiers)
    names += (names.empty() ? "" : ",") + verifier.name;
  return {{"format", trace_format},
          {"target", espalier::model_identity(models.paths.model)},
          {"draft", models::draft_identity(models)},
          {"vocab", std::to_string(models.target.vocab_size())},
          {"verifiers", names},
          {"samples", std::to_string(a.how.samples)},
          {"tokens", std::to_string(a.how.tokens)},
          {"spacing", std::to_string(a.how.spacing)},
          {"most_roots", std::to_string(a.how.roots)}};
}

// True if the prompt's trace exists, and is complete.
bool is_there(const std::string& path, const std::map<std::string, std::string>& settings) {
  if (!std::filesystem::exists(path)) return false;
  std::optional<trace> found;
  try {
    found = read_trace(path);
  } catch (const espalier::model_error& error) {
    fmt::print(stderr, "nde: {} It is collected anew.\n", error.what());
    return false;
  }
  for (const auto& [name, value] : settings) {
    if (found->settings[name] == value) continue;
    espalier::raise<espalier::input_error>(
        path, " was collected with ", name, " \"", found->settings[name], "\", not \"", value,
        "\": the same arguments go on with a folder of traces, others need a new one.");
  }
  return true;
}

class progress {
 public:
  progress(std::size_t n_tasks, std::size_t parts) : n_tasks_(n_tasks), parts_(parts) {}

  void say(std::size_t i, const text_task& t, std::size_t roots) {
    ++done_;
    roots_ += roots;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double left = seconds / static_cast<double>(done_) * static_cast<double>((n_tasks_ - i - 1) / parts_);
    fmt::print(stderr, "prompt {} of {}: {}, sampling {}: {} roots; {:.3f} s a root, {:.1f} minutes left\n", i + 1,
               n_tasks_, t.domain, in_words(t.sampling), roots,
               seconds / static_cast<double>(std::max<std::size_t>(roots_, 1)), left / 60);
  }

  std::size_t roots() const { return roots_; }
  std::size_t done() const { return done_; }

 private:
  std::size_t n_tasks_;
  std::size_t parts_;
  std::size_t done_ = 0;
  std::size_t roots_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

int collect(const collect_arguments& a) {
  espalier::require_option("part", a.part, 0, a.parts - 1);
  espalier::require_option("spacing", a.how.spacing, 1, a.how.tokens);
  const std::vector<ot_verifier> verifiers = ot_verifiers(a.known, a.verifiers);
  models::model_set models = models::model_set::load(
      a.models, {.threads = a.n_threads(), .max_rows = collector::longest_pass(a.how), .arithmetic = a.arithmetic});
  const std::vector<text_task> tasks =
      text_tasks(models, a.prompts, a.samplings, a.count, a.how.tokens + root_paths::deepest);
  auto settings = settings_of(a, models, verifiers);
  std::filesystem::create_directories(a.out);
  collector collect_from(models, a.how, verifiers, a.n_threads());
  const auto parts = static_cast<std::size_t>(a.parts);
  progress shown(tasks.size(), parts);
  std::size_t found = 0;
  for (auto i = static_cast<std::size_t>(a.part); i < tasks.size(); i += parts) {
    const text_task& t = tasks[i];
    const std::string path = fmt::format("{}/trace-{:05}.safetensors", a.out, i);
    settings["domain"] = t.domain;
    settings["sampling"] = in_words(t.sampling);
    settings["prompt"] = fingerprint(t.prompt);
    settings["seed"] = std::to_string(a.seed);
    if (is_there(path, settings)) {
      ++found;
      continue;
    }
    trace made = collect_from.collect(t.prompt, t.sampling, a.seed + (static_cast<std::uint64_t>(i) << 32));
    made.settings = settings;
    write_trace(path, made);
    shown.say(i, t, made.roots());
  }
  fmt::print("{}: {} traces were there, {} with {} roots were collected.\n", a.out, found, shown.done(), shown.roots());
  return 0;
}

}  // namespace nde
