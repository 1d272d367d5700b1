// SPDX-License-Identifier: BSL-1.0
// Makes the tables of DynaTree (second paper, Tables 1 to 4) with a pair of models on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "decoding_method.hpp"
#include "interval.hpp"
#include "markdown_table.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "speedup_plot.hpp"
#include "timed_texts.hpp"
#include "tuning.hpp"

namespace {

using bench::decoding_method;
using bench::interval;
using bench::markdown_table;

struct arguments : bench::priced_arguments {
  int tokens = 256;
  int repeats = 3;
  int tune = 5;
  std::string plot;
  std::vector<std::string> methods;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.tokens, "tokens to write after each prompt", 2);
  program.add("--repeats", a.repeats, "times that everything is run; the median counts");
  program.add("--tune", a.tune,
              "prompts of each domain on which the best chain and trees are chosen; the tables are of the others");
  program.add("--plot", a.plot, "also draw the speedups to this file, as SVG");
  program.add("--methods", a.methods,
              "only these of the published methods, beside plain, the fixed tree and the chosen ones; empty: all");
}

std::string describe(const decoding_method& method) {
  if (const auto* chain = std::get_if<espalier::chain_options>(&method.policy))
    return fmt::format("length {}", chain->length);
  if (const auto* streaming = std::get_if<bench::streaming_chain>(&method.policy))
    return fmt::format("length {}, drafted over the first {} tokens and {} to {} last ones", streaming->chain.length,
                       streaming->window.sinks, streaming->window.window,
                       streaming->window.window + streaming->window.block);
  if (const auto* assisted = std::get_if<espalier::adaptive_chain_options>(&method.policy))
    return fmt::format("length {} at first, at most {}, confidence {:g}", assisted->length, assisted->max_length,
                       assisted->confidence);
  if (const auto* eagle = std::get_if<espalier::eagle2_options>(&method.policy))
    return fmt::format("beam {}, depth {}, budget {}", eagle->beam, eagle->depth, eagle->budget);
  if (const auto* fixed = std::get_if<espalier::fixed_options>(&method.policy))
    return fmt::format("depth {}, breadth {}, budget {}", fixed->depth, fixed->breadth, fixed->budget);
  if (const auto* o = std::get_if<espalier::dynatree_options>(&method.policy)) return bench::in_words(*o);
  return "one token a round";
}

// The papers' Accept columns are tokens a round, the bonus token included, over a length of theirs: the first paper's is
// K for a chain and D + 1 for a tree, the second paper's is D_0 + 2. 0 where the paper names none.
double length_of_first_paper(const decoding_method& method) {
  if (const auto* chain = std::get_if<espalier::chain_options>(&method.policy)) return chain->length;
  if (const auto* fixed = std::get_if<espalier::fixed_options>(&method.policy)) return fixed->depth + 1;
  if (const auto* tree = std::get_if<espalier::dynatree_options>(&method.policy)) return tree->base_depth + 1;
  return 0;
}

double length_of_second_paper(const decoding_method& method) {
  const auto* tree = std::get_if<espalier::dynatree_options>(&method.policy);
  return tree == nullptr ? 0 : tree->base_depth + 2;
}

std::string share_of(double tokens, double length) {
  return length == 0 ? "" : fmt::format("{:.1f} %", 100 * tokens / length);
}

// The tables as Markdown and as JSON, and the plot, as deliver() takes them.
class dynatree_report {
 public:
  dynatree_report(std::string markdown, nlohmann::json json, std::string plot)
      : markdown_(std::move(markdown)), json_(std::move(json)), plot_(std::move(plot)) {}

  const std::string& markdown() const { return markdown_; }
  const nlohmann::json& json() const { return json_; }
  const std::string& plot() const { return plot_; }

 private:
  std::string markdown_;
  nlohmann::json json_;
  std::string plot_;
};

constexpr const char* fixed_name = "fixed tree";

std::size_t find(const std::vector<decoding_method>& list, const std::string& name) {
  return static_cast<std::size_t>(
      std::find_if(list.begin(), list.end(), [&](const decoding_method& m) { return m.name == name; }) - list.begin());
}

dynatree_report make_report(const std::vector<decoding_method>& list, const bench::timed_texts& written,
                            const std::vector<bench::prompt_domain>& domains, const arguments& a) {
  constexpr std::size_t plain = 0;
  const std::size_t fixed = find(list, fixed_name);
  std::vector<std::string> groups;
  std::size_t n_prompts = 0;
  for (const auto& domain : domains) {
    groups.push_back(domain.name);
    n_prompts += domain.prompts.size();
  }
  groups.push_back("average");

  markdown_table throughput("Tokens a second (Table 1)", groups),
      speedup("Speedup over plain decoding (Table 1)", groups);
  markdown_table tokens_a_round("Tokens a round (Table 3)", groups);
  markdown_table efficiency("Verification (Table 3), all domains",
                            {"drafted a round", "accepted of drafted", "path length", "tree depth", "rounds a text",
                             "Accept (first paper)", "Accept (second paper)"});
  markdown_table latency("Latency (Table 2), milliseconds, all domains", {"to the first token", "a token after it"});
  markdown_table ablation("Ablation (Table 4), average of the domains",
                          {"tokens a second", "speedup", "against fixed"});
  markdown_table stations("Share of each station, all domains", {"draft passes", "grow", "compile", "target passes",
                                                                 "verify", "commit", "beside passes", "ms a round"});
  nlohmann::json methods = nlohmann::json::array();
  std::vector<bench::bar_series> bars;

  const std::vector<interval> fixed_speedup = written.speedups(fixed, plain);
  const espalier::statistics plain_sum = written.total(plain);
  for (std::size_t m = 0; m < list.size(); ++m) {
    const std::string& name = list[m].name;
    const espalier::statistics sum = written.total(m);
    const auto rate = written.by_domain(m, [](const auto& s, auto, auto) { return s.throughput(); });
    const auto gain = written.speedups(m, plain);
    const auto length = written.tokens_per_round(m);
    throughput.row(name, bench::cells(rate, 0));
    speedup.row(name, bench::cells(gain, 2));
    tokens_a_round.row(name, bench::cells(length, 2));
    const double texts = static_cast<double>(sum.texts);
    efficiency.row(name, {fmt::format("{:.1f}", sum.drafted_per_round()),
                          m == plain ? "" : fmt::format("{:.1f} %", 100 * sum.acceptance_rate()),
                          fmt::format("{:.2f}", sum.acceptance_length()), fmt::format("{:.1f}", sum.depth()),
                          fmt::format("{:.1f}", static_cast<double>(sum.rounds) / texts),
                          share_of(sum.tokens_per_round(), length_of_first_paper(list[m])),
                          share_of(sum.tokens_per_round(), length_of_second_paper(list[m]))});
    latency.row(name, {fmt::format("{:.2f}", 1e3 * sum.time_to_first_token()),
                       fmt::format("{:.3f}", 1e3 * sum.time_per_token())});
    if (name == fixed_name || name.starts_with("+")) {
      ablation.row(name, {bench::in_words(rate.back(), 0), bench::in_words(gain.back(), 2),
                          fmt::format("{:+.1f} %", 100 * (gain.back().mean / fixed_speedup.back().mean - 1))});
    }
    const auto share = [&](double seconds) { return fmt::format("{:.2f} %", 100 * seconds / sum.seconds.total()); };
    stations.row(name, {share(sum.seconds.draft_forward), share(sum.seconds.grow), share(sum.seconds.compile),
                        share(sum.seconds.target_forward), share(sum.seconds.verify), share(sum.seconds.commit),
                        share(sum.seconds.overhead()),
                        fmt::format("{:.3f}", 1e3 * sum.seconds.total() / static_cast<double>(sum.rounds))});
    if (m != plain) bars.push_back({name, gain});

    nlohmann::json by = nlohmann::json::object();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      by[groups[g]] = {{"tokens_per_second", {rate[g].mean, rate[g].half_width}},
                       {"speedup", {gain[g].mean, gain[g].half_width}},
                       {"tokens_per_round", {length[g].mean, length[g].half_width}}};
    }
    methods.push_back({{"method", name},
                       {"settings", describe(list[m])},
                       {"domains", by},
                       {"speedup_of_total_time", sum.speedup(plain_sum)},
                       {"acceptance_rate", sum.acceptance_rate()},
                       {"acceptance_length", sum.acceptance_length()},
                       {"drafted_per_round", sum.drafted_per_round()},
                       {"tree_depth", sum.depth()},
                       {"rounds_per_text", static_cast<double>(sum.rounds) / texts},
                       {"time_to_first_token_seconds", sum.time_to_first_token()},
                       {"time_per_token_seconds", sum.time_per_token()},
                       {"overhead_share", sum.overhead()},
                       {"seconds",
                        {{"draft_forward", sum.seconds.draft_forward},
                         {"grow", sum.seconds.grow},
                         {"compile", sum.seconds.compile},
                         {"target_forward", sum.seconds.target_forward},
                         {"verify", sum.seconds.verify},
                         {"commit", sum.seconds.commit}}}});
  }

  const std::size_t best_tree = find(list, "best DynaTree");
  const interval over_plain = written.speedups(best_tree, plain).back();
  const interval over_chain = written.speedups(best_tree, find(list, "best chain")).back();
  const double by_total = written.total(best_tree).speedup(plain_sum);
  const std::string setting =
      fmt::format("{} prompts, {} tokens each, greedy; ± is the 95 % interval over prompts.", n_prompts, a.tokens);
  std::string text = fmt::format(
      "## DynaTree's tables\n\n{} Each figure is the median of {} run(s), the methods taking turns prompt by prompt. "
      "The "
      "best chain and trees were chosen on {} other prompts of each domain.\n\n"
      "**The best DynaTree is {:.2f} ± {:.2f} times as fast as plain decoding** ({:.2f} by total time) **and {:.2f} ± "
      "{:.2f} times as fast as the best chain**, prompt by prompt, on the average of the domains.\n\n| method | "
      "settings "
      "|\n|---|---|\n",
      setting, a.repeats, a.tune, over_plain.mean, over_plain.half_width, by_total, over_chain.mean,
      over_chain.half_width);
  for (const decoding_method& method : list)
    text += fmt::format("| {} | {} |\n", method.name, describe(method));
  for (const markdown_table* t : {&throughput, &speedup, &ablation, &tokens_a_round, &efficiency, &latency, &stations})
    text += t->text();
  nlohmann::json json = {{"bench", "dynatree"},
                         {"prompts", n_prompts},
                         {"tokens_each", a.tokens},
                         {"repeats", a.repeats},
                         {"best_tree_over_plain", {over_plain.mean, over_plain.half_width}},
                         {"best_tree_over_best_chain", {over_chain.mean, over_chain.half_width}},
                         {"methods", methods}};
  return {std::move(text), std::move(json), bench::speedup_plot("Speedup over plain decoding", setting, groups, bars)};
}

// The methods of the papers that were asked for, and plain and the fixed tree, which the others are compared with.
std::vector<decoding_method> published_methods(const std::vector<std::string>& asked) {
  std::vector<decoding_method> all = bench::paper_methods();
  if (asked.empty()) return all;
  std::string names;
  for (const decoding_method& method : all)
    names += (names.empty() ? "" : ", ") + method.name;
  for (const std::string& name : asked) {
    if (find(all, name) == all.size())
      espalier::raise<espalier::input_error>("There is no published method \"", name, "\": there are ", names, ".");
  }
  std::erase_if(all, [&](const decoding_method& method) {
    return method.name != "plain" && method.name != fixed_name &&
           std::find(asked.begin(), asked.end(), method.name) == asked.end();
  });
  return all;
}

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.tokens);
  const std::vector<bench::prompt_domain> tuning = bench::take_first_prompts(domains, a.tune);
  bench::greedy_writer writer(models, price.get());
  std::vector<decoding_method> methods = published_methods(a.methods);
  const bench::tuned_methods best = bench::tune(writer, tuning, a.tokens);
  methods.push_back({"first paper, tuned", best.first_paper});
  methods.push_back({"best chain", best.chain});
  methods.push_back({"best DynaTree", best.dynatree});
  const bench::timed_texts written(methods.size(), domains, a.repeats, "measuring",
                                   [&](std::size_t m, std::size_t d, std::size_t p) {
                                     return writer.write(methods[m], domains[d].prompts[p], a.tokens).stats;
                                   });
  bench::deliver(make_report(methods, written, domains, a), a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_dynatree",
      "The tables of DynaTree on a pair of models: plain decoding, chains, a fixed tree, both DynaTrees,\n"
      "with settings as published and as chosen on prompts that are not reported on.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] { return run(a); });
}
