// SPDX-License-Identifier: BSL-1.0
// Compares ways of serving many texts at once: plain batched decoding, static chains and trees, and trees that share
// the budget of a round.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../serving_load.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "model_costs.hpp"
#include "model_set.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "table_arguments.hpp"

namespace {

struct arguments : bench::table_arguments {
  std::vector<int> texts{1, 2, 4, 8, 16, 32, 64};
  std::vector<int> loads{30, 60, 90};
  int tokens = 64;
  int repeats = 5;
  int arrivals = 192;
  float temperature = 0;
  bool sampled = false;
  std::string plot;
};

enum class kind { plain, chain, tree, shared };

struct method {
  std::string name;
  kind is;
  std::function<bench::served_load(std::int32_t, const std::vector<bench::asked_text>&)> serve;
};

// The caches that all methods share, empty at the beginning of each.
struct caches {
  espalier::recurrent_kv target, draft;
  std::int32_t n;

  caches(models::model_set& models, std::int32_t n_texts)
      : target(of(models.target, n_texts)), draft(of(models.draft_model(), n_texts)), n(n_texts) {}

  void clear() {
    for (std::int32_t i = 0; i < n; ++i)
      target.truncate(i, 0), draft.truncate(i, 0);
  }

 private:
  // With room for two passes over the nodes about which best_first asks a draft.
  static espalier::recurrent_kv of(const espalier::llama_backend& model, std::int32_t n) {
    return espalier::host_cache(model.config(), n, model.max_positions(), {.rows = 512});
  }
};

// Serves with a batch_decoder of these parts, at most n texts at once.
template <class DrafterT, class PolicyT, class VerifierT>
bench::served_load serve(models::model_set& models, DrafterT&& drafter, PolicyT policy, VerifierT verifier,
                         espalier::recurrent_kv& kv, std::int32_t n, const std::vector<bench::asked_text>& asked,
                         const espalier::sampling_options& sampling) {
  auto decode = espalier::make_batch_decoder(
      drafter, std::move(policy), std::move(verifier), kv, models.target,
      {.max_texts = n, .max_waiting = static_cast<std::int32_t>(asked.size()), .max_rows = models.target.max_rows()});
  return bench::serve(decode, asked, sampling);
}

std::vector<method> methods_of(models::model_set& models, caches& kv, const espalier::cost_model& costs,
                               const espalier::sampling_options& sampling) {
  using espalier::target_only;
  std::vector<method> list;
  list.push_back({"plain", kind::plain, [&models, &kv, sampling](std::int32_t n, const auto& asked) {
                    kv.clear();
                    return serve(models, espalier::no_drafter(), espalier::plain(), target_only(), kv.target, n, asked,
                                 sampling);
                  }});
  const auto add = [&](std::string name, kind is, auto policy) {
    list.push_back({std::move(name), is, [&models, &kv, sampling, policy](std::int32_t n, const auto& asked) {
                      kv.clear();
                      espalier::autoregressive drafter(models.draft_model(), kv.draft);
                      return serve(models, drafter, policy, target_only(), kv.target, n, asked, sampling);
                    }});
  };
  for (const std::int32_t length : {1, 2, 3, 4, 6, 8})
    add(fmt::format("chain of {}", length), kind::chain, espalier::chain({.length = length}));
  for (const std::int32_t budget : {4, 8, 16})
    add(fmt::format("best first, {} nodes", budget), kind::tree, espalier::best_first({.budget = budget}));
  add("shared budget", kind::shared, espalier::cost_aware({.budget = 16}, costs));
  return list;
}

// Texts of all domains in turn, from number `first` on.
std::vector<bench::asked_text> texts_of(const std::vector<bench::prompt_domain>& domains, std::size_t first,
                                        std::size_t n, int tokens) {
  std::vector<bench::asked_text> texts;
  for (std::size_t i = first; i < first + n; ++i) {
    const auto& prompts = domains[i % domains.size()].prompts;
    texts.push_back({prompts[i / domains.size() % prompts.size()], tokens, 0});
  }
  return texts;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// The rates by number of texts, method and repeat; other results are those of the last repeat.
struct closed_results {
  std::vector<std::vector<std::vector<double>>> rates;  // [texts][methods][repeats]
  std::vector<std::vector<bench::served_load>> last;    // [texts][methods]

  bench::interval ratio(std::size_t n, std::size_t m, std::size_t to) const {
    std::vector<double> ratios;
    for (std::size_t r = 0; r < rates[n][m].size(); ++r)
      ratios.push_back(rates[n][m][r] / rates[n][to][r]);
    return bench::interval_of(ratios);
  }
};

closed_results measure_closed(const arguments& a, const std::vector<method>& methods,
                              const std::vector<bench::prompt_domain>& domains) {
  closed_results results;
  for (const int n : a.texts) {
    auto& rates = results.rates.emplace_back(methods.size());
    auto& last = results.last.emplace_back(methods.size());
    const auto n_texts = static_cast<std::size_t>(std::max(24, 2 * n));
    for (int r = 0; r < a.repeats; ++r) {
      const auto asked = texts_of(domains, n_texts * static_cast<std::size_t>(r), n_texts, a.tokens);
      for (std::size_t i = 0; i < methods.size(); ++i) {
        // Methods take turns and each repeat begins with another one, since the machine's speed changes.
        const std::size_t m = (i + static_cast<std::size_t>(r)) % methods.size();
        bench::progress(fmt::format("{} texts at once, repeat {} of {}: {}", n, r + 1, a.repeats, methods[m].name));
        last[m] = methods[m].serve(n, asked);
        rates[m].push_back(last[m].rate());
      }
    }
  }
  return results;
}

struct open_result {
  int load;  // per cent of the texts that plain decoding can serve
  std::size_t method;
  bench::served_load served;
};

std::size_t best_of(const closed_results& closed, const std::vector<method>& methods, std::size_t n,
                    const std::function<bool(kind)>& takes) {
  std::size_t best = 0;
  double most = -1;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const double rate = bench::interval_of(closed.rates[n][m]).mean;
    if (takes(methods[m].is) && rate > most) most = rate, best = m;
  }
  return best;
}

bool is_static(kind is) {
  return is != kind::shared;
}

// The static method that is best over all numbers of texts together, by the mean logarithm of its rates.
std::size_t best_overall(const closed_results& closed, const std::vector<method>& methods) {
  std::size_t best = 0;
  double most = -1e300;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    double sum = 0;
    for (const auto& rates : closed.rates)
      sum += std::log(bench::interval_of(rates[m]).mean);
    if (is_static(methods[m].is) && sum > most) most = sum, best = m;
  }
  return best;
}

std::vector<open_result> measure_open(const arguments& a, const std::vector<method>& methods,
                                      const closed_results& closed, const std::vector<bench::prompt_domain>& domains) {
  std::vector<open_result> results;
  const double most = bench::interval_of(closed.rates.back()[0]).mean / a.tokens;  // texts a second
  const std::size_t overall = best_overall(closed, methods);
  std::vector<std::size_t> chosen{0, methods.size() - 1};
  if (overall != 0) chosen.insert(chosen.begin() + 1, overall);
  for (const int load : a.loads) {
    auto asked = texts_of(domains, 0, static_cast<std::size_t>(a.arrivals), a.tokens);
    std::mt19937_64 random(static_cast<std::uint64_t>(load));
    std::exponential_distribution<double> pause(most * load / 100);
    double arrival = 0.001;
    for (bench::asked_text& text : asked)
      text.arrival = arrival += pause(random);
    for (const std::size_t m : chosen) {
      bench::progress(fmt::format("arrivals at {} %: {}", load, methods[m].name));
      results.push_back({load, m, methods[m].serve(a.texts.back(), asked)});
    }
  }
  return results;
}

class serving_report {
 public:
  serving_report(const arguments& a, const std::vector<method>& methods, const closed_results& closed,
                 const std::vector<open_result>& open, std::string hardware)
      : a_(a), methods_(methods), closed_(closed), open_(open), hardware_(std::move(hardware)) {}

  std::string markdown() const {
    std::string text = fmt::format(
        "## Many texts at once\n\n{}; {} tokens a text, temperature {}, prompts of all domains in turn. Texts wait, so "
        "that all places are in use; rates are of that time, prompts included. Ratios are of repeats with the same "
        "prompts, {} of them, methods in turn, with 95 % intervals.\n",
        hardware_, a_.tokens, a_.temperature, a_.repeats);
    const auto columns = names_of_texts();
    bench::markdown_table rates("Tokens a second, by texts at once", columns);
    bench::markdown_table ratios("The same over plain batched decoding", columns);
    bench::markdown_table first("Seconds to the first token, median of the last repeat", columns);
    bench::markdown_table rounds("Tokens a round and text, drafted tokens, draft passes a step", columns);
    bench::markdown_table beside("Beside forward passes, per cent", columns);
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      std::vector<std::string> rate, ratio, wait, round, own;
      for (std::size_t n = 0; n < closed_.rates.size(); ++n) {
        const bench::served_load& l = closed_.last[n][m];
        const double text_rounds = static_cast<double>(l.steps) * a_.texts[n];
        rate.push_back(fmt::format("{:.0f}", bench::interval_of(closed_.rates[n][m]).mean));
        ratio.push_back(bench::in_words(closed_.ratio(n, m, 0), 2));
        wait.push_back(fmt::format("{:.3f}", quantile(l.first, 0.5)));
        round.push_back(fmt::format("{:.2f}, {:.2f}, {:.2f}", static_cast<double>(l.tokens) / text_rounds,
                                    static_cast<double>(l.drafted) / text_rounds,
                                    static_cast<double>(l.draft_passes) / static_cast<double>(l.steps)));
        own.push_back(fmt::format("{:.1f}", 100 * l.overhead()));
      }
      rates.row(methods_[m].name, rate);
      ratios.row(methods_[m].name, ratio);
      first.row(methods_[m].name, wait);
      rounds.row(methods_[m].name, round);
      beside.row(methods_[m].name, own);
    }
    text += rates.text() + ratios.text() + first.text() + rounds.text() + beside.text() + summary() + arrivals();
    return text;
  }

  nlohmann::json json() const {
    nlohmann::json out{{"bench", "serving"}, {"hardware", hardware_}, {"texts", a_.texts}};
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      nlohmann::json rates = nlohmann::json::array();
      for (const auto& by_method : closed_.rates)
        rates.push_back(by_method[m]);
      out["tokens_a_second"][methods_[m].name] = rates;
    }
    for (const open_result& o : open_) {
      out["arrivals"].push_back({{"load", o.load},
                                 {"method", methods_[o.method].name},
                                 {"first_p50", quantile(o.served.first, 0.5)},
                                 {"first_p99", quantile(o.served.first, 0.99)},
                                 {"each_p50", quantile(o.served.each, 0.5)},
                                 {"each_p99", quantile(o.served.each, 0.99)}});
    }
    return out;
  }

  std::string plot() const {
    const std::size_t shared = methods_.size() - 1;
    std::vector<bench::interval> best_chain, best_tree, of_shared, of_single;
    const std::size_t single = best_overall(closed_, methods_);
    for (std::size_t n = 0; n < closed_.rates.size(); ++n) {
      best_chain.push_back(closed_.ratio(n, best_of(closed_, methods_, n, [](kind k) { return k == kind::chain; }), 0));
      best_tree.push_back(closed_.ratio(n, best_of(closed_, methods_, n, [](kind k) { return k == kind::tree; }), 0));
      of_shared.push_back(closed_.ratio(n, shared, 0));
      of_single.push_back(closed_.ratio(n, single, 0));
    }
    return bench::line_plot("Tokens a second over plain batched decoding",
                            hardware_ + "; the best chain and tree are chosen for each number of texts",
                            {"shared budget", "best chain", "best tree", "best single setting"},
                            {{"all places in use",
                              "texts at once",
                              names_of_texts(),
                              {{0, of_shared}, {1, best_chain}, {2, best_tree}, {3, of_single}}}});
  }

 private:
  std::vector<std::string> names_of_texts() const {
    std::vector<std::string> names;
    for (const int n : a_.texts)
      names.push_back(std::to_string(n));
    return names;
  }

  std::string summary() const {
    const std::size_t shared = methods_.size() - 1, single = best_overall(closed_, methods_);
    std::vector<std::string> columns = names_of_texts();
    columns.push_back("all");
    bench::markdown_table table("The shared budget over others", columns, "over");
    const auto row = [&](const std::string& name, const auto& other_of) {
      std::vector<std::string> line;
      double sum = 0;
      for (std::size_t n = 0; n < closed_.rates.size(); ++n) {
        const bench::interval ratio = closed_.ratio(n, shared, other_of(n));
        sum += std::log(ratio.mean);
        line.push_back(bench::in_words(ratio, 3));
      }
      line.push_back(fmt::format("{:.3f}", std::exp(sum / static_cast<double>(closed_.rates.size()))));
      table.row(name, line);
    };
    row("plain", [](std::size_t) { return std::size_t{0}; });
    row("the best static setting of each", [&](std::size_t n) { return best_of(closed_, methods_, n, is_static); });
    row(fmt::format("the best single static setting ({})", methods_[single].name), [&](std::size_t) { return single; });
    return table.text() + "\nAll: the geometric mean over the numbers of texts.\n";
  }

  std::string arrivals() const {
    bench::markdown_table table(fmt::format("Poisson arrivals, up to {} texts at once: milliseconds", a_.texts.back()),
                                {"load", "first token, p50", "p99", "each further token, p50", "p99"});
    for (const open_result& o : open_) {
      table.row(methods_[o.method].name,
                {fmt::format("{} %", o.load), fmt::format("{:.1f}", 1e3 * quantile(o.served.first, 0.5)),
                 fmt::format("{:.1f}", 1e3 * quantile(o.served.first, 0.99)),
                 fmt::format("{:.2f}", 1e3 * quantile(o.served.each, 0.5)),
                 fmt::format("{:.2f}", 1e3 * quantile(o.served.each, 0.99))});
    }
    return table.text() + fmt::format("\nThe load is of the tokens that plain decoding writes with {} texts at once.\n",
                                      a_.texts.back());
  }

  const arguments& a_;
  const std::vector<method>& methods_;
  const closed_results& closed_;
  const std::vector<open_result>& open_;
  std::string hardware_;
};

int run(arguments a) {
  a.temperature = a.sampled ? 1.0F : 0.0F;
  const int most = *std::max_element(a.texts.begin(), a.texts.end());
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = most * 17 + 64});
  if (a.domains.empty()) a.domains = {"gsm8k", "python", "shakespeare", "wikitext"};
  const auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.tokens);
  const espalier::cost_model costs =
      models::measure_model_costs(models, {.most_rows = 128, .seconds = 20}, [](double share, std::string_view what) {
        bench::progress(fmt::format("measuring: {:.0f} %, {}", 100 * share, what));
      });
  caches kv(models, most);
  const std::vector<method> methods = methods_of(models, kv, costs, {.temperature = a.temperature});
  const closed_results closed = measure_closed(a, methods, domains);
  const std::vector<open_result> open = measure_open(a, methods, closed, domains);
  bench::progress("");
  bench::deliver(serving_report(a, methods, closed, open, costs.hardware), a, a.plot);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_tables_serving",
                         "Many texts at once: plain batched decoding, static chains and trees, and trees that share\n"
                         "the budget of a round, by number of texts and under Poisson arrivals.");
  arguments a;
  a.add_to(program);
  program.add("--texts", a.texts, "numbers of texts at once", 1, 256);
  program.add("--loads", a.loads, "arrivals, in per cent of what plain decoding can do", 1, 1000);
  program.add("--tokens", a.tokens, "tokens to write after each prompt");
  program.add("--repeats", a.repeats, "repeats of each number of texts");
  program.add("--arrivals", a.arrivals, "texts that arrive at each load");
  program.add("--sampled", a.sampled, "temperature 1 instead of 0");
  program.add("--plot", a.plot, "also draw the ratios to this SVG file");
  return program.run(argc, argv, [&] { return run(a); });
}
