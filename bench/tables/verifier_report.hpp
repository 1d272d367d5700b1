// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "interval.hpp"
#include "line_plot.hpp"
#include "markdown_table.hpp"
#include "verifier_results.hpp"

namespace bench {

//! The tables of the verifiers as Markdown, JSON and a plot.
class verifier_report {
 public:
  verifier_report(const verifier_results& results, const espalier::cost_model& costs, const verifier_run& how)
      : r_(results), costs_(costs), how_(how), domains_(results.domains) {
    domains_.push_back("average");
    for (const sampling_setting& s : r_.samplings)
      samplings_.push_back(s.name);
    for (int depth = 0; depth < n_depths; ++depth)
      depths_.push_back(std::to_string(depth));
    for (const verifier_row& v : r_.verifiers)
      names_.push_back(v.name);
  }

  std::string markdown() const {
    std::string text = introduction();
    for (const tree_kind kind : kinds)
      text += table(fmt::format("Block efficiency, {} (Table 2)", name_of(kind)), domains_, 2,
                    [&](std::size_t v) { return efficiency(v, kind); });
    for (const tree_kind kind : kinds)
      text += throughput_table(kind);
    text += order_table() + one_path_table();
    for (const goal by : {goal::block_efficiency, goal::throughput})
      text += paths_table(by);
    for (const tree_kind kind : kinds) {
      text += table(fmt::format("Block efficiency by sampling, {} (Tables 11, 13, 15)", name_of(kind)), samplings_, 2,
                    [&](std::size_t v) { return efficiency_by_sampling(v, kind); });
      text += choice_table(kind, goal::block_efficiency);
    }
    for (const tree_kind kind : kinds) {
      text += table(
          fmt::format("Tokens a second by sampling, {} (Tables 10, 12, 14)", name_of(kind)), samplings_, 0,
          [&](std::size_t v) { return rate_by_sampling(v, kind); }, plain_rate_by_sampling());
      text += choice_table(kind, goal::throughput);
    }
    text += draft_table();
    for (const int paths : {1, most_paths})
      text += table(
          fmt::format("Acceptance at a node by its depth, {} (Figure 1)",
                      paths == 1 ? "one draw" : fmt::format("{} draws", paths)),
          depths_, 3, [&](std::size_t v) { return r_.acceptance(v, paths); }, {}, paths > 1);
    markdown_table distance("Distance of target and draft at a node by its depth (Figure 1)", depths_, "");
    distance.row("sum of absolute differences", cells(r_.distance(), 3));
    return text + distance.text() + cost_table();
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "verifiers"},
                          {"tokens_each", how_.tokens},
                          {"root_spacing", how_.spacing},
                          {"trials", how_.trials},
                          {"prompts_to_choose_by", how_.tune},
                          {"prompts_measured", r_.n_prompts},
                          {"prompts_decoded", r_.n_decoded},
                          {"repeats", how_.repeats},
                          {"roots", r_.roots()},
                          {"domains", domains_},
                          {"samplings", samplings_},
                          {"depths", n_depths}};
    for (std::size_t v = 0; v < r_.verifiers.size(); ++v) {
      nlohmann::json& entry = out["verifiers"][names_[v]];
      for (const tree_kind kind : kinds) {
        entry[name_of(kind)] = {{"block_efficiency", pairs(efficiency(v, kind))},
                                {"block_efficiency_by_sampling", pairs(efficiency_by_sampling(v, kind))},
                                {"block_efficiency_draft_at_1", pairs(efficiency(v, kind, 1))},
                                {"settings_for_block_efficiency", choices(v, kind, goal::block_efficiency)},
                                {"tokens_per_second", pairs(decoded(v, kind, rate))},
                                {"tokens_per_second_by_sampling", pairs(rate_by_sampling(v, kind))},
                                {"tokens_per_round", pairs(decoded(v, kind, length))},
                                {"speedup", pairs(decoded(v, kind, speedup))},
                                {"settings_for_throughput", choices(v, kind, goal::throughput)}};
      }
      for (int paths = 1; paths <= (r_.verifiers[v].takes_paths ? most_paths : 1); ++paths)
        entry["acceptance_by_depth"][std::to_string(paths)] = pairs(r_.acceptance(v, paths));
    }
    out["plain_tokens_per_second"] = pairs(r_.by_domain(r_.n_decoded, r_.of_plain(rate)));
    out["distance_by_depth"] = pairs(r_.distance());
    for (const int rows : rows_shown)
      out["target_pass_seconds"][std::to_string(rows)] = costs_.target_pass(rows, context_shown);
    for (int rows = 1; rows <= most_paths; ++rows)
      out["draft_pass_seconds"][std::to_string(rows)] = costs_.draft_pass(rows, context_shown);
    return out;
  }

  std::string plot() const {
    std::vector<plot_panel> panels = {
        {"Block efficiency, best K and L", "sampling of the target", samplings_, {}},
        {"Tokens a second, best K, L1 and L2", "sampling of the target", samplings_, {}},
        {"Acceptance at a node of 4 draws", "its depth; draft at temperature 1", depths_, {}},
        {"Sum of |target - draft| at a node", "its depth; draft at temperature 1", depths_, {}}};
    std::vector<std::string> names = names_;
    for (std::size_t v = 0; v < names_.size(); ++v) {
      panels[0].lines.push_back({v, efficiency_by_sampling(v, tree_kind::undelayed)});
      panels[1].lines.push_back({v, rate_by_sampling(v, tree_kind::delayed)});
      if (r_.verifiers[v].takes_paths) panels[2].lines.push_back({v, r_.acceptance(v, most_paths)});
    }
    panels[1].lines.push_back({names.size(), plain_rate_by_sampling()});
    panels[3].lines.push_back({names.size(), r_.distance()});
    names.push_back("none, models alone");
    return line_plot("Verifiers of sampled trees", setting(), names, panels);
  }

 private:
  static constexpr tree_kind kinds[] = {tree_kind::undelayed, tree_kind::delayed};
  using stats = espalier::statistics;
  // The passes whose costs are printed: from one row to the largest static tree, after a text of usual length.
  static constexpr int rows_shown[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 1 + most_trunk + most_paths* most_length};
  static constexpr int context_shown = 160;

  static double rate(const stats& s, const stats&) { return s.throughput(); }
  static double length(const stats& s, const stats&) { return s.tokens_per_round(); }
  static double speedup(const stats& s, const stats& plain) { return s.speedup(plain); }
  static std::string name_of(tree_kind kind) { return kind == tree_kind::undelayed ? "undelayed" : "delayed"; }

  static nlohmann::json pairs(const std::vector<interval>& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const interval& v : values)
      list.push_back({v.mean, v.half_width});
    return list;
  }

  std::vector<interval> efficiency(std::size_t v, tree_kind kind, std::size_t drafts = 2) const {
    return r_.by_domain(r_.n_prompts, r_.block_efficiency(v, {.kind = kind, .drafts = drafts}));
  }
  std::vector<interval> efficiency_by_sampling(std::size_t v, tree_kind kind) const {
    return r_.by_sampling(r_.n_prompts, r_.block_efficiency(v, {.kind = kind}));
  }
  template <class OfT>
  std::vector<interval> decoded(std::size_t v, tree_kind kind, const OfT& of) const {
    return r_.by_domain(r_.n_decoded, r_.of_decoded(v, kind, of));
  }
  std::vector<interval> rate_by_sampling(std::size_t v, tree_kind kind) const {
    return r_.by_sampling(r_.n_decoded, r_.of_decoded(v, kind, rate));
  }
  std::vector<interval> plain_rate_by_sampling() const { return r_.by_sampling(r_.n_decoded, r_.of_plain(rate)); }

  // The draft's sampling is marked if it is the target's.
  std::vector<std::string> choices(std::size_t v, tree_kind kind, goal by) const {
    std::vector<std::string> list;
    for (const static_choice& c : r_.choose(v, by, {.kind = kind}))
      list.push_back(in_words(r_.trees[c.tree]) + (c.draft > 0 ? " *" : ""));
    return list;
  }

  std::string setting() const {
    std::size_t measured = 0, texts = 0;
    for (std::size_t d = 0; d < r_.domains.size(); ++d)
      measured += r_.n_prompts[d], texts += r_.n_decoded[d];
    return fmt::format(
        "{} prompts, {} sampling settings, {} roots offline; {} texts of {} tokens a setting decoded and timed.",
        measured, r_.samplings.size(), r_.roots(), texts, how_.tokens);
  }

  std::string introduction() const {
    return fmt::format(
        "## Verifiers of sampled trees\n\n{} ± is the 95 % interval over prompts; averages are over sampling settings "
        "and domains. Settings are chosen for each verifier and sampling setting on {} other prompts of each domain, "
        "offline.\n\n"
        "*Block efficiency* is measured offline: roots stand every {} tokens along texts of {} tokens that the target "
        "wrote, at each root every tree is drawn, and each is verified {} time(s). *Undelayed*: K independent paths of "
        "L tokens, K in 1 to 4, L in 0 to 8. *Delayed*: these, and K paths of L2 in 1 to 8 from a trunk of L1 in 1 to "
        "8; "
        "for a single path, up to 16 tokens. The draft samples at temperature 1 or as the target does, whichever is "
        "better on the prompts to choose by. *Tokens a second* are measured in decoding, {} run(s) of each text, the "
        "sampling settings and verifiers taking turns prompt by prompt, at the tree that has the most offline tokens "
        "for the cost of its "
        "passes.\n",
        setting(), how_.tune, how_.spacing, how_.tokens, how_.trials, how_.repeats);
  }

  // A row for each verifier; `last` has the figures of plain decoding, if there are any.
  template <class FiguresT>
  std::string table(const std::string& title, const std::vector<std::string>& columns, int digits,
                    const FiguresT& figures, const std::vector<interval>& last = {}, bool of_paths_only = false) const {
    markdown_table text(title, columns, "verifier");
    for (std::size_t v = 0; v < names_.size(); ++v) {
      if (r_.verifiers[v].takes_paths || !of_paths_only) text.row(names_[v], cells(figures(v), digits));
    }
    if (!last.empty()) text.row("plain decoding", cells(last, digits));
    return text.text();
  }

  std::string throughput_table(tree_kind kind) const {
    std::vector<std::string> columns = domains_;
    columns.insert(columns.end(), {"over plain decoding", "tokens a round", "the same offline"});
    markdown_table text(fmt::format("Tokens a second, {} (Table 3)", name_of(kind)), columns, "verifier");
    for (std::size_t v = 0; v < names_.size(); ++v) {
      std::vector<std::string> row = cells(decoded(v, kind, rate), 0);
      row.push_back(in_words(decoded(v, kind, speedup).back(), 2));
      row.push_back(in_words(decoded(v, kind, length).back(), 2));
      const auto offline = r_.block_efficiency(v, {.kind = kind}, goal::throughput);
      row.push_back(in_words(r_.by_domain(r_.n_prompts, offline).back(), 2));
      text.row(names_[v], row);
    }
    std::vector<std::string> row = cells(r_.by_domain(r_.n_decoded, r_.of_plain(rate)), 0);
    row.insert(row.end(), {"1", "1", "1"});
    text.row("plain decoding", row);
    return text.text();
  }

  // Differences prompt by prompt: verifiers share texts, trees and random numbers, so that these vary little.
  std::string order_table() const {
    struct relation {
      const char *more, *less;
    };
    constexpr relation relations[] = {{"traversal", "spectr"},        {"traversal", "specinfer"},
                                      {"spectr", "naive-tree"},       {"specinfer", "naive-tree"},
                                      {"naive-tree", "naive"},        {"naive-tree", "block-verification"},
                                      {"naive", "target-only"},       {"block-verification", "target-only"},
                                      {"block-verification", "naive"}};
    markdown_table text(
        "Order in block efficiency beside the paper's (last line: what theory says, the paper found the reverse)",
        {"undelayed", "", "undelayed, draft at temperature 1", "", "delayed", ""}, "expected");
    for (const relation& expected : relations) {
      const std::size_t more = verifier(expected.more), less = verifier(expected.less);
      if (more == names_.size() || less == names_.size()) continue;
      std::vector<std::string> row;
      for (const auto& [kind, drafts] :
           {std::pair{tree_kind::undelayed, 2}, std::pair{tree_kind::undelayed, 1}, std::pair{tree_kind::delayed, 2}}) {
        const choice_range range{.kind = kind, .drafts = static_cast<std::size_t>(drafts)};
        const auto a = r_.block_efficiency(more, range), b = r_.block_efficiency(less, range);
        const interval difference = r_.by_domain(r_.n_prompts, [&](std::size_t s, std::size_t d, std::size_t p) {
                                        return a(s, d, p) - b(s, d, p);
                                      }).back();
        row.push_back(fmt::format("{:+.3f} ± {:.3f}", difference.mean, difference.half_width));
        row.push_back(difference.mean > difference.half_width    ? "holds"
                      : difference.mean < -difference.half_width ? "reversed"
                                                                 : "undecided");
      }
      text.row(fmt::format("{} > {}", expected.more, expected.less), row);
    }
    std::string found;
    for (const tree_kind kind : kinds) {
      std::vector<std::pair<double, std::string>> order;
      for (std::size_t v = 0; v < names_.size(); ++v)
        order.push_back({efficiency(v, kind).back().mean, names_[v]});
      std::sort(order.rbegin(), order.rend());
      found += fmt::format("\nFound, {}: ", name_of(kind));
      for (const auto& [mean, name] : order)
        found += fmt::format("{}{} {:.2f}", &name == &order.front().second ? "" : ", ", name, mean);
      found += ".\n";
    }
    return text.text() + found;
  }

  // Cases in which verifiers must agree: the walks are one algorithm there, and traversal is block verification.
  std::string one_path_table() const {
    const std::size_t tree = place_of(r_.trees, {.paths = 1, .trunk = 0, .length = 5});
    std::vector<std::string> columns = domains_;
    columns.push_back("less than block verification by");
    markdown_table text("Check: block efficiency of one path of 5 tokens, draft at temperature 1", columns, "verifier");
    const auto figure = [&](std::size_t v) {
      return [this, v, tree](std::size_t s, std::size_t d, std::size_t p) {
        return r_.offline[s][0][d][p].block_efficiency(v, tree);
      };
    };
    const auto block = figure(std::min(verifier("block-verification"), names_.size() - 1));
    for (std::size_t v = 0; v < names_.size(); ++v) {
      const auto mine = figure(v);
      std::vector<std::string> row = cells(r_.by_domain(r_.n_prompts, mine), 3);
      row.push_back(in_words(r_.by_domain(r_.n_prompts, [&](std::size_t s, std::size_t d,
                                                            std::size_t p) { return block(s, d, p) - mine(s, d, p); })
                                 .back(),
                             3));
      text.row(names_[v], row);
    }
    return text.text();
  }

  // The best of each K.
  std::string paths_table(goal by) const {
    std::vector<std::string> columns;
    std::vector<choice_range> ranges;
    for (const tree_kind kind : kinds) {
      for (int paths = 1; paths <= most_paths; ++paths) {
        columns.push_back(fmt::format("K={}{}", paths, kind == tree_kind::delayed ? ", delayed" : ""));
        ranges.push_back({.kind = kind, .paths = paths});
      }
    }
    const bool of_rate = by == goal::throughput;
    markdown_table text(of_rate ? "Tokens a second over plain decoding by K, foreseen from the cost of passes alone"
                                : "Block efficiency by K",
                        columns, "verifier");
    const double plain = costs_.target_pass(1, context_shown);
    for (std::size_t v = 0; v < names_.size(); ++v) {
      std::vector<std::string> row;
      for (const choice_range& range : ranges) {
        if (range.paths > 1 && !r_.verifiers[v].takes_paths) {
          row.push_back("");
          continue;
        }
        const auto of = [&](const offline_sums& sums, std::size_t verifier, std::size_t tree) {
          return of_rate ? sums.tokens_of(verifier, tree) / sums.seconds[tree] * plain
                         : sums.block_efficiency(verifier, tree);
        };
        row.push_back(in_words(r_.by_domain(r_.n_prompts, r_.of_offline(v, by, range, of)).back(), 2));
      }
      text.row(names_[v], row);
    }
    return text.text();
  }

  std::string choice_table(tree_kind kind, goal by) const {
    markdown_table text(fmt::format("K, L or K, L1+L2 for {}, {}; * drafted as the target samples",
                                    by == goal::throughput ? "tokens a second" : "block efficiency", name_of(kind)),
                        samplings_, "verifier");
    for (std::size_t v = 0; v < names_.size(); ++v)
      text.row(names_[v], choices(v, kind, by));
    return text.text();
  }

  std::string draft_table() const {
    markdown_table text("Overlap of draft and target at the roots: the acceptance of one draw", samplings_, "draft");
    for (std::size_t draft = 0; draft < 2; ++draft) {
      const auto overlap = r_.by_sampling(r_.n_prompts, [&](std::size_t s, std::size_t d, std::size_t p) {
        const auto& ways = r_.offline[s];
        const offline_sums& sums = ways[std::min(draft, ways.size() - 1)][d][p];
        return 1 - sums.distance[0] / sums.roots / 2;
      });
      text.row(draft == 0 ? "at temperature 1" : "as the target", cells(overlap, 3));
    }
    return text.text();
  }

  std::string cost_table() const {
    std::vector<std::string> columns, target, draft;
    for (const int rows : rows_shown) {
      columns.push_back(std::to_string(rows));
      target.push_back(fmt::format("{:.3f}", 1e3 * costs_.target_pass(rows, context_shown)));
      draft.push_back(rows <= most_paths ? fmt::format("{:.3f}", 1e3 * costs_.draft_pass(rows, context_shown)) : "");
    }
    markdown_table text(
        fmt::format("Milliseconds of a pass by its rows after {} tokens, by which settings were chosen", context_shown),
        columns, "model");
    text.row("target", target);
    text.row("draft", draft);
    return text.text();
  }

  std::size_t verifier(const std::string& name) const {
    return static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }

  const verifier_results& r_;
  const espalier::cost_model& costs_;
  verifier_run how_;
  std::vector<std::string> domains_;  // the domains, and their average
  std::vector<std::string> samplings_;
  std::vector<std::string> depths_;
  std::vector<std::string> names_;
};

}  // namespace bench
