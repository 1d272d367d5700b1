// SPDX-License-Identifier: BSL-1.0
// Greedy equality: every method writes, token for token, what plain decoding writes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decoding_method.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "table_program.hpp"

namespace {

struct arguments : bench::table_arguments {
  int tokens = 256;
  bool all_orders = false;
};

struct setting {
  bench::decoding_method method;
  espalier::commit_mode commit;
  espalier::node_order order;

  std::string commit_name() const { return commit == espalier::commit_mode::compact ? "compact" : "truncate"; }
  std::string order_name() const {
    constexpr const char* names[] = {"insertion", "breadth first", "depth first", "heavy path"};
    return names[static_cast<int>(order)];
  }
};

struct tally {
  std::int64_t texts = 0, equal_texts = 0;
  std::int64_t tokens = 0, equal_tokens = 0;  // equal: those before the first difference of their text

  void add(const std::vector<espalier::token_id>& text, const std::vector<espalier::token_id>& expected) {
    const auto equal = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end()).first - text.begin();
    ++texts;
    equal_texts += text == expected ? 1 : 0;
    tokens += static_cast<std::int64_t>(expected.size());
    equal_tokens += equal;
  }
};

std::vector<setting> settings_of(bool all_orders) {
  using espalier::node_order;
  std::vector<bench::decoding_method> methods = bench::paper_methods();
  methods.push_back({"chain K=8", espalier::chain_options{.length = 8}});
  espalier::dynatree_options small;
  small.budget = 12;
  small.prune_probability = small.stop_probability = small.deep_probability = 0.02;
  methods.push_back({"DynaTree, 12 nodes", small});
  std::vector<setting> settings;
  for (const bench::decoding_method& method : methods) {
    for (const auto commit : {espalier::commit_mode::compact, espalier::commit_mode::truncate}) {
      for (const auto order :
           {node_order::insertion, node_order::breadth_first, node_order::depth_first, node_order::heavy_path}) {
        if (order == node_order::insertion || all_orders) settings.push_back({method, commit, order});
      }
    }
  }
  return settings;
}

arguments parse(int argc, char** argv, CLI::App& app) {
  arguments a;
  a.add_to(app);
  bench::add_count(app, "--tokens", a.tokens, "tokens to write after each prompt");
  app.add_flag("--all-orders", a.all_orders, "also the other three orders of the tree's rows");
  app.parse(argc, argv);
  return a;
}

int run(const arguments& a) {
  auto models = models::model_folder::load(a.models, {.threads = a.threads, .max_rows = 320});
  const auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.tokens);
  bench::greedy_writer writer(models);
  const std::vector<setting> settings = settings_of(a.all_orders);
  std::vector<tally> tallies(settings.size());
  std::string first_difference;
  std::size_t n_prompts = 0, done = 0;
  for (const auto& domain : domains)
    n_prompts += domain.prompts.size();
  for (const auto& domain : domains) {
    for (std::size_t p = 0; p < domain.prompts.size(); ++p) {
      bench::progress(fmt::format("{} of {} prompts", done++, n_prompts));
      const auto expected = writer.write(bench::paper_methods()[0], domain.prompts[p], a.tokens).tokens;
      for (std::size_t i = 0; i < settings.size(); ++i) {
        const setting& s = settings[i];
        const auto text = writer.write(s.method, domain.prompts[p], a.tokens, s.commit, s.order).tokens;
        tallies[i].add(text, expected);
        if (text == expected || !first_difference.empty()) continue;
        const auto at = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end()).first - text.begin();
        first_difference = fmt::format("{}, prompt {}: token {} of {} ({}, {}) differs from plain decoding's.",
                                       domain.name, p + 1, at + 1, s.method.name, s.commit_name(), s.order_name());
      }
    }
  }
  bench::progress("");

  std::string table = fmt::format(
      "## Greedy equality\n\n{} prompts, {} tokens each, against plain decoding with a compacting cache.\n\n"
      "| method | commit | order | texts | equal | tokens | equal |\n|---|---|---|--:|--:|--:|--:|\n",
      n_prompts, a.tokens);
  nlohmann::json rows = nlohmann::json::array();
  tally all;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const tally& t = tallies[i];
    table += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", settings[i].method.name, settings[i].commit_name(),
                         settings[i].order_name(), t.texts, t.equal_texts, t.tokens, t.equal_tokens);
    rows.push_back({{"method", settings[i].method.name},
                    {"commit", settings[i].commit_name()},
                    {"order", settings[i].order_name()},
                    {"texts", t.texts},
                    {"equal_texts", t.equal_texts},
                    {"tokens", t.tokens},
                    {"equal_tokens", t.equal_tokens}});
    all.texts += t.texts, all.equal_texts += t.equal_texts;
    all.tokens += t.tokens, all.equal_tokens += t.equal_tokens;
  }
  table += fmt::format("\n{} of {} texts are equal ({:.3f} %), {} tokens compared. {}\n", all.equal_texts, all.texts,
                       100.0 * static_cast<double>(all.equal_texts) / static_cast<double>(all.texts), all.tokens,
                       first_difference.empty() ? "No difference." : "First difference: " + first_difference);
  bench::report(table, a.markdown);
  if (!a.json.empty()) {
    bench::write_file(a.json, nlohmann::json{{"bench", "greedy_equality"},
                                             {"prompts", n_prompts},
                                             {"tokens_each", a.tokens},
                                             {"settings", rows},
                                             {"first_difference", first_difference}}
                                  .dump(1));
  }
  return all.equal_texts == all.texts ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program("bench_tables_greedy_equality",
                            "Greedy equality: every method writes, token for token, what plain decoding writes.\n"
                            "Exits with 1 if one does not, and names the first difference.",
                            [&](CLI::App& app) { return run(parse(argc, argv, app)); });
}
