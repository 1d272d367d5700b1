// SPDX-License-Identifier: BSL-1.0
// Makes the DynaTree papers' other tables, with a pair of models on this machine: how methods do by the length of the
// text (first paper, Table 4; second, Figure 5) and of the prompt (Table 6; Figure 8), what memory they take (Table 7;
// Table 6), and sweeps over the options of both papers' trees (Figures 3 and 7; Table 5, Figures 6 and 7).
#include <fmt/format.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "decoding_method.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/model/files/head_tokens.hpp"
#include "espalier/model/llama/key_turner.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "heat_map.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "model_tokenizer.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "timed_texts.hpp"
#include "tuning.hpp"

namespace {

using bench::decoding_method;
using bench::interval;
using bench::markdown_table;

struct arguments : bench::priced_arguments {
  std::vector<std::string> ask{"memory", "lengths", "prompts", "first", "second"};
  std::vector<int> lengths{64, 128, 256, 512};
  std::vector<int> prompt_lengths{50, 100, 200, 400};
  int tokens = 128;
  int measure = 2;
  int repeats = 1;
  bool quick = false;
  std::string plot;

  bool asks(const char* question) const { return std::find(ask.begin(), ask.end(), question) != ask.end(); }
};

// Returns the options of the first paper's tree.
espalier::dynatree_options first_paper(int depth, int breadth, double threshold) {
  auto o = espalier::dynatree_options::first_paper();
  o.base_depth = o.max_depth = depth;
  o.min_breadth = o.mid_breadth = o.max_breadth = breadth;
  o.prune_probability = threshold;
  return o;
}

// The methods that both papers compare by lengths, plain decoding first.
std::vector<decoding_method> compared_methods() {
  std::vector<decoding_method> list{{"plain", espalier::plain()}};
  for (const int length : {5, 6, 7})
    list.push_back({fmt::format("chain K={}", length), espalier::chain_options{.length = length}});
  list.push_back({"fixed tree", bench::fixed_tree_of_papers()});
  for (const int depth : {5, 6, 7, 8})
    list.push_back({fmt::format("first paper D={} B=2", depth), first_paper(depth, 2, 0.05)});
  list.push_back({"second paper", espalier::dynatree_options()});
  return list;
}

// Returns tokens a round, the bonus token included, over the length that the papers take for all that could be
// accepted: the first paper's K or D + 1, the second paper's D_0 + 2.
double accept(const decoding_method& method, double tokens_per_round) {
  if (const auto* chain = std::get_if<espalier::chain_options>(&method.policy)) return tokens_per_round / chain->length;
  const auto* tree = std::get_if<espalier::dynatree_options>(&method.policy);
  if (tree == nullptr) return 0;
  return tokens_per_round / (tree->history ? tree->base_depth + 2 : tree->base_depth + 1);
}

struct report {
  std::string tables{};
  nlohmann::json figures = {{"bench", "dynatree_sweeps"}};
  std::vector<bench::plot_panel> curves{};
  std::vector<bench::heat_panel> maps{};
};

// The texts of all methods in one case of several, such as a length.
struct measured_case {
  std::string name;
  bench::timed_texts texts;
};

void add_cases(report& out, const std::string& title, const std::string& axis, const std::vector<measured_case>& cases,
               const std::vector<decoding_method>& methods) {
  std::vector<std::string> names;
  for (const measured_case& one : cases)
    names.push_back(one.name);
  markdown_table rate(fmt::format("{}: tokens a second", title), names);
  markdown_table gain(fmt::format("{}: speedup over plain decoding", title), names);
  markdown_table tokens(fmt::format("{}: tokens a round, and Accept", title), names);
  bench::plot_panel speed{fmt::format("{}: speedup", title), axis, names, {}},
      length{fmt::format("{}: tokens a round", title), axis, names, {}};
  nlohmann::json json = nlohmann::json::object();
  for (std::size_t m = 0; m < methods.size(); ++m) {
    std::vector<std::string> rates, gains, lengths;
    std::vector<interval> speeds, rounds;
    for (const measured_case& one : cases) {
      const espalier::statistics sum = one.texts.total(m);
      speeds.push_back(one.texts.speedups(m, 0).back());
      rounds.push_back(one.texts.tokens_per_round(m).back());
      rates.push_back(fmt::format("{:.0f}", sum.throughput()));
      gains.push_back(bench::in_words(speeds.back(), 2));
      const double share = accept(methods[m], sum.tokens_per_round());
      lengths.push_back(share == 0 ? fmt::format("{:.2f}", sum.tokens_per_round())
                                   : fmt::format("{:.2f}, {:.1f} %", sum.tokens_per_round(), 100 * share));
      json[methods[m].name][one.name] = {{"tokens_per_second", sum.throughput()},
                                         {"speedup", {speeds.back().mean, speeds.back().half_width}},
                                         {"tokens_per_round", sum.tokens_per_round()},
                                         {"accept", share},
                                         {"rounds", sum.rounds}};
    }
    rate.row(methods[m].name, rates);
    gain.row(methods[m].name, gains);
    tokens.row(methods[m].name, lengths);
    if (m == 0) continue;
    speed.lines.push_back({m - 1, speeds});
    length.lines.push_back({m - 1, rounds});
  }
  out.tables += rate.text() + gain.text() + tokens.text();
  std::vector<std::string> best;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    std::size_t found = 0;
    for (std::size_t m = 1; m < methods.size(); ++m) {
      const bool is_tree = std::holds_alternative<espalier::dynatree_options>(methods[m].policy);
      if (is_tree &&
          (found == 0 || cases[c].texts.speedups(m, 0).back().mean > cases[c].texts.speedups(found, 0).back().mean))
        found = m;
    }
    best.push_back(fmt::format("{}: {}", names[c], methods[found].name));
  }
  out.tables += "\nThe fastest tree: ";
  for (std::size_t i = 0; i < best.size(); ++i)
    out.tables += (i == 0 ? "" : "; ") + best[i];
  out.tables += ".\n";
  out.figures[title] = json;
  out.curves.push_back(std::move(speed));
  out.curves.push_back(std::move(length));
}

// A part of a sweep: a tree for each pair of two options' values, or none where they do not go together.
struct grid {
  bench::heat_panel panel;
  std::vector<std::vector<int>> settings;  // [rows][columns] number of the method, or -1
};

template <class RowT, class ColumnT, class MakeT>
grid grid_of(std::string title, std::string row_name, const std::vector<RowT>& rows, std::string column_name,
             const std::vector<ColumnT>& columns, std::vector<decoding_method>& methods, const MakeT& make) {
  grid made{{std::move(title), std::move(row_name), std::move(column_name), {}, {}, {}}, {}};
  for (const ColumnT column : columns)
    made.panel.columns.push_back(fmt::format("{}", column));
  for (const RowT row : rows) {
    made.panel.rows.push_back(fmt::format("{}", row));
    auto& numbers = made.settings.emplace_back();
    for (const ColumnT column : columns) {
      const std::optional<espalier::dynatree_options> options = make(row, column);
      numbers.push_back(options ? static_cast<int>(methods.size()) : -1);
      if (options) methods.push_back({bench::in_words(*options), *options});
    }
  }
  return made;
}

// The first paper's sweep over depth, breadth and threshold, a grid for each breadth.
std::vector<grid> first_sweep(std::vector<decoding_method>& methods, bool quick) {
  std::vector<grid> grids;
  const std::vector<int> depths = quick ? std::vector<int>{4, 8} : std::vector<int>{3, 4, 5, 6, 7, 8};
  const std::vector<double> thresholds =
      quick ? std::vector<double>{0.03, 0.1} : std::vector<double>{0.01, 0.02, 0.03, 0.05, 0.1};
  for (const int breadth : {2, 3, 4}) {
    grids.push_back(grid_of(fmt::format("B = {}", breadth), "D", depths, "tau", thresholds, methods,
                            [&](int depth, double threshold) -> std::optional<espalier::dynatree_options> {
                              return first_paper(depth, breadth, threshold);
                            }));
  }
  return grids;
}

// The second paper's sweep over thresholds of confidence, bounds of breadth, and depths.
std::vector<grid> second_sweep(std::vector<decoding_method>& methods, bool quick) {
  using maybe = std::optional<espalier::dynatree_options>;
  std::vector<grid> grids;
  const auto few = [&](auto list) {
    if (quick) list.resize(2);
    return list;
  };
  grids.push_back(grid_of("confidence", "tau_h", few(std::vector<double>{0.7, 0.8, 0.9, 0.95}), "tau_l",
                          few(std::vector<double>{0.2, 0.3, 0.4, 0.5, 0.7}), methods, [](double high, double low) {
                            espalier::dynatree_options o;
                            o.high_confidence = high, o.low_confidence = low;
                            return low <= high ? maybe(o) : maybe();
                          }));
  grids.push_back(grid_of("breadth", "B_min", few(std::vector<int>{1, 2, 3}), "B_max",
                          few(std::vector<int>{1, 2, 3, 4, 5}), methods, [](int least, int most) {
                            espalier::dynatree_options o;
                            o.min_breadth = least, o.max_breadth = most;
                            o.mid_breadth = std::clamp(2, least, std::max(least, most));
                            return least <= most ? maybe(o) : maybe();
                          }));
  grids.push_back(grid_of("depth", "D_0", few(std::vector<int>{3, 4, 5, 6, 8}), "D_max",
                          few(std::vector<int>{6, 8, 10, 12}), methods, [](int base, int most) {
                            espalier::dynatree_options o;
                            o.base_depth = base, o.max_depth = most;
                            return base <= most ? maybe(o) : maybe();
                          }));
  return grids;
}

void add_sweep(report& out, const std::string& title, std::vector<grid> grids,
               const std::vector<decoding_method>& methods, const bench::timed_texts& texts) {
  std::size_t best = 1;
  for (std::size_t m = 1; m < methods.size(); ++m)
    if (texts.speedups(m, 0).back().mean > texts.speedups(best, 0).back().mean) best = m;
  for (grid& each : grids) {
    markdown_table table(fmt::format("{}, {}: speedup, tokens a round; {} down, {} across", title, each.panel.title,
                                     each.panel.row_name, each.panel.column_name),
                         each.panel.columns, each.panel.row_name);
    for (std::size_t r = 0; r < each.settings.size(); ++r) {
      std::vector<std::string> cells;
      auto& values = each.panel.values.emplace_back();
      for (const int number : each.settings[r]) {
        if (number < 0) {
          cells.emplace_back();
          values.push_back(std::numeric_limits<double>::quiet_NaN());
          continue;
        }
        const auto m = static_cast<std::size_t>(number);
        const double speedup = texts.speedups(m, 0).back().mean, tokens = texts.total(m).tokens_per_round();
        cells.push_back(fmt::format("{:.2f}, {:.2f}", speedup, tokens));
        values.push_back(speedup);
        out.figures[title].push_back(
            {{"settings", methods[m].name}, {"speedup", speedup}, {"tokens_per_round", tokens}});
      }
      table.row(each.panel.rows[r], cells);
    }
    out.tables += table.text();
    each.panel.title = fmt::format("{}, {}", title, each.panel.title);
    out.maps.push_back(std::move(each.panel));
  }
  out.tables += fmt::format(
      "\nThe fastest of {} settings: {}, {:.2f} over plain decoding with {:.2f} tokens a round.\n", methods.size() - 1,
      methods[best].name, texts.speedups(best, 0).back().mean, texts.total(best).tokens_per_round());
}

// Returns the megabytes of memory that this process holds. Freed memory is given back to the system first, where that
// is possible. Where the system does not say what a process holds, it is the most that the process has held.
double megabytes_held() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  double pages = 0, held = 0;
  if (std::ifstream file("/proc/self/statm"); file >> pages >> held)
    return held * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) / 1024;
}

// Loads what a method needs, writes the first prompt's text, and returns the megabytes that the process then holds.
double write_alone(const decoding_method& method, const arguments& a) {
  constexpr int most_rows = 320;
  const models::model_paths paths = a.models.resolved();
  const espalier::tokenizer text = models::detail::tokenizer_of(a.models.model);
  const models::prompt first = models::read_prompts(a.prompts).front();
  const auto prompt = first.tokens.empty() ? text.encode_prompt(first.text) : first.tokens;
  const auto load = [&](const std::string& path, const std::string& tokens) {
    espalier::llama_options options{.threads = a.threads, .max_rows = most_rows};
    const int vocab = espalier::model_files::open(path).config.vocab_size;
    if (!tokens.empty()) options.head_tokens = espalier::read_head_tokens(tokens, vocab);
    return espalier::llama_backend::load(path, options);
  };
  const auto cache = [&](const espalier::llama_backend& model) {
    return espalier::host_cache(model.config(), 1, model.max_positions(), {.rows = 2 * most_rows});
  };
  espalier::llama_backend target = load(paths.model, "");
  espalier::recurrent_kv kv = cache(target);
  const auto write = [&](auto drafter, auto policy) {
    auto decode = espalier::make_decoder(std::move(drafter), std::move(policy), espalier::greedy(), kv, target);
    decode.generate(prompt, {.max_tokens = a.tokens});
    return megabytes_held();
  };
  return std::visit(
      [&]<class OptionsT>(const OptionsT& options) {
        if constexpr (std::is_same_v<OptionsT, espalier::plain>) {
          return write(espalier::no_drafter(), options);
        } else {
          espalier::llama_backend draft = load(paths.draft, paths.head_tokens);
          const espalier::sampling_options at_one{.temperature = 1.0F};
          if constexpr (std::is_same_v<OptionsT, bench::streaming_chain>) {
            const espalier::model_config& c = draft.config();
            espalier::sink_window_kv window(c.n_layers, c.kv_size(), 1, options.window,
                                            espalier::key_turner(c, draft.max_positions()));
            return write(espalier::autoregressive(draft, window, at_one), bench::policy_of(options.chain));
          } else {
            espalier::recurrent_kv draft_kv = cache(draft);
            return write(espalier::autoregressive(draft, draft_kv, at_one), bench::policy_of(options));
          }
        }
      },
      method.policy);
}

// Returns the megabytes that a process of its own holds once it has loaded what a method needs and written a text.
//
// Errors      input_error if that process fails
double megabytes_of(const decoding_method& method, const arguments& a) {
  bench::progress(fmt::format("memory: {}", method.name));
  int ends[2];
  if (pipe(ends) != 0) espalier::raise<espalier::input_error>("no pipe could be made.");
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) {
    double megabytes = 0;
    try {
      megabytes = write_alone(method, a);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    const bool fine = write(ends[1], &megabytes, sizeof megabytes) == sizeof megabytes && megabytes > 0;
    _exit(fine ? 0 : 1);
  }
  close(ends[1]);
  double megabytes = 0;
  const bool is_read = process > 0 && read(ends[0], &megabytes, sizeof megabytes) == sizeof megabytes;
  close(ends[0]);
  int status = 0;
  if (process > 0) waitpid(process, &status, 0);
  if (!is_read || status != 0)
    espalier::raise<espalier::input_error>("the process that writes by ", method.name, " alone has failed.");
  return megabytes;
}

void add_memory(report& out, const std::vector<decoding_method>& methods, const arguments& a) {
  markdown_table table("Memory of a process that holds what the method needs, after one text",
                       {"megabytes", "over plain"});
  double plain = 0;
  for (const decoding_method& method : methods) {
    const double megabytes = megabytes_of(method, a);
    if (plain == 0) plain = megabytes;
    table.row(method.name, {fmt::format("{:.1f}", megabytes), fmt::format("{:+.1f} %", 100 * (megabytes / plain - 1))});
    out.figures["memory"][method.name] = megabytes;
  }
  out.tables += table.text();
}

// Prompts of exactly `length` tokens: the prompts of a domain one after the other, beginning with each of the first.
std::vector<bench::prompt_domain> joined(const std::vector<bench::prompt_domain>& domains, int length, int measure) {
  std::vector<bench::prompt_domain> made;
  for (const bench::prompt_domain& domain : domains) {
    made.push_back({domain.name, {}, domain.temperature});
    for (std::size_t p = 0; p < std::min(domain.prompts.size(), static_cast<std::size_t>(measure)); ++p) {
      std::vector<espalier::token_id> tokens;
      for (std::size_t i = p; tokens.size() < static_cast<std::size_t>(length); i = (i + 1) % domain.prompts.size()) {
        // Only the first prompt keeps the token that begins a text.
        const auto& next = domain.prompts[i];
        tokens.insert(tokens.end(), next.begin() + (tokens.empty() ? 0 : 1), next.end());
      }
      tokens.resize(static_cast<std::size_t>(length));
      made.back().prompts.push_back(std::move(tokens));
    }
  }
  return made;
}

class measurement {
 public:
  measurement(const arguments& a, const models::price_table* price)
      : a_(a),
        models_(models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320})),
        domains_(bench::read_prompt_domains(a.prompts, models_, a.domains, longest_text(a))),
        writer_(models_, price) {
    few_ = domains_;
    for (bench::prompt_domain& domain : few_)
      domain.prompts.resize(std::min(domain.prompts.size(), static_cast<std::size_t>(a.measure)));
  }

  void lengths(report& out) {
    const std::vector<decoding_method> methods = compared_methods();
    std::vector<measured_case> cases;
    for (const int length : a_.lengths)
      cases.push_back({std::to_string(length), write(methods, few_, length, fmt::format("{} tokens", length))});
    add_cases(out, "By the length of the text", "tokens written", cases, methods);
  }

  void prompts(report& out) {
    const std::vector<decoding_method> methods = compared_methods();
    std::vector<measured_case> cases;
    for (const int length : a_.prompt_lengths) {
      if (length + a_.tokens > models_.drafted_context()) {
        espalier::raise<espalier::input_error>("a prompt of ", length, " tokens and ", a_.tokens,
                                               " more do not fit the models' context of ", models_.drafted_context(),
                                               ".");
      }
      cases.push_back({std::to_string(length), write(methods, joined(domains_, length, a_.measure), a_.tokens,
                                                     fmt::format("prompts of {}", length))});
    }
    add_cases(out, "By the length of the prompt", "tokens of the prompt", cases, methods);
  }

  template <class SweepT>
  void sweep(report& out, const std::string& title, const SweepT& grids_of) {
    std::vector<decoding_method> methods{{"plain", espalier::plain()}};
    std::vector<grid> grids = grids_of(methods, a_.quick);
    const bench::timed_texts texts = write(methods, few_, a_.tokens, title);
    add_sweep(out, title, std::move(grids), methods, texts);
  }

  std::string setting() const {
    std::size_t n = 0;
    for (const bench::prompt_domain& domain : few_)
      n += domain.prompts.size();
    return fmt::format("{} prompts of {} domains, greedy, {} tokens each where nothing else is said", n, few_.size(),
                       a_.tokens);
  }

 private:
  static int longest_text(const arguments& a) {
    int most = a.tokens;
    if (a.asks("lengths")) most = std::max(most, *std::max_element(a.lengths.begin(), a.lengths.end()));
    return most;
  }

  bench::timed_texts write(const std::vector<decoding_method>& methods,
                           const std::vector<bench::prompt_domain>& domains, int tokens, const std::string& what) {
    return bench::timed_texts(methods.size(), domains, a_.repeats, what.c_str(),
                              [&](std::size_t m, std::size_t d, std::size_t p) {
                                return writer_.write(methods[m], domains[d].prompts[p], tokens).stats;
                              });
  }

  const arguments& a_;
  models::model_set models_;
  std::vector<bench::prompt_domain> domains_, few_;
  bench::greedy_writer writer_;
};

int run(const arguments& a) {
  for (const std::string& question : a.ask) {
    if (const arguments all; !all.asks(question.c_str())) {
      espalier::raise<espalier::input_error>("--ask must name memory, lengths, prompts, first or second, but names ",
                                             question, ".");
    }
  }
  const auto price = a.load_price();
  report out;
  std::string setting;
  // First, while this process holds no model.
  if (a.asks("memory")) add_memory(out, bench::paper_methods(), a);
  if (a.ask != std::vector<std::string>{"memory"}) {
    measurement m(a, price.get());
    if (a.asks("lengths")) m.lengths(out);
    if (a.asks("prompts")) m.prompts(out);
    if (a.asks("first")) m.sweep(out, "First paper's tree", first_sweep);
    if (a.asks("second")) m.sweep(out, "Second paper's tree", second_sweep);
    setting = m.setting() + "; ± is the 95 % interval over prompts. ";
  }
  bench::report(
      fmt::format("## DynaTree by lengths and options\n\n{}{}Accept is the papers' column: tokens a round, the bonus "
                  "token included, over K of a chain, D + 1 of the first paper's tree and D_0 + 2 of the second's.\n{}",
                  price ? "**" + price->in_words() + "**\n\n" : "", setting, out.tables),
      a.markdown);
  if (price) out.figures["price"] = price->json();
  if (!a.json.empty()) bench::write_file(a.json, out.figures.dump(1));
  if (a.plot.empty()) return 0;
  const std::string note =
      price ? "Seconds at the prices of " + price->file : "Speedup over plain decoding, by the clock";
  std::vector<std::string> names;
  for (const decoding_method& method : compared_methods())
    if (method.name != "plain") names.push_back(method.name);
  if (!out.maps.empty())
    bench::write_file(a.plot + "_sweeps.svg",
                      bench::heat_map("Sweeps over DynaTree's options: speedup over plain decoding", note, out.maps));
  if (!out.curves.empty())
    bench::write_file(a.plot + "_lengths.svg", bench::line_plot("DynaTree by lengths", note, names, out.curves));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_dynatree_sweeps",
      "DynaTree by the length of the text and of the prompt, the memory that methods take, and sweeps\n"
      "over the options of both papers' trees, on a pair of models.");
  arguments a;
  a.add_to(program);
  program.add("--ask", a.ask, "only these of its tables");
  program.add("--lengths", a.lengths, "tokens of a text, for lengths", 2, 1 << 16);
  program.add("--prompt-lengths", a.prompt_lengths, "tokens of a prompt, for prompts", 2, 1 << 16);
  program.add("--tokens", a.tokens, "tokens of a text, for the other tables", 2);
  program.add("--measure", a.measure, "prompts of each domain at most");
  program.add("--repeats", a.repeats, "times that each text is written; the median counts");
  program.add("--quick", a.quick, "one prompt a domain, two lengths of 24 and 48 tokens, small sweeps");
  program.add("--plot", a.plot, "also draw PATH_lengths.svg and PATH_sweeps.svg");
  return program.run(argc, argv, [&] {
    if (a.quick) a.measure = 1, a.tokens = 24, a.lengths = {24, 48}, a.prompt_lengths = {24, 48};
    return run(a);
  });
}
