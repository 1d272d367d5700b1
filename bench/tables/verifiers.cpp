// SPDX-License-Identifier: BSL-1.0
// Makes the tables of Delayed tree expansion (Tables 2, 3, 8 to 15 and Figure 1) with a pair of models on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "offline_texts.hpp"
#include "pair_costs.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "sampled_writer.hpp"
#include "timed_texts.hpp"
#include "verifier_report.hpp"
#include "verifier_results.hpp"

namespace {

using espalier::statistics;

struct arguments : bench::priced_arguments {
  bench::verifier_run how;
  bool quick = false;
  std::string plot;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.how.tokens, "tokens to write after each prompt", 2);
  program.add("--spacing", a.how.spacing, "tokens from one root to the next");
  program.add("--trials", a.how.trials, "verifications of each tree");
  program.add("--tune", a.how.tune, "prompts of each domain by which settings are chosen");
  program.add("--measure", a.how.measure, "prompts of each domain that the tables are of");
  program.add("--decode", a.how.decode, "prompts of each domain, of these, that are decoded to be timed");
  program.add("--repeats", a.how.repeats, "times that each text is written; the median counts");
  program.add("--quick", a.quick, "three sampling settings and a few prompts: less than a minute");
  program.add("--plot", a.plot, "also draw them to this file, as SVG");
}

class measurement {
 public:
  measurement(models::model_set& models, const bench::verifier_run& how, const espalier::cost_model& costs, int threads,
              const models::price_table* price)
      : how_(how), writer_(models, price), offline_(models, how, costs, threads) {}

  void run(bench::verifier_results& results, const std::vector<bench::prompt_domain>& choosing,
           const std::vector<bench::prompt_domain>& measured) {
    const std::size_t n = results.samplings.size();
    results.choosing.resize(n), results.offline.resize(n);
    for (std::size_t s = 0; s < n; ++s) {
      const bench::sampling_setting& sampling = results.samplings[s];
      results.choosing[s] = offline_.choosing(sampling, s, choosing);
      results.offline[s].assign(sampling.drafts.size(), std::vector<std::vector<bench::offline_sums>>(measured.size()));
      for (std::size_t d = 0; d < measured.size(); ++d) {
        for (std::size_t p = 0; p < measured[d].prompts.size(); ++p) {
          bench::say(sampling, measured[d], p, "measuring");
          const auto sums = offline_.run(sampling, measured[d].prompts[p], bench::seed_of(s, d, p, false));
          for (std::size_t i = 0; i < sums.size(); ++i)
            results.offline[s][i][d].push_back(sums[i]);
        }
      }
    }
    decode(results, measured);
    bench::progress("");
  }

 private:
  // Sampling settings and verifiers take turns prompt by prompt, so that a disturbance of the machine slows all alike.
  void decode(bench::verifier_results& results, const std::vector<bench::prompt_domain>& measured) {
    const std::size_t n = results.samplings.size();
    const std::vector<std::vector<statistics>> none(measured.size());
    results.plain.assign(n, none);
    results.decoded.assign(n, {results.verifiers.size(), {2, none}});
    std::vector<std::vector<std::array<bench::static_choice, 2>>> choices(n);
    for (std::size_t s = 0; s < n; ++s) {
      for (std::size_t v = 0; v < results.verifiers.size(); ++v)
        choices[s].push_back({results.choose(s, v, bench::goal::throughput, {.kind = bench::tree_kind::undelayed}),
                              results.choose(s, v, bench::goal::throughput, {.kind = bench::tree_kind::delayed})});
    }
    for (std::size_t d = 0; d < measured.size(); ++d) {
      for (std::size_t p = 0; p < results.n_decoded[d]; ++p) {
        for (std::size_t s = 0; s < n; ++s) {
          bench::say(results.samplings[s], measured[d], p, "timing");
          decode(results, s, d, measured[d].prompts[p], bench::seed_of(s, d, p, false), choices[s]);
        }
      }
    }
  }

  // If the chosen delayed tree has no trunk, it is the undelayed one, and is measured once.
  void decode(bench::verifier_results& results, std::size_t s, std::size_t d,
              const std::vector<espalier::token_id>& prompt, std::uint64_t seed,
              const std::vector<std::array<bench::static_choice, 2>>& choices) {
    const bench::sampling_setting& sampling = results.samplings[s];
    results.plain[s][d].push_back(
        median([&] { return writer_.write_plainly(sampling.target, prompt, how_.tokens, seed); }));
    bench::for_each_sampled_verifier([&](const auto& verifier, std::size_t v) {
      auto& kinds = results.decoded[s][v];
      for (std::size_t kind = 0; kind < 2; ++kind) {
        const bench::static_choice choice = choices[v][kind];
        kinds[kind][d].push_back(kind == 1 && choice == choices[v][0] ? kinds[0][d].back() : median([&] {
          return writer_.write(verifier, results.trees[choice.tree], {sampling.target, sampling.drafts[choice.draft]},
                               prompt, how_.tokens, seed);
        }));
      }
    });
  }

  template <class WriteT>
  statistics median(const WriteT& write) const {
    std::vector<statistics> runs;
    for (int i = 0; i < how_.repeats; ++i)
      runs.push_back(write());
    return bench::median_run(std::move(runs));
  }

  bench::verifier_run how_;
  bench::sampled_writer writer_;
  bench::offline_texts offline_;
};

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  auto domains =
      bench::read_prompt_domains(a.prompts, models, a.domains, a.how.tokens + bench::root_trees::most_nodes + 1);
  const auto choosing = bench::take_first_prompts(domains, a.how.tune);
  bench::verifier_results results;
  results.samplings = bench::paper_samplings(a.quick);
  for (bench::prompt_domain& domain : domains) {
    if (std::ssize(domain.prompts) > a.how.measure) domain.prompts.resize(static_cast<std::size_t>(a.how.measure));
    results.domains.push_back(domain.name);
    results.n_prompts.push_back(domain.prompts.size());
    results.n_decoded.push_back(std::min(domain.prompts.size(), static_cast<std::size_t>(a.how.decode)));
  }
  const espalier::cost_model costs = bench::pair_costs(models, {}, price.get());
  measurement(models, a.how, costs, a.threads, price.get()).run(results, choosing, domains);
  const bench::verifier_report report(results, costs, a.how);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_verifiers",
      "Every verifier for sampled trees on a pair of models, at its best static tree, with and without delayed\n"
      "expansion: block efficiency, tokens a second, acceptance against depth, over sampling settings.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] {
    if (a.quick) a.how = {.tokens = 48, .spacing = 16, .trials = 2, .tune = 2, .measure = 2, .decode = 1, .repeats = 1};
    return run(a);
  });
}
