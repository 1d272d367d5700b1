// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ddtree_results.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "timed_texts.hpp"

namespace bench {

//! DDTree's tables as Markdown, JSON and a plot.
class ddtree_report {
 public:
  ddtree_report(const ddtree_results& results, const ddtree_run& how)
      : r_(results), how_(how), domains_(results.domains) {
    domains_.push_back("average");
    for (const int budget : r_.budgets)
      budgets_.push_back(std::to_string(budget));
    for (std::size_t n = 1; n <= r_.counts[0][0].size(); ++n)
      lengths_.push_back(std::to_string(n));
  }

  std::string markdown() const {
    std::string text = introduction();
    for (std::size_t t = 0; t < n_temperatures; ++t)
      text += paper_table(t);
    text += difference_table();
    for (std::size_t t = 0; t < n_temperatures; ++t)
      text += speed_table(t) + tokens_table(t);
    for (std::size_t t = 0; t < n_temperatures; ++t)
      text += curve_table(t);
    return text + histogram_table() + round_table();
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "ddtree"},
                          {"tokens_each", how_.tokens},
                          {"curve_tokens_each", how_.curve_tokens},
                          {"prompts_to_choose_by", how_.tune},
                          {"prompts_measured", r_.n_prompts},
                          {"prompts_with_every_budget", how_.curve},
                          {"repeats", how_.repeats},
                          {"domains", domains_},
                          {"budgets", r_.budgets}};
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      nlohmann::json& at = out["temperatures"][fmt::format("{:g}", ddtree_temperatures[t])];
      const timed_texts& texts = r_.texts[t];
      for (std::size_t row = 0; row < n_ddtree_rows; ++row) {
        const espalier::statistics sum = texts.total(row);
        at["methods"][ddtree_row_names[row]] = {{"setting", setting_in_words(row, r_.settings[t][row])},
                                                {"speedup", pairs(texts.speedups(row, plain_row))},
                                                {"tokens_per_second", pairs(rates(t, row))},
                                                {"tokens_per_round", pairs(texts.tokens_per_round(row))},
                                                {"drafted_per_round", sum.drafted_per_round()},
                                                {"rounds_by_tokens", r_.counts[t][row]},
                                                {"speedup_of_total_time", sum.speedup(texts.total(plain_row))}};
      }
      for (std::size_t i = 0; i < curve_names(t).size(); ++i) {
        const espalier::statistics sum = r_.curves[t].total(i + 1);
        at["budget_curve"].push_back({{"method", curve_names(t)[i]},
                                      {"tokens_per_round", pairs(r_.curves[t].tokens_per_round(i + 1))},
                                      {"speedup", pairs(r_.curves[t].speedups(i + 1, plain_row))},
                                      {"drafted_per_round", sum.drafted_per_round()},
                                      {"ms_per_round", 1e3 * sum.seconds.total() / static_cast<double>(sum.rounds)}});
      }
      for (const std::size_t tree : {equal_tree_row, best_tree_row, sharp_equal_row, sharp_best_row}) {
        for (const std::size_t chain : {whole_chain_row, best_chain_row}) {
          at["trees_beside_chains"][ddtree_row_names[tree]][ddtree_row_names[chain]] = {
              {"more_tokens_per_round", pairs(difference(t, tree, chain))},
              {"times_the_throughput", pairs(ratio(t, tree, chain))}};
        }
      }
    }
    return out;
  }

  std::string plot() const {
    const std::vector<std::string> names = {"chain, whole block", "chain, best length", "best-first",
                                            fmt::format("best-first, {}", r_.settings[0][equal_tree_row]),
                                            fmt::format("best-first, {}", r_.settings[0][large_tree_row])};
    std::vector<plot_panel> panels;
    const auto panel = [&](const std::string& what, const auto& figure) {
      for (std::size_t t = 0; t < n_temperatures; ++t) {
        plot_panel p{fmt::format("{}, temperature {:g}", what, ddtree_temperatures[t]), "budget", budgets_, {}};
        for (std::size_t chain = 0; chain < 2; ++chain)
          p.lines.push_back({chain, std::vector<interval>(budgets_.size(), figure(t, chain + 1))});
        p.lines.push_back({2, {}});
        for (std::size_t b = 0; b < budgets_.size(); ++b)
          p.lines.back().values.push_back(figure(t, b + 3));
        panels.push_back(std::move(p));
      }
    };
    panel("Tokens a round", [&](std::size_t t, std::size_t m) { return r_.curves[t].tokens_per_round(m).back(); });
    panel("Speedup over plain decoding",
          [&](std::size_t t, std::size_t m) { return r_.curves[t].speedups(m, plain_row).back(); });
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      plot_panel p{fmt::format("Percent of rounds, temperature {:g}", ddtree_temperatures[t]),
                   "tokens that a round commits",
                   lengths_,
                   {}};
      for (std::size_t row = whole_chain_row; row <= large_tree_row; ++row) {
        std::vector<interval> values;
        for (const double share : shares(t, row))
          values.push_back({.mean = 100 * share});
        p.lines.push_back({row - whole_chain_row, values});
      }
      panels.push_back(std::move(p));
    }
    return line_plot("Trees over a block draft's marginals",
                     fmt::format("Curves: {} prompts a domain, {} tokens each; rounds: {} prompts, {} tokens each.",
                                 how_.curve, how_.curve_tokens, n_prompts(), how_.tokens),
                     names, panels);
  }

 private:
  static constexpr std::size_t n_temperatures = ddtree_temperatures.size();

  std::size_t n_prompts() const {
    std::size_t sum = 0;
    for (const std::size_t n : r_.n_prompts)
      sum += n;
    return sum;
  }

  static nlohmann::json pairs(const std::vector<interval>& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const interval& v : values)
      list.push_back({v.mean, v.half_width});
    return list;
  }

  std::vector<interval> rates(std::size_t t, std::size_t row) const {
    return r_.texts[t].by_domain(row, [](const auto& s, auto, auto) { return s.throughput(); });
  }

  // The ratio of a tree to another method, prompt by prompt.
  std::vector<interval> difference(std::size_t t, std::size_t tree, std::size_t other) const {
    return r_.texts[t].by_domain(tree, [&](const auto& s, std::size_t d, std::size_t p) {
      return s.tokens_per_round() - r_.texts[t].at(other, d, p).tokens_per_round();
    });
  }
  std::vector<interval> ratio(std::size_t t, std::size_t tree, std::size_t other) const {
    return r_.texts[t].speedups(tree, other);
  }

  std::vector<double> shares(std::size_t t, std::size_t row) const {
    double rounds = 0;
    for (const double n : r_.counts[t][row])
      rounds += n;
    std::vector<double> list;
    for (const double n : r_.counts[t][row])
      list.push_back(rounds > 0 ? n / rounds : 0);
    return list;
  }

  std::vector<std::string> curve_names(std::size_t t) const {
    std::vector<std::string> names = {"chain, whole block", fmt::format("chain of {}", r_.settings[t][best_chain_row])};
    for (const std::string& budget : budgets_)
      names.push_back(fmt::format("best-first, {}", budget));
    return names;
  }

  static std::string setting_in_words(std::size_t row, int setting) {
    if (row != sharp_best_row && row != sharp_equal_row) return std::to_string(setting);
    const sharp_setting sharp = sharp_setting::of(setting);
    return fmt::format("{} nodes, marginals at {:g}", sharp.budget, sharp.percent / 100.0);
  }
  // The name, with the chosen setting.
  std::string row_name(std::size_t t, std::size_t row) const {
    const bool has_none = row == plain_row || row == whole_chain_row || row == large_tree_row || row == dynatree_row ||
                          row == drawn_chain_row;
    return has_none ? ddtree_row_names[row]
                    : fmt::format("{}: {}", ddtree_row_names[row], setting_in_words(row, r_.settings[t][row]));
  }

  std::string introduction() const {
    std::string text = fmt::format(
        "## DDTree's table\n\n{} prompts, {} tokens each, at temperatures 0 and {:g}; ± is the 95 % interval over "
        "prompts. Each "
        "figure is the median of {} run(s), the methods taking turns prompt by prompt, all with the same seeds. A "
        "round commits "
        "the accepted tokens and one of the target's own: both are counted, as in the paper's tau. Lengths and budgets "
        "were chosen by "
        "speed on {} other prompts of each domain, one for each temperature. DySpec's tree draws at the target's "
        "temperature, at "
        "least 0.6.\n\n",
        n_prompts(), how_.tokens, ddtree_temperatures.back(), how_.repeats, how_.tune);
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      const interval more = difference(t, equal_tree_row, whole_chain_row).back();
      const interval faster = ratio(t, best_tree_row, whole_chain_row).back();
      const interval than_best = ratio(t, best_tree_row, best_chain_row).back();
      text += fmt::format(
          "At temperature {:g} **best-first commits {:+.2f} ± {:.2f} tokens a round more than a chain of as many "
          "nodes, the whole "
          "block**; at its best budget of {} **it is {:.2f} ± {:.2f} times as fast**, and {:.2f} ± {:.2f} times as "
          "fast as the best "
          "chain, of {}.\n",
          ddtree_temperatures[t], more.mean, more.half_width, r_.settings[t][best_tree_row], faster.mean,
          faster.half_width, than_best.mean, than_best.half_width, r_.settings[t][best_chain_row]);
      const interval sharp_more = difference(t, sharp_equal_row, whole_chain_row).back();
      const interval sharp_faster = ratio(t, sharp_best_row, whole_chain_row).back();
      const interval sharp_than_best = ratio(t, sharp_best_row, best_chain_row).back();
      text += fmt::format(
          "Where the marginals have a temperature of their own: {}, {:+.2f} ± {:.2f} tokens a round more; {}, {:.2f} ± "
          "{:.2f} and {:.2f} ± {:.2f} times as fast.\n\n",
          setting_in_words(sharp_equal_row, r_.settings[t][sharp_equal_row]), sharp_more.mean, sharp_more.half_width,
          setting_in_words(sharp_best_row, r_.settings[t][sharp_best_row]), sharp_faster.mean, sharp_faster.half_width,
          sharp_than_best.mean, sharp_than_best.half_width);
    }
    return text;
  }

  std::string paper_table(std::size_t t) const {
    std::vector<std::string> columns;
    for (std::size_t row = whole_chain_row; row <= large_tree_row; ++row) {
      columns.push_back(row == whole_chain_row  ? "DFlash: speedup"
                        : row == best_chain_row ? fmt::format("chain of {}: speedup", r_.settings[t][row])
                                                : fmt::format("DDTree, {} nodes: speedup", r_.settings[t][row]));
      columns.push_back("tokens a round");
    }
    markdown_table text(
        fmt::format("Speedup and acceptance length, temperature {:g} (Table 1)", ddtree_temperatures[t]), columns,
        "domain");
    for (std::size_t d = 0; d < domains_.size(); ++d) {
      std::vector<std::string> cells;
      for (std::size_t row = whole_chain_row; row <= large_tree_row; ++row) {
        cells.push_back(fmt::format("{:.2f}", r_.texts[t].speedups(row, plain_row)[d].mean));
        cells.push_back(fmt::format("{:.2f}", r_.texts[t].tokens_per_round(row)[d].mean));
      }
      text.row(domains_[d], cells);
    }
    return text.text();
  }

  std::string difference_table() const {
    markdown_table text("Best-first beside chains over the same draft, prompt by prompt", domains_,
                        "temperature, tree, chain, figure");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (const std::size_t tree : {equal_tree_row, best_tree_row, sharp_equal_row, sharp_best_row}) {
        for (const std::size_t chain : {whole_chain_row, best_chain_row}) {
          const char* nodes = tree == equal_tree_row || tree == best_tree_row ? " nodes" : "";
          const std::string names =
              fmt::format("{:g}, {}{}, chain of {}", ddtree_temperatures[t],
                          setting_in_words(tree, r_.settings[t][tree]), nodes, r_.settings[t][chain]);
          std::vector<std::string> more;
          for (const interval& v : difference(t, tree, chain))
            more.push_back(fmt::format("{:+.2f} ± {:.2f}", v.mean, v.half_width));
          text.row(names + ": more tokens a round", more);
          text.row(names + ": times the throughput", cells(ratio(t, tree, chain), 2));
        }
      }
    }
    return text.text();
  }

  std::string speed_table(std::size_t t) const {
    std::vector<std::string> columns = domains_;
    columns.push_back("tokens a second");
    markdown_table text(fmt::format("Speedup over plain decoding, temperature {:g}", ddtree_temperatures[t]), columns);
    for (std::size_t row = 0; row < n_ddtree_rows; ++row) {
      std::vector<std::string> line = cells(r_.texts[t].speedups(row, plain_row), 2);
      line.push_back(in_words(rates(t, row).back(), 0));
      text.row(row_name(t, row), line);
    }
    return text.text();
  }

  std::string tokens_table(std::size_t t) const {
    std::vector<std::string> columns = domains_;
    columns.push_back("drafted a round");
    markdown_table text(fmt::format("Tokens a round, temperature {:g}", ddtree_temperatures[t]), columns);
    for (std::size_t row = 0; row < n_ddtree_rows; ++row) {
      std::vector<std::string> line = cells(r_.texts[t].tokens_per_round(row), 2);
      line.push_back(fmt::format("{:.1f}", r_.texts[t].total(row).drafted_per_round()));
      text.row(row_name(t, row), line);
    }
    return text.text();
  }

  std::string curve_table(std::size_t t) const {
    markdown_table text(
        fmt::format("Every budget, temperature {:g}, {} prompts of each domain, {} tokens each (Figure 3)",
                    ddtree_temperatures[t], how_.curve, how_.curve_tokens),
        {"tokens a round", "speedup", "drafted a round", "ms a round", "of it draft passes", "target passes"});
    const std::vector<std::string> names = curve_names(t);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const espalier::statistics sum = r_.curves[t].total(i + 1);
      const auto ms = [&](double seconds) {
        return fmt::format("{:.2f}", 1e3 * seconds / static_cast<double>(sum.rounds));
      };
      text.row(names[i], {in_words(r_.curves[t].tokens_per_round(i + 1).back(), 2),
                          in_words(r_.curves[t].speedups(i + 1, plain_row).back(), 2),
                          fmt::format("{:.1f}", sum.drafted_per_round()), ms(sum.seconds.total()),
                          ms(sum.seconds.draft_forward), ms(sum.seconds.target_forward)});
    }
    return text.text();
  }

  std::string histogram_table() const {
    markdown_table text("Percent of rounds that commit so many tokens (Figure 4)", lengths_, "temperature, method");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (std::size_t row = whole_chain_row; row <= large_tree_row; ++row) {
        std::vector<std::string> line;
        for (const double share : shares(t, row))
          line.push_back(fmt::format("{:.1f}", 100 * share));
        text.row(fmt::format("{:g}, {}", ddtree_temperatures[t], row_name(t, row)), line);
      }
    }
    return text.text();
  }

  std::string round_table() const {
    markdown_table text("Milliseconds of a round",
                        {"draft passes", "grow", "compile", "target passes", "verify", "commit", "sum"},
                        "temperature, method");
    for (std::size_t t = 0; t < n_temperatures; ++t) {
      for (std::size_t row = 0; row < n_ddtree_rows; ++row) {
        const espalier::statistics sum = r_.texts[t].total(row);
        const auto ms = [&](double seconds) {
          return fmt::format("{:.3f}", 1e3 * seconds / static_cast<double>(sum.rounds));
        };
        text.row(
            fmt::format("{:g}, {}", ddtree_temperatures[t], row_name(t, row)),
            {ms(sum.seconds.draft_forward), ms(sum.seconds.grow), ms(sum.seconds.compile),
             ms(sum.seconds.target_forward), ms(sum.seconds.verify), ms(sum.seconds.commit), ms(sum.seconds.total())});
      }
    }
    return text.text();
  }

  const ddtree_results& r_;
  ddtree_run how_;
  std::vector<std::string> domains_;  // the domains, and their average
  std::vector<std::string> budgets_;
  std::vector<std::string> lengths_;
};

}  // namespace bench
