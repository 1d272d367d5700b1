// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "prompt_set.hpp"
#include "timed_texts.hpp"

namespace bench {

//! The amount of measuring.
struct cost_aware_run {
  int tokens = 128;   //!< tokens written after each prompt
  int tune = 5;       //!< prompts of a domain that are left out, since settings were chosen by them
  int measure = 10;   //!< prompts of a domain, at most
  int finalists = 3;  //!< static settings of each domain that are measured again: the best ones in one text of each
                      //!< prompt
  int repeats = 10;   //!< texts of each prompt by the finalists: of greedy ones the median time counts, else all
};

//! The texts of all methods in one regime. Plain decoding is the first method, the cost-aware policy the last one.
struct cost_aware_results {
  std::string name;
  std::vector<std::string> methods;
  std::vector<prompt_domain> domains;  //!< the adversarial domain is the last one, if there is one
  std::size_t copies;                  //!< lists of prompts, one after the other, that are copies of each other
  timed_texts texts;

  std::size_t own() const { return methods.size() - 1; }
  bool has_adversarial() const { return domains.back().name == "adversarial"; }
  //! Number of domains whose texts mean something.
  std::size_t n_usual() const { return domains.size() - (has_adversarial() ? 1 : 0); }

  //! Tokens a second over all texts of the domains `first` to last - 1.
  double rate(std::size_t method, std::size_t first, std::size_t last) const {
    espalier::statistics sum;
    for (std::size_t d = first; d < last; ++d)
      sum += texts.total(method, d);
    return sum.throughput();
  }
  double speedup(std::size_t method, std::size_t first, std::size_t last) const {
    return rate(method, first, last) / rate(0, first, last);
  }
  //! The fastest of all other methods in these domains, on these very texts.
  std::size_t best_static(std::size_t first, std::size_t last) const {
    std::size_t best = 0;
    for (std::size_t m = 0; m < own(); ++m) {
      if (rate(m, first, last) > rate(best, first, last)) best = m;
    }
    return best;
  }
  //! Plain decoding, the n fastest methods of each domain and of several together, and the cost-aware policy.
  std::vector<std::size_t> finalists(int n) const {
    std::vector<char> chosen(methods.size(), 0);
    chosen.front() = chosen.back() = 1;
    const auto choose = [&](std::size_t first, std::size_t last) {
      std::vector<std::size_t> order(own());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](auto a, auto b) { return rate(a, first, last) > rate(b, first, last); });
      for (std::size_t i = 0; i < order.size() && i < static_cast<std::size_t>(n); ++i)
        chosen[order[i]] = 1;
    };
    for (std::size_t d = 0; d < n_usual(); ++d)
      choose(d, d + 1);
    choose(0, n_usual());
    choose(0, domains.size());
    std::vector<std::size_t> out;
    for (std::size_t m = 0; m < methods.size(); ++m) {
      if (chosen[m] != 0) out.push_back(m);
    }
    return out;
  }
  //! The speed of the cost-aware policy relative to another method in texts of equal length: an interval over prompts,
  //! as if all were of one domain.
  interval own_over(std::size_t method, std::size_t first, std::size_t last) const {
    std::vector<double> others, owns;
    for (std::size_t d = first; d < last; ++d) {
      const std::size_t n = domains[d].prompts.size() / copies;
      for (std::size_t p = 0; p < n; ++p) {
        double other = 0, own_seconds = 0;
        for (std::size_t copy = p; copy < domains[d].prompts.size(); copy += n) {
          other += texts.at(method, d, copy).seconds.total();
          own_seconds += texts.at(own(), d, copy).seconds.total();
        }
        others.push_back(other);
        owns.push_back(own_seconds);
      }
    }
    return ratio_of_sums(others, owns);
  }
};

//! The results of all methods, and those of the finalists, which are timed apart and, where they sample, write other
//! texts.
struct cost_aware_regime {
  cost_aware_results all;
  cost_aware_results finals;

  //! Index among the finalists of the static setting that was the fastest one in the first results.
  std::size_t chosen_before(std::size_t first, std::size_t last) const {
    const std::string& name = all.methods[all.best_static(first, last)];
    return static_cast<std::size_t>(std::find(finals.methods.begin(), finals.methods.end(), name) -
                                    finals.methods.begin());
  }
};

//! The tables of the cost-aware policy as Markdown, JSON and a plot.
class cost_aware_report {
 public:
  cost_aware_report(const std::vector<cost_aware_regime>& regimes, const cost_aware_run& how)
      : regimes_(regimes), how_(how) {
    for (const cost_aware_regime& regime : regimes_) {
      const cost_aware_results& r = regime.finals;
      const auto add = [&](const std::string& domains, std::size_t first, std::size_t last, double asked) {
        figures_.push_back(
            {&r, domains, r.best_static(first, last), regime.chosen_before(first, last), first, last, asked});
      };
      for (std::size_t d = 0; d < r.n_usual(); ++d)
        add(r.domains[d].name, d, d + 1, 0.98);
      if (r.has_adversarial())
        figures_.push_back({&r, r.domains.back().name, 0, {}, r.n_usual(), r.domains.size(), 0.97});
      add("all but adversarial", 0, r.n_usual(), 1.05);
      if (r.has_adversarial()) add("all", 0, r.domains.size(), 1.05);
    }
  }

  std::string markdown() const {
    std::string text = fmt::format(
        "## The cost-aware policy beside every static setting\n\n"
        "{}; the methods take turns prompt by prompt. After that the finals: plain decoding, the best settings of "
        "each domain but the adversarial one and of all together ({} each; some adapt, but know nothing of time), "
        "and the cost-aware policy write again, {} texts after each of the same prompts. Greedy, these are the "
        "same texts, and the run of median duration counts (of two the shorter); sampled, they are drawn anew, at "
        "temperature 1, adversarial ones at that of their file, and the draft samples as the target does.\n\n"
        "A *speedup* is the total time of plain decoding over that of a method, over all texts of a domain (of {} "
        "tokens each); ± is the 95 % interval over prompts. **The best static setting is the fastest finalist on "
        "the very texts that it is compared on**: it knows the domain, and is favoured by what chance there is in "
        "texts and times. *The best before*: the one that was the fastest when all methods wrote, timed in the "
        "finals. Where a setting was tuned, that was on prompts that are not among these. The cost-aware policy "
        "has its defaults, and the mean of the last six measurements of what passes cost, made every ten seconds "
        "(the two seconds that each takes are not counted), unless they came from a file.\n",
        setting(&cost_aware_regime::all), how_.finalists, how_.repeats, how_.tokens);
    text += figure_table();
    for (const cost_aware_regime& r : regimes_)
      text += method_table(r.finals) + method_table(r.all);
    return text;
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "cost_aware"},
                          {"tokens_each", how_.tokens},
                          {"finalists", how_.finalists},
                          {"repeats", how_.repeats}};
    for (const figure& f : figures_) {
      const interval ratio = f.ratio(f.reference);
      nlohmann::json& entry = out["figures"].emplace_back();
      entry = {{"regime", f.of->name},
               {"domains", f.domains},
               {"reference", f.of->methods[f.reference]},
               {"reference_speedup", f.of->speedup(f.reference, f.first, f.last)},
               {"speedup", f.of->speedup(f.of->own(), f.first, f.last)},
               {"ratio", {ratio.mean, ratio.half_width}},
               {"asked", f.asked}};
      if (f.before) {
        const interval before = f.ratio(*f.before);
        entry["best_before"] = f.of->methods[*f.before];
        entry["ratio_to_best_before"] = {before.mean, before.half_width};
      }
    }
    for (const cost_aware_regime& regime : regimes_) {
      for (const cost_aware_results* r : {&regime.finals, &regime.all})
        out["methods"][r->name] = methods_of(*r);
    }
    return out;
  }

  //! The table by domain: plain decoding, the best single setting of all, the best setting of the domain, and the
  //! policy.
  std::string plot() const {
    const std::vector<std::string> names = {"best single setting", "best of the domain", "cost-aware",
                                            "plain decoding"};
    std::vector<plot_panel> panels;
    for (const cost_aware_regime& regime : regimes_) {
      const cost_aware_results& r = regime.finals;
      const std::size_t n = r.domains.size(), single = r.best_static(0, n);
      plot_panel panel{fmt::format("{}: speedup over plain decoding", r.name),
                       fmt::format("domain; the best single setting is {}", r.methods[single]),
                       {},
                       {}};
      std::vector<std::vector<interval>> lines(names.size());
      for (std::size_t d = 0; d <= n; ++d) {
        const std::size_t first = d < n ? d : 0, last = d < n ? d + 1 : n;
        panel.points.push_back(d < n ? r.domains[d].name : "all");
        lines[0].push_back({r.speedup(single, first, last)});
        lines[1].push_back({r.speedup(r.best_static(first, last), first, last)});
        lines[2].push_back({r.speedup(r.own(), first, last)});
        lines[3].push_back({1});
      }
      for (std::size_t i = 0; i < lines.size(); ++i)
        panel.lines.push_back({series[i], lines[i]});
      panels.push_back(panel);
    }
    return line_plot("The cost-aware policy beside static settings", setting(&cost_aware_regime::finals), names,
                     panels);
  }

 private:
  static constexpr std::size_t series[] = {0, 1, 2, 3};

  // The cost-aware policy beside the best other method, and beside the one that was the best in the first results.
  struct figure {
    const cost_aware_results* of;
    std::string domains;
    std::size_t reference;
    std::optional<std::size_t> before;  // no value if nothing was chosen
    std::size_t first, last;
    double asked;
    interval ratio(std::size_t other) const { return of->own_over(other, first, last); }
  };

  static nlohmann::json methods_of(const cost_aware_results& r) {
    nlohmann::json out;
    for (std::size_t m = 0; m < r.methods.size(); ++m) {
      for (std::size_t d = 0; d < r.domains.size(); ++d) {
        const espalier::statistics sum = r.texts.total(m, d);
        out[r.methods[m]][r.domains[d].name] = {{"texts", r.domains[d].prompts.size()},
                                                {"tokens_per_second", sum.throughput()},
                                                {"speedup", r.speedup(m, d, d + 1)},
                                                {"tokens_per_round", sum.tokens_per_round()},
                                                {"drafted_per_round", sum.drafted_per_round()},
                                                {"overhead", sum.overhead()}};
      }
    }
    return out;
  }

  std::string setting(cost_aware_results cost_aware_regime::*stage) const {
    std::string text;
    for (const cost_aware_regime& r : regimes_) {
      const cost_aware_results& of = r.*stage;
      std::size_t n = 0;
      for (const prompt_domain& domain : of.domains)
        n += domain.prompts.size();
      text +=
          fmt::format("{}{}: {} texts by each of {} methods", text.empty() ? "" : "; ", of.name, n, of.methods.size());
    }
    return text;
  }

  std::string figure_table() const {
    markdown_table text(
        "The cost-aware policy over the best static setting; over plain decoding on adversarial prompts",
        {"against", "its speedup", "cost-aware", "ratio", "asked", "", "the best before", "ratio"}, "regime, domains");
    for (const figure& f : figures_) {
      const interval ratio = f.ratio(f.reference);
      text.row(fmt::format("{}, {}", f.of->name, f.domains),
               {f.of->methods[f.reference], fmt::format("{:.3f}", f.of->speedup(f.reference, f.first, f.last)),
                fmt::format("{:.3f}", f.of->speedup(f.of->own(), f.first, f.last)), in_words(ratio, 3),
                fmt::format("{:.2f}", f.asked), ratio.mean >= f.asked ? "met" : "missed",
                f.before ? f.of->methods[*f.before] : "", f.before ? in_words(f.ratio(*f.before), 3) : ""});
    }
    return text.text();
  }

  std::string method_table(const cost_aware_results& r) const {
    std::vector<std::string> columns;
    for (const prompt_domain& domain : r.domains)
      columns.push_back(domain.name);
    columns.push_back("all but adversarial");
    columns.insert(columns.end(), {"all", "tokens a round", "drafted a round", "beside passes"});
    markdown_table text(fmt::format("{}: speedup over plain decoding, in tokens a second over those of plain", r.name),
                        columns);
    const std::size_t n = r.domains.size();
    for (std::size_t m = 0; m < r.methods.size(); ++m) {
      std::vector<std::string> row;
      for (std::size_t d = 0; d < n; ++d) {
        const std::string cell = fmt::format("{:.2f}", r.speedup(m, d, d + 1));
        row.push_back(m == r.best_static(d, d + 1) ? fmt::format("**{}**", cell) : cell);
      }
      row.push_back(fmt::format("{:.3f}", r.speedup(m, 0, r.n_usual())));
      row.push_back(fmt::format("{:.3f}", r.speedup(m, 0, n)));
      const espalier::statistics sum = r.texts.total(m);
      row.push_back(fmt::format("{:.2f}", sum.tokens_per_round()));
      row.push_back(fmt::format("{:.2f}", sum.drafted_per_round()));
      row.push_back(fmt::format("{:.1f} %", 100 * sum.overhead()));
      text.row(m == r.own() ? fmt::format("**{}**", r.methods[m]) : r.methods[m], row);
    }
    std::vector<std::string> rates;
    for (std::size_t d = 0; d < n; ++d)
      rates.push_back(fmt::format("{:.0f}", r.rate(0, d, d + 1)));
    rates.push_back(fmt::format("{:.0f}", r.rate(0, 0, r.n_usual())));
    rates.push_back(fmt::format("{:.0f}", r.rate(0, 0, n)));
    rates.insert(rates.end(), {"", "", ""});
    text.row("plain, tokens a second", rates);
    return text.text();
  }

  const std::vector<cost_aware_regime>& regimes_;
  cost_aware_run how_;
  std::vector<figure> figures_;
};

}  // namespace bench
