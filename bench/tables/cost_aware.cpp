// SPDX-License-Identifier: BSL-1.0
// The cost-aware policy beside every static setting, on prompts of all domains and on adversarial ones; greedy and
// sampled.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cost_aware_methods.hpp"
#include "cost_aware_prompts.hpp"
#include "cost_aware_report.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/mean_costs.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"
#include "model_costs.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "text_writer.hpp"
#include "timed_texts.hpp"

namespace {

struct arguments : bench::priced_arguments {
  bench::cost_aware_run how;
  std::string adversarial = ESPALIER_BENCH_MODELS "/adversarial.jsonl";
  std::string costs;
  std::string find;
  std::string plot;
  int candidates = 900;
  bool quick = false;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.how.tokens, "tokens to write after each prompt", 2);
  program.add("--tune", a.how.tune, "prompts of each domain that are left out: tuned settings are of them", 0);
  program.add("--measure", a.how.measure, "prompts of each domain at most");
  program.add("--finalists", a.how.finalists,
              "static settings of each domain, the best in one text of each prompt, that are measured again");
  program.add("--repeats", a.how.repeats,
              "texts that finalists write after each prompt: greedy, the median time counts; sampled, all count");
  program.add("--adversarial", a.adversarial, "prompts on which the draft is useless; empty: none");
  program.add("--costs", a.costs,
              "what passes cost, as a file; without it, measured every ten seconds: the mean of the last six");
  program.add("--find-adversarial", a.find, "search adversarial prompts, write them to this file, and end");
  program.add("--candidates", a.candidates, "prompts among which they are searched");
  program.add("--quick", a.quick, "a few prompts: less than a minute");
  program.add("--plot", a.plot, "also draw the speedups to this file, as SVG");
}

int find_adversarial(models::model_set& models, const arguments& a) {
  bench::adversarial_search search(models);
  const auto chosen = search.run(a.candidates, 12);
  bench::report(search.markdown(chosen), a.markdown);
  bench::write_file(a.find, search.prompts_file(chosen));
  return 0;
}

// The costs of passes: by a table of prices, from a file, or the mean of the last six measurements of two seconds, made
// ten seconds or a little more apart (the first six at once). Other programs of the machine change from second to second, and so do the
// costs.
class recent_costs {
 public:
  recent_costs(models::model_set& models, const std::string& file, const models::price_table* price)
      : models_(models),
        is_given_(price != nullptr || !file.empty()),
        last_(first(file, price)),
        mean_(espalier::mean_costs(last_)) {}

  const espalier::cost_model& get() const { return mean_; }

  void refresh() {
    if (is_given_ || clock::now() - since_ < std::chrono::seconds(10)) return;
    last_.erase(last_.begin());
    last_.push_back(measured());
    mean_ = espalier::mean_costs(last_);
  }

 private:
  using clock = std::chrono::steady_clock;

  std::vector<espalier::cost_model> first(const std::string& file, const models::price_table* price) {
    if (price != nullptr) return {bench::costs_of(*price, file)};
    if (is_given_) return {models::read_model_costs(models_, file)};
    std::vector<espalier::cost_model> six;
    while (six.size() < 6)
      six.push_back(measured());
    return six;
  }

  // For trees and texts of the sizes in this benchmark.
  espalier::cost_model measured() {
    espalier::cost_model costs = models::measure_model_costs(
        models_, {.most_rows = espalier::cost_aware_options{}.budget + 1, .contexts = {64, 256}, .seconds = 2},
        [](double, std::string_view) {});
    since_ = clock::now();
    return costs;
  }

  models::model_set& models_;
  bool is_given_;
  clock::time_point since_;
  std::vector<espalier::cost_model> last_;
  espalier::cost_model mean_;
};

bench::cost_aware_results measure(models::model_set& models, recent_costs& costs, std::string name,
                                  const std::vector<bench::timed_method>& methods,
                                  std::vector<bench::prompt_domain> domains, int tokens, int repeats, bool sampled,
                                  std::uint64_t first_seed, const models::price_table* price) {
  std::vector<std::string> names;
  for (const bench::timed_method& method : methods)
    names.push_back(method.name);
  for (bench::prompt_domain& domain : domains) {
    const std::vector<std::vector<espalier::token_id>> once = domain.prompts;
    for (int i = 1; sampled && i < repeats; ++i)
      domain.prompts.insert(domain.prompts.end(), once.begin(), once.end());
  }
  bench::text_writer writer(models, price);
  bench::timed_texts texts(
      methods.size(), domains, sampled ? 1 : repeats, name.c_str(), [&](std::size_t m, std::size_t d, std::size_t p) {
        if (m == 0) costs.refresh();
        const espalier::sampling_options sampling{.temperature = sampled ? domains[d].temperature : 0.0F};
        return methods[m].write(writer, domains[d].prompts[p],
                                {tokens, {.text = {.sampling = sampling, .seed = first_seed + p}}});
      });
  return {std::move(name), std::move(names), std::move(domains), static_cast<std::size_t>(sampled ? repeats : 1),
          std::move(texts)};
}

// Runs every method once, and then the finalists again, to time them apart; where they sample, they also write other
// texts.
bench::cost_aware_regime measure(models::model_set& models, recent_costs& costs, const std::string& name,
                                 const std::vector<bench::timed_method>& methods,
                                 const std::vector<bench::prompt_domain>& domains, const bench::cost_aware_run& how,
                                 bool sampled, const models::price_table* price) {
  bench::cost_aware_results all =
      measure(models, costs, name + ", all methods", methods, domains, how.tokens, 1, sampled, 0, price);
  std::vector<bench::timed_method> finalists;
  for (const std::size_t m : all.finalists(how.finalists))
    finalists.push_back(methods[m]);
  bench::cost_aware_results finals =
      measure(models, costs, name, finalists, domains, how.tokens, how.repeats, sampled, 1'000'000, price);
  return {std::move(all), std::move(finals)};
}

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  if (!a.find.empty()) {
    if (price) espalier::raise<espalier::input_error>("--find-adversarial takes no time: --price does not go with it.");
    return find_adversarial(models, a);
  }
  auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.how.tokens + 257);
  if (a.how.tune > 0) bench::take_first_prompts(domains, a.how.tune);
  if (!a.adversarial.empty()) {
    for (bench::prompt_domain& domain : bench::read_prompt_domains(a.adversarial, models, {}, a.how.tokens + 257))
      domains.push_back(std::move(domain));
  }
  for (bench::prompt_domain& domain : domains) {
    if (std::ssize(domain.prompts) > a.how.measure) domain.prompts.resize(static_cast<std::size_t>(a.how.measure));
  }
  recent_costs costs(models, a.costs, price.get());
  std::vector<bench::cost_aware_regime> regimes;
  regimes.push_back(
      measure(models, costs, "greedy", bench::greedy_methods(costs.get()), domains, a.how, false, price.get()));
  regimes.push_back(
      measure(models, costs, "sampled", bench::sampled_methods(costs.get()), domains, a.how, true, price.get()));
  const bench::cost_aware_report report(regimes, a.how);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_cost_aware",
      "The cost-aware policy beside static settings: chains, fixed and best-first trees, both\n"
      "DynaTrees, paths and DySpec's trees, by domain and on prompts on which the draft is useless.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] {
    if (a.quick) a.how = {.tokens = 64, .tune = 5, .measure = 1, .finalists = 1, .repeats = 1};
    return run(a);
  });
}
