// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "root_efficiency.hpp"
#include "trace_file.hpp"

namespace nde {

namespace {

std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::exists(path)) espalier::raise<espalier::input_error>("there is no ", path, ".");
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    }
    if (files.size() == before) espalier::raise<espalier::input_error>(path, " holds no trace.");
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Traces of the same models and verifiers.
struct summary {
  std::size_t files = 0;
  std::size_t roots = 0;
  std::map<std::string, std::size_t> domains, samplings;  // number of roots for each domain and each sampling
  std::vector<double> efficiency;                         // [verifiers][n_actions] sums over the roots
  std::vector<double> nodes, draft_rows;                  // [n_actions] sums over the roots

  void add(const trace& t) {
    ++files;
    roots += t.roots();
    const auto& settings = t.settings;
    const auto setting = [&](const char* name) {
      const auto found = settings.find(name);
      return found == settings.end() ? std::string("not named") : found->second;
    };
    domains[setting("domain")] += t.roots();
    samplings[setting("sampling")] += t.roots();
    add_roots(t.tensors.at("efficiency"), efficiency);
    add_roots(t.tensors.at("nodes"), nodes);
    add_roots(t.tensors.at("draft_rows"), draft_rows);
  }

  static void add_roots(const trace::tensor& from, std::vector<double>& to) {
    std::size_t width = 1;
    for (std::size_t i = 1; i < from.shape.size(); ++i)
      width *= from.shape[i];
    to.resize(std::max(to.size(), width));
    for (std::size_t i = 0; i < from.values.size(); ++i)
      to[i % width] += static_cast<double>(from.values[i]);
  }
};

std::string counts_in_words(const std::map<std::string, std::size_t>& counts) {
  std::string words;
  for (const auto& [name, n] : counts)
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name, n);
  return words;
}

void show(const std::map<std::string, std::string>& settings, const summary& s) {
  const auto setting = [&](const char* name) { return settings.at(name); };
  fmt::print(
      "{} traces, {} roots\n  target     {}\n  draft      {}\n  samples    {}\n  domains    {}\n  samplings  {}\n\n",
      s.files, s.roots, setting("target"), setting("draft"), setting("samples"), counts_in_words(s.domains),
      counts_in_words(s.samplings));
  const std::vector<std::string> verifiers = split(setting("verifiers"));
  const auto roots = static_cast<double>(s.roots);
  fmt::print("mean block efficiency\n  {:<14}{:>8}{:>8}", "K, L1, L2", "nodes", "rows");
  for (const std::string& verifier : verifiers)
    fmt::print("{:>13}", verifier);
  fmt::print("\n");
  for (const espalier::delayed_options action : {espalier::delayed_options{1, 0, 0},
                                                 {1, 0, 2},
                                                 {1, 0, 5},
                                                 {1, 0, 8},
                                                 {1, 8, 8},
                                                 {2, 0, 4},
                                                 {4, 0, 4},
                                                 {4, 0, 8},
                                                 {2, 2, 4},
                                                 {4, 2, 4},
                                                 {4, 4, 4},
                                                 {4, 8, 8}}) {
    const auto i = static_cast<std::size_t>(espalier::delayed_action::number(action));
    fmt::print("  {:<14}{:>8.2f}{:>8.2f}", fmt::format("{}, {}, {}", action.paths, action.trunk, action.length),
               s.nodes[i] / roots, s.draft_rows[i] / roots);
    for (std::size_t v = 0; v < verifiers.size(); ++v)
      fmt::print("{:>13.3f}", s.efficiency[v * n_actions + i] / roots);
    fmt::print("\n");
  }
}

}  // namespace

int inspect(const inspect_arguments& a) {
  std::map<std::map<std::string, std::string>, summary> kinds;
  int damaged = 0;
  for (const std::string& file : files_of(a.paths)) {
    try {
      const trace t = read_trace(file);
      std::map<std::string, std::string> kind;
      for (const char* name : {"target", "draft", "verifiers", "samples"}) {
        const auto found = t.settings.find(name);
        kind[name] = found == t.settings.end() ? "not named" : found->second;
      }
      kinds[kind].add(t);
    } catch (const espalier::model_error& error) {
      ++damaged;
      fmt::print(stderr, "nde: {}\n", error.what());
    }
  }
  for (const auto& [settings, found] : kinds)
    show(settings, found);
  if (damaged > 0) fmt::print(stderr, "nde: {} of the files {} damaged.\n", damaged, damaged == 1 ? "is" : "are");
  return damaged > 0 ? 1 : 0;
}

}  // namespace nde
