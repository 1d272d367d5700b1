// SPDX-License-Identifier: BSL-1.0
// Compares the neural selectors of delayed trees with static trees and Traversal (Delayed tree expansion, Tables 4 to
// 7), with a pair of models on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "espalier/model/llama/model_identity.hpp"
#include "espalier/selector/files/selector_file.hpp"
#include "nde_methods.hpp"
#include "nde_report.hpp"
#include "offline_texts.hpp"
#include "pair_costs.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "sampled_writer.hpp"
#include "text_writer.hpp"
#include "timed_texts.hpp"
#include "verifier_results.hpp"

namespace {

struct arguments : bench::priced_arguments {
  bench::verifier_run how{.tokens = 128, .spacing = 16, .trials = 2, .tune = 3, .decode = 12};
  std::vector<std::string> verifiers{"target-only", "naive-tree", "spectr", "specinfer", "khisti"};
  std::string selectors = ESPALIER_BENCH_MODELS "/selector";
  std::string costs;
  std::string plot;
  bool quick = false;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.how.tokens, "tokens to write after each prompt", 2);
  program.add("--spacing", a.how.spacing, "tokens from one root of offline rounds to the next");
  program.add("--trials", a.how.trials, "offline verifications of each tree");
  program.add("--tune", a.how.tune, "prompts of each domain by which static trees are chosen");
  program.add("--decode", a.how.decode, "other prompts of each domain, which the tables are of");
  program.add("--repeats", a.how.repeats, "times that each text is written; the median counts");
  program.add("--verifiers", a.verifiers, "those whose selectors are measured");
  program.add("--selectors", a.selectors, "folder with a file VERIFIER.safetensors for each");
  program.add("--costs", a.costs, "what passes cost, as a file; without it, measured first");
  program.add("--quick", a.quick, "three sampling settings and a few prompts: less than a minute");
  program.add("--plot", a.plot, "also draw what the selectors chose to this file, as SVG");
}

class measurement {
 public:
  measurement(models::model_set& models, const arguments& a, const espalier::cost_model& costs,
              const models::price_table* price)
      : models_(models), a_(a), costs_(costs), static_writer_(models, price), writer_(models, price) {}

  void run(bench::nde_results& results, const std::vector<bench::prompt_domain>& domains) {
    plan(results);
    results.selectors.assign(results.neural.size(), {});
    results.texts.emplace(
        methods_.size(), domains, a_.how.repeats, "timing", [&](std::size_t m, std::size_t d, std::size_t p) {
          return methods_[m].write(domains[d].prompts[p], bench::seed_of(methods_[m].sampling, d, p, false));
        });
    const double seconds = bench::seconds_of_divergences(static_cast<std::size_t>(models_.target.vocab_size()));
    for (std::size_t i = 0; i < results.neural.size(); ++i) {
      for (const bench::selector_record& record : records_[i])
        results.selectors[i] += record;
      results.selectors[i].comparing = seconds * static_cast<double>(results.selectors[i].chosen());
    }
  }

 private:
  using writing = std::function<espalier::statistics(const std::vector<espalier::token_id>&, std::uint64_t)>;
  struct method {
    std::size_t sampling;
    writing write;
  };

  // Lists the methods to measure. If the chosen delayed tree has no trunk, it is the undelayed one, and is measured
  // once.
  void plan(bench::nde_results& results) {
    const bench::verifier_results& settings = results.settings;
    const std::size_t n = settings.samplings.size();
    results.method.assign(n, std::vector<std::array<std::size_t, 3>>(settings.verifiers.size()));
    records_.resize(results.neural.size());
    for (std::size_t s = 0; s < n; ++s) {
      const espalier::sampling_options sampling = settings.samplings[s].target;
      results.plain.push_back(add(s, [this, sampling](const auto& prompt, std::uint64_t seed) {
        return static_writer_.write_plainly(sampling, prompt, a_.how.tokens, seed);
      }));
      bench::for_each_sampled_verifier([&](const auto& part, std::size_t v) {
        const auto selector = std::find(results.neural.begin(), results.neural.end(), v);
        const bool measured = selector != results.neural.end();
        if (!measured && part.name != "traversal" && part.name != "block-verification") return;
        std::array<std::size_t, 3>& place = results.method[s][v];
        const auto chosen = [&](bench::tree_kind kind) {
          return settings.trees[settings.choose(s, v, bench::goal::throughput, {.kind = kind, .drafts = 1}).tree];
        };
        const bench::static_tree undelayed = chosen(bench::tree_kind::undelayed);
        const bench::static_tree delayed = chosen(bench::tree_kind::delayed);
        place[0] = add_static(s, part, undelayed, sampling);
        place[1] =
            bench::in_words(delayed) == bench::in_words(undelayed) ? place[0] : add_static(s, part, delayed, sampling);
        if constexpr (bench::takes_paths<typename std::remove_cvref_t<decltype(part)>::type>) {
          if (measured)
            place[2] = add_neural(s, part, undelayed, sampling,
                                  records_[static_cast<std::size_t>(selector - results.neural.begin())]);
        }
      });
    }
  }

  std::size_t add(std::size_t sampling, writing write) {
    methods_.push_back({sampling, std::move(write)});
    return methods_.size() - 1;
  }

  template <class PartT>
  std::size_t add_static(std::size_t s, const PartT& part, const bench::static_tree& tree,
                         const espalier::sampling_options& sampling) {
    return add(s, [this, part, tree, sampling](const auto& prompt, std::uint64_t seed) {
      return static_writer_.write(part, tree, {sampling, sampling}, prompt, a_.how.tokens, seed);
    });
  }

  template <class PartT>
  std::size_t add_neural(std::size_t s, const PartT& part, const bench::static_tree& first,
                         const espalier::sampling_options& sampling, std::deque<bench::selector_record>& records) {
    bench::selector_record& record = records.emplace_back();
    bench::timed_neural_delayed& policy = policies_.emplace_back(first, load(std::string(part.name)), costs_, record);
    return add(s, [this, part, sampling, &policy, &record](const auto& prompt, std::uint64_t seed) {
      return bench::write_neurally(writer_, part, policy, record, prompt,
                                   {a_.how.tokens, {.text = {.sampling = sampling, .seed = seed}}});
    });
  }

  espalier::delayed_selector load(const std::string& verifier) const {
    const espalier::selector_file file = espalier::load_selector(a_.selectors + "/" + verifier + ".safetensors");
    espalier::require_origin(file, {espalier::model_identity(models_.paths.model), models::draft_identity(models_),
                                    models_.target.vocab_size(), verifier});
    return file.selector;
  }

  models::model_set& models_;
  const arguments& a_;
  const espalier::cost_model& costs_;
  bench::sampled_writer static_writer_;
  bench::text_writer writer_;
  std::vector<method> methods_;
  std::deque<bench::timed_neural_delayed> policies_;
  std::vector<std::deque<bench::selector_record>> records_;  // [neural][samplings]
};

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  auto domains =
      bench::read_prompt_domains(a.prompts, models, a.domains, a.how.tokens + bench::root_trees::most_nodes + 1);
  const auto choosing = bench::take_first_prompts(domains, a.how.tune);
  bench::nde_results results;
  bench::verifier_results& settings = results.settings;
  settings.samplings = bench::paper_samplings(a.quick);
  for (bench::sampling_setting& s : settings.samplings)
    s.drafts = {s.target};
  for (const std::string& name : a.verifiers) {
    results.neural.push_back(results.verifier(name));
    if (results.neural.back() == settings.verifiers.size() || !settings.verifiers[results.neural.back()].takes_paths)
      espalier::raise<espalier::input_error>("there is no verifier ", name, " for several paths.");
  }
  for (bench::prompt_domain& domain : domains) {
    if (std::ssize(domain.prompts) > a.how.decode) domain.prompts.resize(static_cast<std::size_t>(a.how.decode));
    settings.domains.push_back(domain.name);
    settings.n_decoded.push_back(domain.prompts.size());
  }
  const espalier::cost_model costs = bench::pair_costs(models, a.costs, price.get());
  {
    bench::offline_texts offline(models, a.how, costs, a.threads);
    for (std::size_t s = 0; s < settings.samplings.size(); ++s)
      settings.choosing.push_back(offline.choosing(settings.samplings[s], s, choosing));
  }
  measurement(models, a, costs, price.get()).run(results, domains);
  const bench::nde_report report(results, a.how);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_nde",
      "Delayed trees that a neural selector chooses in each round beside the best static ones of the same verifier,\n"
      "and beside Traversal: block efficiency, tokens a second, and what the selectors take and choose.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] {
    if (a.quick) a.how = {.tokens = 48, .spacing = 24, .trials = 1, .tune = 1, .decode = 1, .repeats = 1};
    return run(a);
  });
}
