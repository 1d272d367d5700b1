// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "timed_texts.hpp"

namespace bench {

//! How much is measured.
struct cost_aware_run {
  int tokens = 128;  //!< written after each prompt
  int tune = 5;      //!< prompts of a domain that are left out: settings were chosen by them
  int measure = 10;  //!< prompts of a domain at most
  int repeats = 3;   //!< of each: greedy, the median counts; sampled, all count, with seeds of their own
};

//! What all methods of one regime did. Plain decoding is the first method, the cost-aware policy the last one.
struct cost_aware_results {
  std::string name;
  std::vector<std::string> methods;
  std::vector<prompt_domain> domains;  //!< the adversarial one last, where there is one
  timed_texts texts;

  std::size_t own() const { return methods.size() - 1; }
  bool has_adversarial() const { return domains.back().name == "adversarial"; }
  //! Domains of texts that mean something.
  std::size_t n_usual() const { return domains.size() - (has_adversarial() ? 1 : 0); }

  //! Tokens a second over all texts of the domains from `first` on, before `last`.
  double rate(std::size_t method, std::size_t first, std::size_t last) const {
    espalier::statistics sum;
    for (std::size_t d = first; d < last; ++d)
      sum += texts.total(method, d);
    return sum.throughput();
  }
  double speedup(std::size_t method, std::size_t first, std::size_t last) const {
    return rate(method, first, last) / rate(0, first, last);
  }
  //! The fastest of all other methods there, on these very texts.
  std::size_t best_static(std::size_t first, std::size_t last) const {
    std::size_t best = 0;
    for (std::size_t m = 0; m < own(); ++m) {
      if (rate(m, first, last) > rate(best, first, last)) best = m;
    }
    return best;
  }
  //! Tokens a second of the fastest of all other methods where it is chosen on every other text, and timed on the rest.
  double held_out_rate(std::size_t first, std::size_t last) const {
    espalier::statistics sum;
    for (const std::size_t half : {0, 1}) {
      std::size_t best = 0;
      for (std::size_t m = 0; m < own(); ++m) {
        if (half_total(m, first, last, 1 - half).throughput() > half_total(best, first, last, 1 - half).throughput())
          best = m;
      }
      sum += half_total(best, first, last, half);
    }
    return sum.throughput();
  }
  //! The cost-aware policy over another method, prompt by prompt: mean of these domains.
  interval own_over(std::size_t method, std::size_t first, std::size_t last) const {
    const std::vector<interval> all = texts.speedups(own(), method);
    return mean_of({all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last)});
  }

 private:
  espalier::statistics half_total(std::size_t method, std::size_t first, std::size_t last, std::size_t half) const {
    espalier::statistics sum;
    for (std::size_t d = first; d < last; ++d) {
      for (std::size_t p = half; p < domains[d].prompts.size(); p += 2)
        sum += texts.at(method, d, p);
    }
    return sum;
  }
};

//! The tables of the cost-aware policy as Markdown, JSON and a plot.
class cost_aware_report {
 public:
  cost_aware_report(const std::vector<cost_aware_results>& regimes, const cost_aware_run& how)
      : regimes_(regimes), how_(how) {
    for (const cost_aware_results& r : regimes_) {
      for (std::size_t d = 0; d < r.domains.size(); ++d) {
        const bool usual = d < r.n_usual();
        const std::size_t reference = usual ? r.best_static(d, d + 1) : 0;
        figures_.push_back({&r, r.domains[d].name, reference, d, d + 1, usual ? 0.98 : 0.97});
      }
      figures_.push_back({&r, "all but adversarial", r.best_static(0, r.n_usual()), 0, r.n_usual(), 1.05});
      if (r.has_adversarial())
        figures_.push_back({&r, "all", r.best_static(0, r.domains.size()), 0, r.domains.size(), 1.05});
    }
  }

  std::string markdown() const {
    std::string text = fmt::format(
        "## The cost-aware policy beside every static setting\n\n{} Greedy: each figure is of the run of median "
        "duration "
        "of {} (of two the shorter). Sampled: {} texts of each prompt, at temperature 1, adversarial ones at that of "
        "their file; the draft "
        "samples as the target does.\n\nA *speedup* is the total time of plain decoding over that of a method, over "
        "all "
        "texts of a domain (of {} tokens each); ± is the 95 % interval of the same ratio prompt by prompt. **The best "
        "static setting of a domain is chosen on the very texts that it is compared on**: it knows the domain, and is "
        "favoured by what chance there is in texts and times; no setting chosen beforehand can do better. *Chosen on "
        "other texts*: each half of the texts with the setting that is best on the other half. Where a "
        "setting was tuned, that was on prompts that are not among these. The cost-aware policy has its defaults, and "
        "costs that were measured within the ten seconds before, unless they came from a file.\n",
        setting(), how_.repeats, how_.repeats, how_.tokens);
    text += figure_table();
    for (const cost_aware_results& r : regimes_)
      text += method_table(r);
    return text;
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "cost_aware"}, {"tokens_each", how_.tokens}, {"repeats", how_.repeats}};
    for (const figure& f : figures_) {
      const interval by_prompt = f.of->own_over(f.reference, f.first, f.last);
      out["figures"].push_back({{"regime", f.of->name},
                                {"domains", f.domains},
                                {"reference", f.of->methods[f.reference]},
                                {"reference_speedup", f.of->speedup(f.reference, f.first, f.last)},
                                {"speedup", f.of->speedup(f.of->own(), f.first, f.last)},
                                {"ratio", f.ratio()},
                                {"ratio_chosen_on_other_texts", f.held_out_ratio()},
                                {"ratio_by_prompt", {by_prompt.mean, by_prompt.half_width}},
                                {"asked", f.asked}});
    }
    for (const cost_aware_results& r : regimes_) {
      for (std::size_t m = 0; m < r.methods.size(); ++m) {
        nlohmann::json& entry = out["methods"][r.name][r.methods[m]];
        for (std::size_t d = 0; d < r.domains.size(); ++d) {
          const espalier::statistics sum = r.texts.total(m, d);
          entry[r.domains[d].name] = {{"texts", r.domains[d].prompts.size()},
                                      {"tokens_per_second", sum.throughput()},
                                      {"speedup", r.speedup(m, d, d + 1)},
                                      {"tokens_per_round", sum.tokens_per_round()},
                                      {"drafted_per_round", sum.drafted_per_round()},
                                      {"overhead", sum.overhead()}};
        }
      }
    }
    return out;
  }

  //! By domain: plain decoding, the best single setting of all, the best one of the domain, and the policy.
  std::string plot() const {
    const std::vector<std::string> names = {"best single setting", "best of the domain", "cost-aware",
                                            "plain decoding"};
    std::vector<plot_panel> panels;
    for (const cost_aware_results& r : regimes_) {
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
    return line_plot("The cost-aware policy beside static settings", setting(), names, panels);
  }

 private:
  static constexpr std::size_t series[] = {0, 1, 2, 3};

  // The cost-aware policy against another method.
  struct figure {
    const cost_aware_results* of;
    std::string domains;
    std::size_t reference;
    std::size_t first, last;
    double asked;
    double ratio() const { return of->rate(of->own(), first, last) / of->rate(reference, first, last); }
    // Where the reference is not plain decoding, but chosen.
    double held_out_ratio() const { return of->rate(of->own(), first, last) / of->held_out_rate(first, last); }
  };

  std::string setting() const {
    std::string text;
    for (const cost_aware_results& r : regimes_) {
      std::size_t n = 0;
      for (const prompt_domain& domain : r.domains)
        n += domain.prompts.size();
      text +=
          fmt::format("{}{}: {} texts by each of {} methods", text.empty() ? "" : "; ", r.name, n, r.methods.size());
    }
    return text + ", the methods taking turns prompt by prompt.";
  }

  std::string figure_table() const {
    markdown_table text(
        "The cost-aware policy over the best static setting; over plain decoding on adversarial prompts",
        {"against", "its speedup", "cost-aware", "ratio", "prompt by prompt", "asked", "", "chosen on other texts"},
        "regime, domains");
    for (const figure& f : figures_) {
      text.row(
          fmt::format("{}, {}", f.of->name, f.domains),
          {f.of->methods[f.reference], fmt::format("{:.3f}", f.of->speedup(f.reference, f.first, f.last)),
           fmt::format("{:.3f}", f.of->speedup(f.of->own(), f.first, f.last)), fmt::format("{:.3f}", f.ratio()),
           in_words(f.of->own_over(f.reference, f.first, f.last), 3), fmt::format("{:.2f}", f.asked),
           f.ratio() >= f.asked ? "met" : "missed", f.asked < 0.98 ? "" : fmt::format("{:.3f}", f.held_out_ratio())});
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

  const std::vector<cost_aware_results>& regimes_;
  cost_aware_run how_;
  std::vector<figure> figures_;
};

}  // namespace bench
