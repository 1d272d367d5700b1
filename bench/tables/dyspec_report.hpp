// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dyspec_results.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "timed_texts.hpp"

namespace bench {

//! DySpec's tables as Markdown, JSON and a plot.
class dyspec_report {
 public:
  dyspec_report(const dyspec_results& results, const timed_texts& texts, const dyspec_run& how)
      : r_(results),
        texts_(texts),
        how_(how),
        names_(dyspec_method_names.begin(), dyspec_method_names.end()),
        domains_(results.domains) {
    domains_.push_back("average");
    for (const int budget : r_.budgets)
      budgets_.push_back(std::to_string(budget));
  }

  std::string markdown() const {
    std::string text = introduction();
    for (std::size_t b = 0; b < r_.budgets.size(); ++b)
      text += paper_table(b);
    for (std::size_t t = 0; t < n_temperatures; ++t)
      text += tokens_table(t);
    return text + difference_table() + first_draw_table() + target_table() + share_table() + steps_table() +
           speed_table() + stations_table() + blocks_table() + settings_table() + acceptance_table();
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "dyspec"},
                          {"tokens_each", how_.tokens},
                          {"spacing", how_.spacing},
                          {"trials", how_.trials},
                          {"prompts_to_choose_by", how_.tune},
                          {"prompts_measured", r_.n_prompts},
                          {"prompts_decoded", r_.n_decoded},
                          {"repeats", how_.repeats},
                          {"rounds", n_rounds()},
                          {"draft_temperature", dyspec_draft.temperature},
                          {"domains", domains_},
                          {"budgets", r_.budgets}};
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      nlohmann::json& at = out["temperatures"][fmt::format("{:g}", dyspec_temperatures[t])];
      at["plain_ms_per_token"] = pairs(milliseconds(r_.plain_text_of(t)));
      at["acceptance_by_rank"] = r_.acceptance[t];
      at["first_draws_by_probability"] = {{"made", r_.first_draws[t].made},
                                          {"accepted", r_.first_draws[t].accepted},
                                          {"target_probability_sums", r_.first_draws[t].target}};
      at["threshold_by_round"] = {
          {"texts", r_.steps[t].texts}, {"drafted", r_.steps[t].drafted}, {"committed", r_.steps[t].committed}};
      for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
        for (std::size_t m = 0; m < names_.size(); ++m) {
          const std::size_t text = r_.text_of(t, b, m);
          at["budgets"][budgets_[b]][names_[m]] = {
              {"settings", r_.methods[t][b][m].settings},
              {"tokens_per_round", pairs(r_.tokens(t, b, m))},
              {"drafted_per_round", pairs(drafted(t, b, m))},
              {"draft_passes_per_round", pairs(passes(t, b, m))},
              {"decoded_tokens_per_round", pairs(texts_.tokens_per_round(text))},
              {"ms_per_token", pairs(milliseconds(text))},
              {"speedup", pairs(texts_.speedups(text, r_.plain_text_of(t)))},
              {"greedy_has_more_tokens_by", pairs(r_.difference(t, b, by_greedy, m))}};
        }
      }
    }
    for (const tree_blocks& b : r_.blocks) {
      out["blocks"].push_back({{"nodes", b.nodes},
                               {"paper", {b.paper_original, b.paper_reordered}},
                               {"trees", b.trees},
                               {"sums_by_order_and_prefix", b.sums}});
    }
    for (const budget_share& s : r_.shares) {
      nlohmann::json row = {{"target_temperature", s.target},
                            {"draft_temperature", s.draft},
                            {"budget", s.budget},
                            {"threshold", s.threshold},
                            {"adaptive", s.fill},
                            {"share", pairs(share(s))},
                            {"draft_passes_per_round", pairs(r_.by_domain(s.sums, passes_of))}};
      if (s.verified) row["tokens_per_round"] = pairs(r_.by_domain(s.sums, tokens_of));
      out["use_of_the_budget"].push_back(row);
    }
    return out;
  }

  std::string plot() const {
    std::vector<plot_panel> panels;
    std::vector<std::string> names = names_;
    names.push_back("plain");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      panels.push_back(
          {fmt::format("Tokens a round, temperature {:g}", dyspec_temperatures[t]), "budget", budgets_, {}});
      for (std::size_t m = 0; m < names_.size(); ++m)
        panels.back().lines.push_back({m, over_budgets([&](std::size_t b) { return r_.tokens(t, b, m).back(); })});
    }
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      panels.push_back(
          {fmt::format("Milliseconds a token, temperature {:g}", dyspec_temperatures[t]), "budget", budgets_, {}});
      for (std::size_t m = 0; m < names_.size(); ++m) {
        panels.back().lines.push_back(
            {m, over_budgets([&](std::size_t b) { return milliseconds(r_.text_of(t, b, m)).back(); })});
      }
      panels.back().lines.push_back(
          {names_.size(), over_budgets([&](std::size_t) { return milliseconds(r_.plain_text_of(t)).back(); })});
    }
    return line_plot("DySpec's trees and others of as many nodes",
                     fmt::format("{} prompts ({} timed), the draft at temperature {:g}; average of the domains.",
                                 sum(r_.n_prompts), sum(r_.n_decoded), dyspec_draft.temperature),
                     names, panels);
  }

 private:
  static constexpr std::size_t n_temperatures = dyspec_temperatures.size();

  static double tokens_of(const round_sums& s) { return s.tokens_per_round(); }
  static double passes_of(const round_sums& s) { return s.draft_passes_per_round(); }
  static double drafted_of(const round_sums& s) { return s.drafted_per_round(); }

  static std::size_t sum(const std::vector<std::size_t>& list) {
    std::size_t total = 0;
    for (const std::size_t n : list)
      total += n;
    return total;
  }
  double n_rounds() const {
    double n = 0;
    for (const auto& domain : r_.rounds[0][0][0]) {
      for (const round_sums& s : domain)
        n += s.rounds;
    }
    return n;
  }

  static nlohmann::json pairs(const std::vector<interval>& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const interval& v : values)
      list.push_back({v.mean, v.half_width});
    return list;
  }

  template <class FigureT>
  std::vector<interval> over_budgets(const FigureT& figure) const {
    std::vector<interval> list;
    for (std::size_t b = 0; b < r_.budgets.size(); ++b)
      list.push_back(figure(b));
    return list;
  }

  std::vector<interval> milliseconds(std::size_t text) const {
    return texts_.by_domain(text, [](const auto& s, auto, auto) { return 1e3 * s.time_per_token(); });
  }
  std::vector<interval> drafted(std::size_t t, std::size_t b, std::size_t m) const {
    return r_.by_domain(r_.rounds[t][b][m], drafted_of);
  }
  std::vector<interval> passes(std::size_t t, std::size_t b, std::size_t m) const {
    return r_.by_domain(r_.rounds[t][b][m], passes_of);
  }
  std::vector<interval> share(const budget_share& s) const {
    return r_.by_domain(s.sums, [&](const round_sums& sums) { return sums.drafted_per_round() / s.budget; });
  }

  std::string introduction() const {
    std::string text = fmt::format(
        "## DySpec's tables\n\nThe draft samples at temperature {:g}, as in the paper, the target at 0 and {:g}. "
        "Tokens a "
        "round are counted over single rounds at {:.0f} places of {} texts of {} tokens at each temperature, each tree "
        "verified {} "
        "time(s), all methods at the same places; a token of the target's own is counted in. Times are of {} of these "
        "texts decoded "
        "with each method, median of {} run(s), the methods taking turns prompt by prompt. ± is the 95 % interval over "
        "prompts. "
        "Thresholds, shapes and Sequoia's rates were chosen by tokens a round on {} other prompts of each domain.\n\n",
        dyspec_draft.temperature, dyspec_temperatures.back(), n_rounds(), sum(r_.n_prompts), how_.tokens, how_.trials,
        sum(r_.n_decoded), how_.repeats, how_.tune);
    for (const std::size_t other : {by_sequoia, by_specinfer}) {
      text += fmt::format("Tokens a round that DySpec's greedy tree commits **beyond {}'s**:", names_[other]);
      for (std::size_t t = 0; t < n_temperatures; ++t) {
        text += fmt::format("{} at temperature {:g}", t == 0 ? "" : ";", dyspec_temperatures[t]);
        for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
          const interval d = r_.difference(t, b, by_greedy, other).back();
          text +=
              fmt::format("{} **{:+.2f} ± {:.2f}** ({} nodes)", b == 0 ? "" : ",", d.mean, d.half_width, r_.budgets[b]);
        }
      }
      text += ", average of the domains.\n";
    }
    return text;
  }

  std::string paper_table(std::size_t b) const {
    std::vector<std::string> columns{"temperature"};
    columns.insert(columns.end(), names_.begin(), names_.end());
    columns.push_back("plain");
    markdown_table text(
        fmt::format("Milliseconds a token and, in brackets, tokens a round, of texts: {} nodes (Tables 1 and 2)",
                    r_.budgets[b]),
        columns, "domain");
    for (std::size_t d = 0; d < domains_.size(); ++d) {
      for (std::size_t t = 0; t < n_temperatures; ++t) {
        std::vector<std::string> row{fmt::format("{:g}", dyspec_temperatures[t])};
        for (std::size_t m = 0; m < names_.size(); ++m) {
          const std::size_t i = r_.text_of(t, b, m);
          row.push_back(fmt::format("{:.3f} ({:.2f})", milliseconds(i)[d].mean, texts_.tokens_per_round(i)[d].mean));
        }
        row.push_back(fmt::format("{:.3f}", milliseconds(r_.plain_text_of(t))[d].mean));
        text.row(domains_[d], row);
      }
    }
    return text.text();
  }

  std::string tokens_table(std::size_t t) const {
    std::vector<std::string> columns = domains_;
    columns.insert(columns.end(), {"drafted", "draft passes"});
    markdown_table text(fmt::format("Tokens a round at the same places, temperature {:g}", dyspec_temperatures[t]),
                        columns, "nodes, method");
    for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
      for (std::size_t m = 0; m < names_.size(); ++m) {
        std::vector<std::string> row = cells(r_.tokens(t, b, m), 2);
        row.push_back(fmt::format("{:.1f}", drafted(t, b, m).back().mean));
        row.push_back(fmt::format("{:.1f}", passes(t, b, m).back().mean));
        text.row(fmt::format("{}, {}", r_.budgets[b], names_[m]), row);
      }
    }
    return text.text();
  }

  std::string difference_table() const {
    markdown_table text("Tokens a round that DySpec's greedy tree has more, place by place", domains_,
                        "temperature, nodes, than");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
        for (std::size_t m = by_threshold; m < names_.size(); ++m) {
          std::vector<std::string> row;
          for (const interval& d : r_.difference(t, b, by_greedy, m))
            row.push_back(fmt::format("{:+.2f} ± {:.2f}", d.mean, d.half_width));
          text.row(fmt::format("{:g}, {}, {}", dyspec_temperatures[t], r_.budgets[b], names_[m]), row);
        }
      }
    }
    return text.text();
  }

  std::string share_table() const {
    markdown_table text("Use of a large budget (appendix B.1), average of the domains",
                        {"nodes", "threshold", "drafted", "share", "share, adaptive", "draft passes",
                         "draft passes, adaptive", "tokens a round", "tokens a round, adaptive"},
                        "temperature of target, draft");
    for (std::size_t i = 0; i + 1 < r_.shares.size(); i += 2) {
      const budget_share &a = r_.shares[i], &b = r_.shares[i + 1];
      const auto percent = [&](const budget_share& s) {
        const interval v = share(s).back();
        return fmt::format("{:.1f} ± {:.1f} %", 100 * v.mean, 100 * v.half_width);
      };
      const auto of = [&](const budget_share& s, const auto& figure) {
        return in_words(r_.by_domain(s.sums, figure).back(), 2);
      };
      text.row(
          fmt::format("{:g}, {:g}", a.target, a.draft),
          {std::to_string(a.budget), fmt::format("{:g}", a.threshold), of(a, drafted_of), percent(a), percent(b),
           of(a, passes_of), of(b, passes_of), a.verified ? of(a, tokens_of) : "", b.verified ? of(b, tokens_of) : ""});
    }
    return text.text();
  }

  std::string speed_table() const {
    std::vector<std::string> columns;
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (const std::string& budget : budgets_)
        columns.push_back(fmt::format("T {:g}, {} nodes", dyspec_temperatures[t], budget));
    }
    markdown_table text("Speedup over plain decoding, average of the domains", columns);
    for (std::size_t m = 0; m < names_.size(); ++m) {
      std::vector<interval> row;
      for (std::size_t t = 0; t < n_temperatures; ++t) {
        for (std::size_t b = 0; b < r_.budgets.size(); ++b)
          row.push_back(texts_.speedups(r_.text_of(t, b, m), r_.plain_text_of(t)).back());
      }
      text.row(names_[m], cells(row, 2));
    }
    return text.text();
  }

  std::string settings_table() const {
    markdown_table text(
        "Settings: thresholds; Sequoia's nodes by level; SpecInfer's draws from each node by level",
        {names_[by_threshold], names_[by_filling], names_[by_adapting], names_[by_sequoia], names_[by_specinfer]},
        "temperature, nodes");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
        std::vector<std::string> row;
        for (std::size_t m = by_threshold; m < names_.size(); ++m) {
          row.push_back(r_.methods[t][b][m].settings);
        }
        text.row(fmt::format("{:g}, {}", dyspec_temperatures[t], r_.budgets[b]), row);
      }
    }
    return text.text();
  }

  std::string acceptance_table() const {
    constexpr std::size_t shown = 8;
    std::vector<std::string> columns;
    for (std::size_t rank = 1; rank <= shown; ++rank)
      columns.push_back(fmt::format("draw {}", rank));
    markdown_table text(
        "How often the draw of a rank was the one accepted, on the prompts to choose by: Sequoia's rates", columns,
        "temperature");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      std::vector<std::string> row;
      for (std::size_t rank = 0; rank < shown; ++rank)
        row.push_back(fmt::format("{:.3f}", r_.acceptance[t][rank]));
      text.row(fmt::format("{:g}", dyspec_temperatures[t]), row);
    }
    return text.text();
  }

  // DySpec's hypothesis: these are equal.
  std::string first_draw_table() const {
    std::vector<std::string> columns;
    for (int i = 1; i <= 10; ++i)
      columns.push_back(fmt::format("to {:.1f}", i / 10.0));
    markdown_table text(
        "How often a first draw was accepted, by its draft probability (Figure 2); in brackets of how many", columns,
        "temperature");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      std::vector<std::string> row;
      for (std::size_t i = 0; i < 10; ++i) {
        const double made = r_.first_draws[t].made[i];
        row.push_back(made > 0 ? fmt::format("{:.2f} ({:.0f})", r_.first_draws[t].accepted[i] / made, made) : "");
      }
      text.row(fmt::format("{:g}", dyspec_temperatures[t]), row);
    }
    return text.text();
  }

  // The right half of the paper's Figure 2.
  std::string target_table() const {
    std::vector<std::string> columns;
    for (int i = 1; i <= 10; ++i)
      columns.push_back(fmt::format("to {:.1f}", i / 10.0));
    markdown_table text("The target's probability of a first draw, by its draft probability (Figure 2, right)", columns,
                        "temperature");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      std::vector<std::string> row;
      for (std::size_t i = 0; i < 10; ++i) {
        const double made = r_.first_draws[t].made[i];
        row.push_back(made > 0 ? fmt::format("{:.2f}", r_.first_draws[t].target[i] / made) : "");
      }
      text.row(fmt::format("{:g}", dyspec_temperatures[t]), row);
    }
    return text.text();
  }

  // The rounds of texts in the order in which they come: means over the texts that have so many.
  std::string steps_table() const {
    constexpr std::size_t shown = 12;
    std::vector<std::string> columns;
    for (std::size_t i = 1; i <= shown; ++i)
      columns.push_back(std::to_string(i));
    markdown_table text(fmt::format("Size of {}'s trees of at most {} nodes and, in brackets, tokens committed, by the "
                                    "number of the round (Figure 5)",
                                    names_[by_threshold], r_.budgets.back()),
                        columns, "temperature");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      const round_sizes& s = r_.steps[t];
      std::vector<std::string> row;
      for (std::size_t i = 0; i < shown; ++i)
        row.push_back(i < s.texts.size()
                          ? fmt::format("{:.1f} ({:.1f})", s.drafted[i] / s.texts[i], s.committed[i] / s.texts[i])
                          : "");
      text.row(fmt::format("{:g}", dyspec_temperatures[t]), row);
    }
    return text.text();
  }

  std::string stations_table() const {
    markdown_table text("Share of each part of a round (Figure 4)",
                        {"draft passes", "building trees", "target passes", "verification", "other"},
                        "temperature, nodes, method");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (std::size_t b = 0; b < r_.budgets.size(); ++b) {
        for (std::size_t m = 0; m < names_.size(); ++m) {
          const espalier::station_seconds s = texts_.total(r_.text_of(t, b, m)).seconds;
          const auto share = [&](double seconds) { return fmt::format("{:.1f} %", 100 * seconds / s.total()); };
          text.row(fmt::format("{:g}, {}, {}", dyspec_temperatures[t], r_.budgets[b], names_[m]),
                   {share(s.draft_forward), share(s.grow), share(s.target_forward), share(s.verify),
                    share(s.compile + s.commit)});
        }
      }
    }
    return text.text();
  }

  std::string blocks_table() const {
    markdown_table text(
        "Blocks of 32 x 32 of the mask of DySpec's greedy trees that are not empty, by the order of rows: behind no "
        "prefix, behind 128 tokens, behind the text (Figures 8 and 9)",
        {"trees", "mean nodes", "paper", "as drawn", "paper, reordered", "depth first", "heavy path"}, "nodes");
    for (const tree_blocks& b : r_.blocks) {
      const auto counts = [&](std::size_t order) {
        return fmt::format("{:.1f}, {:.1f}, {:.1f}", b.sums[order][0] / b.trees, b.sums[order][1] / b.trees,
                           b.sums[order][2] / b.trees);
      };
      text.row(std::to_string(b.nodes), {fmt::format("{:.0f}", b.trees), fmt::format("{:.1f}", b.reached / b.trees),
                                         fmt::format("{:.2f}", b.paper_original), counts(0),
                                         fmt::format("{:.2f}", b.paper_reordered), counts(1), counts(2)});
    }
    return text.text();
  }

  const dyspec_results& r_;
  const timed_texts& texts_;
  dyspec_run how_;
  std::vector<std::string> names_;
  std::vector<std::string> domains_;  // the domains, and their average
  std::vector<std::string> budgets_;
};

}  // namespace bench
