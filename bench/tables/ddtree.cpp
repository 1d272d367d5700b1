// SPDX-License-Identifier: BSL-1.0
// Makes the table of DDTree (Table 1), its budget curve (Figure 3) and its histogram (Figure 4) with the models of this
// machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "ddtree_methods.hpp"
#include "ddtree_report.hpp"
#include "ddtree_results.hpp"
#include "espalier/core/error.hpp"
#include "espalier/forward/prefill.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "text_writer.hpp"
#include "timed_texts.hpp"

namespace {

struct arguments : bench::priced_arguments {
  bench::ddtree_run how;
  bool quick = false;
  std::string plot;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.how.tokens, "tokens to write after each prompt", 2);
  program.add("--tune", a.how.tune, "prompts of each domain by which lengths and budgets are chosen");
  program.add("--measure", a.how.measure, "prompts of each domain that the tables are of");
  program.add("--curve", a.how.curve, "prompts of each domain, of these, that are written with every budget");
  program.add("--curve-tokens", a.how.curve_tokens, "tokens of each of these texts, and of those to choose by", 2);
  program.add("--repeats", a.how.repeats, "times that each text is written; the median counts");
  program.add("--largest", a.how.largest, "largest budget", 4, 1024);
  program.add("--quick", a.quick, "budgets up to 64 and a few prompts: less than half a minute");
  program.add("--plot", a.plot, "also draw the curves to this file, as SVG");
}

// The seed of everything that is done after one prompt.
std::uint64_t seed_of(std::size_t temperature, std::size_t domain, std::size_t prompt, bool choosing) {
  return ((temperature * 64 + domain) * 4096 + prompt) * 2 + (choosing ? 1 : 0);
}

class measurement {
 public:
  measurement(models::model_set& models, const bench::ddtree_run& how, const models::price_table* price)
      : how_(how), methods_(models.block->block_length()), writer_(models, price) {}

  void run(bench::ddtree_results& results, const std::vector<bench::prompt_domain>& choosing,
           const std::vector<bench::prompt_domain>& measured) {
    for (const int budget : methods_.settings(bench::best_tree_row)) {
      if (budget <= how_.largest) results.budgets.push_back(budget);
    }
    std::vector<bench::prompt_domain> curve = measured;
    for (bench::prompt_domain& domain : curve)
      domain.prompts.resize(std::min(domain.prompts.size(), static_cast<std::size_t>(how_.curve)));
    for (std::size_t t = 0; t < bench::ddtree_temperatures.size(); ++t) {
      results.settings.push_back(choose(t, choosing));
      results.curves.push_back(measure_curve(t, results, curve));
    }
    for (std::size_t t = 0; t < bench::ddtree_temperatures.size(); ++t)
      measure(t, results, measured);
  }

 private:
  espalier::statistics write(
      bench::block_method& method, std::size_t t, const std::vector<espalier::token_id>& prompt, int tokens,
      std::uint64_t seed, const bench::round_watcher& watch = [](const espalier::round_record&) {}) {
    const espalier::sampling_options sampling{.temperature = bench::ddtree_temperatures[t]};
    return method.write(writer_, prompt, {tokens, {.text = {.sampling = sampling, .seed = seed}}}, watch);
  }

  // The fastest setting; once one has less than 0.6 of the greatest speed, larger ones are not tried.
  std::vector<int> choose(std::size_t t, const std::vector<bench::prompt_domain>& domains) {
    std::vector<int> best;
    for (std::size_t row = 0; row < bench::n_ddtree_rows; ++row) {
      const std::vector<int> settings = methods_.settings(row);
      best.push_back(settings[0]);
      double most = 0;
      for (std::size_t i = 0; i < settings.size() && settings.size() > 1; ++i) {
        if (row == bench::best_chain_row && settings[i] > methods_.block_length()) break;
        if (row == bench::best_tree_row && settings[i] > how_.largest) break;
        bench::progress(fmt::format("temperature {:g}, choosing: {}, {}", bench::ddtree_temperatures[t],
                                    bench::ddtree_row_names[row], settings[i]));
        const double speed = mean_speed(methods_.make(row, settings[i]), t, domains);
        if (speed > most) most = speed, best.back() = settings[i];
        if (speed < 0.6 * most) break;
      }
    }
    return best;
  }

  double mean_speed(bench::block_method method, std::size_t t, const std::vector<bench::prompt_domain>& domains) {
    double sum = 0, n = 0;
    for (std::size_t d = 0; d < domains.size(); ++d) {
      for (std::size_t p = 0; p < domains[d].prompts.size(); ++p, ++n)
        sum += write(method, t, domains[d].prompts[p], how_.curve_tokens, seed_of(t, d, p, true)).throughput();
    }
    return sum / n;
  }

  bench::timed_texts measure_curve(std::size_t t, const bench::ddtree_results& results,
                                   const std::vector<bench::prompt_domain>& domains) {
    std::vector<bench::block_method> list;
    for (const std::size_t row : {bench::plain_row, bench::whole_chain_row, bench::best_chain_row})
      list.push_back(methods_.make(row, results.settings[t][row]));
    for (const int budget : results.budgets)
      list.push_back(methods_.make(bench::best_tree_row, budget));
    return bench::timed_texts(
        list.size(), domains, how_.repeats, "budgets", [&](std::size_t m, std::size_t d, std::size_t p) {
          return write(list[m], t, domains[d].prompts[p], how_.curve_tokens, seed_of(t, d, p, false));
        });
  }

  void measure(std::size_t t, bench::ddtree_results& results, const std::vector<bench::prompt_domain>& domains) {
    std::vector<bench::block_method> list;
    for (std::size_t row = 0; row < bench::n_ddtree_rows; ++row)
      list.push_back(methods_.make(row, results.settings[t][row]));
    auto& counts = results.counts.emplace_back(
        list.size(), bench::round_counts(static_cast<std::size_t>(methods_.block_length()) + 1));
    results.texts.push_back(bench::timed_texts(
        list.size(), domains, how_.repeats, "measuring", [&](std::size_t m, std::size_t d, std::size_t p) {
          return write(list[m], t, domains[d].prompts[p], how_.tokens, seed_of(t, d, p, false),
                       [&](const espalier::round_record& r) {
                         const std::size_t n = std::min(r.committed.size(), counts[m].size());
                         if (n > 0) counts[m][n - 1] += 1;
                       });
        }));
  }

  bench::ddtree_run how_;
  bench::ddtree_methods methods_;
  bench::text_writer writer_;
};

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models = models::model_set::load(
      a.models, {.threads = a.threads, .max_rows = a.how.largest + espalier::prefill::default_chunk});
  if (!models.block) {
    espalier::raise<espalier::input_error>("the model ", a.models.model,
                                           " has no block draft; these tables need the folder block, too.");
  }
  auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, std::max(a.how.tokens, a.how.curve_tokens));
  const auto choosing = bench::take_first_prompts(domains, a.how.tune);
  bench::ddtree_results results;
  for (bench::prompt_domain& domain : domains) {
    if (std::ssize(domain.prompts) > a.how.measure) domain.prompts.resize(static_cast<std::size_t>(a.how.measure));
    results.domains.push_back(domain.name);
    results.n_prompts.push_back(domain.prompts.size());
  }
  measurement(models, a.how, price.get()).run(results, choosing, domains);
  bench::progress("");
  const bench::ddtree_report report(results, a.how);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_ddtree",
      "DDTree's table on a target with a block draft: chains and best-first trees over its marginals,\n"
      "over every budget, and beside them what the smaller model drafts.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] {
    if (a.quick)
      a.how = {.tokens = 32, .tune = 1, .measure = 2, .curve = 1, .curve_tokens = 16, .repeats = 1, .largest = 64};
    return run(a);
  });
}
