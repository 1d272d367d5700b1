// SPDX-License-Identifier: BSL-1.0
// Makes the tables and figures of DySpec with a pair of models on this machine: Tables 1 to 4, Figures 2, 4, 5, 8 and
// 9, and the use of the budget in its appendix B.1.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../micro/mask_blocks.hpp"
#include "dyspec_methods.hpp"
#include "dyspec_report.hpp"
#include "dyspec_results.hpp"
#include "espalier/analysis/acceptance_by_rank.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "text_writer.hpp"
#include "timed_texts.hpp"
#include "tree_rounds.hpp"

namespace {

struct arguments : bench::priced_arguments {
  bench::dyspec_run how;
  bool quick = false;
  std::string plot;
};

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.how.tokens, "tokens to write after each prompt", 2);
  program.add("--spacing", a.how.spacing, "tokens from one place of single rounds to the next");
  program.add("--trials", a.how.trials, "verifications of each tree");
  program.add("--tune", a.how.tune, "prompts of each domain by which settings are chosen");
  program.add("--measure", a.how.measure, "prompts of each domain that the tables are of");
  program.add("--decode", a.how.decode, "prompts of each domain, of these, that are decoded to be timed");
  program.add("--repeats", a.how.repeats, "times that each text is written; the median counts");
  program.add("--budgets", a.how.budgets, "drafted tokens a round", 1, 768);
  program.add("--quick", a.quick, "two budgets and a few prompts: less than half a minute");
  program.add("--plot", a.plot, "also draw them to this file, as SVG");
}

// The seed of everything that is done after one prompt: methods differ in their decisions, not in their random numbers.
std::uint64_t seed_of(float temperature, std::size_t domain, std::size_t prompt, bool choosing) {
  return ((static_cast<std::uint64_t>(temperature * 10) * 64 + domain) * 4096 + prompt) * 2 + (choosing ? 1 : 0);
}

class measurement {
 public:
  static constexpr int large_budget = 256;
  static constexpr int paper_budget = 768;   // as in appendix B.1
  static constexpr int largest_tree = 1024;  // of appendix C

  measurement(models::model_set& models, const bench::dyspec_run& how, const models::price_table* price)
      : how_(how),
        writer_(models, price),
        rounds_(models, bench::dyspec_draft, largest_budget(how) + 1, how.trials),
        hot_rounds_(models, {.temperature = 1.0F}, large_budget + 1, how.trials),
        drafts_(models, bench::dyspec_draft, largest_tree, 1) {}

  // The largest budget of trees that are verified.
  static int largest_budget(const bench::dyspec_run& how) {
    return std::max(large_budget, *std::max_element(how.budgets.begin(), how.budgets.end()));
  }

  bench::timed_texts run(bench::dyspec_results& results, const std::vector<bench::prompt_domain>& choosing,
                         const std::vector<bench::prompt_domain>& measured) {
    const std::size_t n = bench::dyspec_temperatures.size();
    results.budgets = how_.budgets;
    results.methods.resize(n), results.rounds.resize(n), results.first_draws.resize(n), results.steps.resize(n);
    for (std::size_t t = 0; t < n; ++t) {
      choose(results, t, choosing);
      measure(results, t, measured);
    }
    share(results, measured);
    count_blocks(results, measured);
    return decode(results, measured);
  }

 private:
  // Calls f(domain, prompt) at every position of a text that the target has written after each prompt.
  template <class FunctionT>
  void at_places(bench::tree_rounds& rounds, float temperature, const std::vector<bench::prompt_domain>& domains,
                 bool choosing, int spacing, const FunctionT& f) {
    const espalier::sampling_options sampling{.temperature = temperature};
    for (std::size_t d = 0; d < domains.size(); ++d) {
      for (std::size_t p = 0; p < domains[d].prompts.size(); ++p) {
        bench::progress(fmt::format("temperature {:g}: {} {}, prompt {} of {}", temperature,
                                    choosing ? "choosing by" : "measuring", domains[d].name, p + 1,
                                    domains[d].prompts.size()));
        std::vector<espalier::token_id> text = domains[d].prompts[p];
        const std::size_t written = text.size();
        const std::uint64_t seed = seed_of(temperature, d, p, choosing);
        const auto more =
            writer_.write(writer_.draft(), espalier::sampled_chain({.length = 5}), espalier::residual_walk(), text,
                          {how_.tokens, {.text = {.sampling = sampling, .seed = seed}}});
        text.insert(text.end(), more.tokens.begin(), more.tokens.end());
        rounds.begin(sampling, seed);
        for (std::size_t end = written; end < text.size(); end += static_cast<std::size_t>(spacing)) {
          rounds.advance(std::span(text).first(end));
          f(d, p);
        }
      }
    }
  }

  static bench::sums_by_prompt no_sums(const std::vector<bench::prompt_domain>& domains) {
    bench::sums_by_prompt sums;
    for (const bench::prompt_domain& domain : domains)
      sums.emplace_back(domain.prompts.size());
    return sums;
  }

  // Measured with two levels of as many draws as there are ranks to count.
  std::vector<double> measure_acceptance(std::size_t t, const std::vector<bench::prompt_domain>& choosing) {
    constexpr int n_ranks = 16;
    espalier::sequoia wide({.budget = 64, .max_depth = 2, .acceptance = std::vector<double>(n_ranks, 1.0 / n_ranks)});
    espalier::residual_walk walk;
    espalier::acceptance_by_rank ranks(n_ranks);
    at_places(rounds_, bench::dyspec_temperatures[t], choosing, true, std::max(how_.spacing / 2, 1),
              [&](std::size_t, std::size_t) {
                rounds_.run(wide, walk, [&](espalier::tree_view tree, espalier::verdict v) { ranks.count(tree, v); });
              });
    return ranks.rates();
  }

  // Chooses the thresholds and shapes that commit most tokens.
  void choose(bench::dyspec_results& results, std::size_t t, const std::vector<bench::prompt_domain>& choosing) {
    const std::size_t n_thresholds = std::size(bench::dyspec_thresholds);
    std::vector<std::vector<bench::tree_method>> candidates;  // [budgets]: thresholds, filled thresholds, shapes
    std::vector<std::vector<double>> tokens;
    for (const int budget : how_.budgets) {
      auto& list = candidates.emplace_back();
      for (const bool fill : {false, true}) {
        for (const double threshold : bench::dyspec_thresholds)
          list.push_back(bench::dyspec_threshold_method(budget, threshold, fill));
      }
      for (const bench::branch_counts& shape : bench::specinfer_shapes(budget))
        list.push_back(bench::specinfer_method(budget, shape));
      tokens.emplace_back(list.size());
    }
    at_places(rounds_, bench::dyspec_temperatures[t], choosing, true, 2 * how_.spacing, [&](std::size_t, std::size_t) {
      for (std::size_t b = 0; b < candidates.size(); ++b) {
        for (std::size_t i = 0; i < candidates[b].size(); ++i)
          tokens[b][i] += candidates[b][i].round(rounds_).tokens;
      }
    });
    results.acceptance.push_back(measure_acceptance(t, choosing));
    for (std::size_t b = 0; b < candidates.size(); ++b) {
      const auto best = [&](std::size_t begin, std::size_t end) {
        const auto first = tokens[b].begin();
        return candidates[b][static_cast<std::size_t>(
            std::max_element(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end)) -
            first)];
      };
      results.methods[t].push_back({bench::dyspec_greedy_method(how_.budgets[b]), best(0, n_thresholds),
                                    best(n_thresholds, 2 * n_thresholds),
                                    bench::dyspec_adapting_method(how_.budgets[b]),
                                    bench::sequoia_method(how_.budgets[b], results.acceptance[t]),
                                    best(2 * n_thresholds, candidates[b].size())});
    }
  }

  void measure(bench::dyspec_results& results, std::size_t t, const std::vector<bench::prompt_domain>& measured) {
    results.rounds[t].assign(how_.budgets.size(), std::vector(bench::dyspec_method_names.size(), no_sums(measured)));
    espalier::sampled_chain chain({.length = 8});
    espalier::residual_walk walk;
    at_places(rounds_, bench::dyspec_temperatures[t], measured, false, how_.spacing, [&](std::size_t d, std::size_t p) {
      rounds_.run(chain, walk, [&](espalier::tree_view tree, espalier::verdict v) {
        results.first_draws[t].count(tree, v, [&](espalier::node_id u, espalier::token_id token) {
          return rounds_.target_probability(u, token);
        });
      });
      for (std::size_t b = 0; b < how_.budgets.size(); ++b) {
        for (std::size_t m = 0; m < bench::dyspec_method_names.size(); ++m)
          results.rounds[t][b][m][d][p] += results.methods[t][b][m].round(rounds_);
      }
    });
  }

  // On few prompts: passes of 257 rows are expensive.
  void share(bench::dyspec_results& results, std::vector<bench::prompt_domain> domains) {
    for (std::size_t d = 0; d < domains.size(); ++d)
      domains[d].prompts.resize(results.n_decoded[d]);
    struct sampling {
      float target, draft;
    };
    for (const sampling s : {sampling{0.6F, 0.6F}, sampling{1.0F, 0.6F}, sampling{1.0F, 1.0F}}) {
      const std::size_t first = results.shares.size();
      for (const double threshold : how_.thresholds) {
        for (const bool fill : {false, true})
          results.shares.push_back({s.target, s.draft, large_budget, threshold, fill, true, no_sums(domains)});
      }
      bench::tree_rounds& rounds = s.draft < 1 ? rounds_ : hot_rounds_;
      at_places(rounds, s.target, domains, false, 2 * how_.spacing, [&](std::size_t d, std::size_t p) {
        espalier::residual_walk walk;
        for (std::size_t i = first; i < results.shares.size(); ++i) {
          espalier::dyspec_threshold policy = policy_of(results.shares[i]);
          results.shares[i].sums[d][p] += rounds.run(policy, walk);
        }
      });
    }
    const std::size_t first = results.shares.size();
    for (const double threshold : {0.03, 0.01}) {
      for (const bool fill : {false, true})
        results.shares.push_back({0.6F, 0.6F, paper_budget, threshold, fill, false, no_sums(domains)});
    }
    at_places(drafts_, 0.6F, domains, false, 2 * how_.spacing, [&](std::size_t d, std::size_t p) {
      for (std::size_t i = first; i < results.shares.size(); ++i) {
        espalier::dyspec_threshold policy = policy_of(results.shares[i]);
        results.shares[i].sums[d][p] += drafts_.draft(policy);
      }
    });
  }

  // Counts the blocks of the masks of greedy trees.
  void count_blocks(bench::dyspec_results& results, std::vector<bench::prompt_domain> domains) {
    for (std::size_t d = 0; d < domains.size(); ++d)
      domains[d].prompts.resize(results.n_decoded[d]);
    espalier::mask_blocks blocks;
    espalier::tree_order order(largest_tree);
    constexpr espalier::node_order orders[] = {espalier::node_order::insertion, espalier::node_order::depth_first,
                                               espalier::node_order::heavy_path};
    at_places(drafts_, 0.6F, domains, false, 2 * how_.spacing, [&](std::size_t, std::size_t) {
      for (bench::tree_blocks& to : results.blocks) {
        // The paper's numbers are of rows, and so count the root.
        espalier::dyspec_greedy policy({.budget = to.nodes - 1});
        drafts_.draft(policy);
        const espalier::tree_view tree = drafts_.tree();
        to.trees += 1, to.reached += tree.n_nodes;
        const int prefixes[] = {0, 128, drafts_.prefix()};
        for (std::size_t o = 0; o < std::size(orders); ++o) {
          order.compute(tree, orders[o]);
          for (std::size_t i = 0; i < std::size(prefixes); ++i)
            to.sums[o][i] += static_cast<double>(blocks.count(tree, order, 32, prefixes[i]));
        }
      }
    });
  }

  static espalier::dyspec_threshold policy_of(const bench::budget_share& row) {
    return espalier::dyspec_threshold(
        {.budget = row.budget, .max_depth = 32, .threshold = row.threshold, .fill = row.fill, .adapt = false});
  }

  bench::timed_texts decode(bench::dyspec_results& results, std::vector<bench::prompt_domain> domains) {
    for (std::size_t d = 0; d < domains.size(); ++d)
      domains[d].prompts.resize(results.n_decoded[d]);
    const std::size_t n_methods = bench::dyspec_method_names.size(), n_budgets = how_.budgets.size();
    const std::size_t n_plain = bench::dyspec_temperatures.size();
    return bench::timed_texts(
        results.plain_text_of(n_plain), domains, how_.repeats, "timing",
        [&](std::size_t m, std::size_t d, std::size_t p) {
          const bool is_plain = m >= results.plain_text_of(0);
          const std::size_t t = is_plain ? m - results.plain_text_of(0) : m / n_methods / n_budgets;
          const float temperature = bench::dyspec_temperatures[t];
          const bench::text_options how{
              how_.tokens,
              {.text = {.sampling = {.temperature = temperature}, .seed = seed_of(temperature, d, p, false)}}};
          const auto& prompt = domains[d].prompts[p];
          if (is_plain)
            return writer_.write(espalier::no_drafter(), espalier::plain(), espalier::target_only(), prompt, how).stats;
          const std::size_t b = m / n_methods % n_budgets;
          const bool is_shown = m % n_methods == bench::by_threshold && b + 1 == n_budgets;
          return results.methods[t][b][m % n_methods].write(writer_, prompt, how,
                                                            [&](const espalier::round_record& round) {
                                                              if (is_shown) results.steps[t].count(round);
                                                            });
        });
  }

  bench::dyspec_run how_;
  bench::text_writer writer_;
  bench::tree_rounds rounds_;
  bench::tree_rounds hot_rounds_;  // the draft at temperature 1
  bench::tree_rounds drafts_;      // with room for the paper's trees
};

int run(const arguments& a) {
  const auto price = a.load_price();
  auto models =
      models::model_set::load(a.models, {.threads = a.threads, .max_rows = measurement::largest_budget(a.how) + 64});
  auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.how.tokens + measurement::paper_budget + 1);
  const auto choosing = bench::take_first_prompts(domains, a.how.tune);
  bench::dyspec_results results;
  for (bench::prompt_domain& domain : domains) {
    if (std::ssize(domain.prompts) > a.how.measure) domain.prompts.resize(static_cast<std::size_t>(a.how.measure));
    results.domains.push_back(domain.name);
    results.n_prompts.push_back(domain.prompts.size());
    results.n_decoded.push_back(std::min(domain.prompts.size(), static_cast<std::size_t>(a.how.decode)));
  }
  const bench::timed_texts texts = measurement(models, a.how, price.get()).run(results, choosing, domains);
  bench::progress("");
  const bench::dyspec_report report(results, texts, a.how);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_tables_dyspec",
                         "DySpec's tables on a pair of models: its trees against Sequoia's and SpecInfer's of as many\n"
                         "nodes, tokens a round and time a token, and how much of a budget a threshold uses.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] {
    if (a.quick) {
      a.how = {.tokens = 48,
               .spacing = 24,
               .trials = 2,
               .tune = 1,
               .measure = 2,
               .decode = 1,
               .repeats = 1,
               .budgets = {8, 32},
               .thresholds = {0.03}};
    }
    return run(a);
  });
}
