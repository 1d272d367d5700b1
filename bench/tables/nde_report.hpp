// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/selector/delayed_action.hpp"
#include "interval.hpp"
#include "markdown_table.hpp"
#include "nde_methods.hpp"
#include "svg_page.hpp"
#include "timed_texts.hpp"
#include "verifier_results.hpp"

namespace bench {

//! The ways of choosing a tree that are decoded.
enum class nde_kind { undelayed, delayed, neural };

//! Everything that was measured.
struct nde_results {
  verifier_results settings;  //!< samplings, verifiers, trees, domains, n_decoded, and the measurements by which static
                              //!< trees were chosen
  std::vector<std::size_t> neural;         //!< the verifiers that have selectors
  std::vector<selector_record> selectors;  //!< [neural]
  //! [samplings][verifiers][3 kinds] index of the method; 0 if it was not measured
  std::vector<std::vector<std::array<std::size_t, 3>>> method;
  std::vector<std::size_t> plain;  //!< [samplings] index of the method
  std::optional<timed_texts> texts;

  const espalier::statistics& at(std::size_t s, std::size_t v, nde_kind kind, std::size_t d, std::size_t p) const {
    return texts->at(method[s][v][static_cast<std::size_t>(kind)], d, p);
  }
  std::size_t verifier(const std::string& name) const {
    const auto& rows = settings.verifiers;
    return static_cast<std::size_t>(
        std::find_if(rows.begin(), rows.end(), [&](const verifier_row& row) { return row.name == name; }) -
        rows.begin());
  }
};

//! The tables of the neural selectors as Markdown and JSON, and a picture of their choices.
class nde_report {
 public:
  nde_report(const nde_results& results, const verifier_run& how)
      : r_(results), how_(how), domains_(r_.settings.domains) {
    domains_.push_back("average");
  }

  std::string markdown() const {
    std::string text = introduction() + summary();
    text += ratio_table("Block efficiency over the best static undelayed tree's (Table 4)", length);
    text += ratio_table("Tokens a second over the best static undelayed tree's (Table 5)", rate);
    text += level_table("Block efficiency (Table 6)", length, 2);
    text += level_table("Tokens a second (Table 7)", rate, 0);
    text += over_traversal_table();
    text += by_sampling_table() + static_table() + cost_table() + action_table();
    return text;
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "nde"},
                          {"tokens_each", how_.tokens},
                          {"prompts_to_choose_by", how_.tune},
                          {"prompts_decoded", r_.settings.n_decoded},
                          {"repeats", how_.repeats},
                          {"domains", domains_}};
    for (const sampling_setting& s : r_.settings.samplings)
      out["samplings"].push_back(s.name);
    out["plain_tokens_per_second"] = pairs(intervals(plain_figure(rate)));
    for (const row& line : rows()) {
      nlohmann::json& entry = out["rows"][line.name];
      entry["tokens_per_second"] = pairs(intervals(figure(line.verifier, line.kind, rate)));
      entry["block_efficiency"] = pairs(intervals(figure(line.verifier, line.kind, length)));
      entry["over_plain"] = pairs(intervals(quotient(figure(line.verifier, line.kind, rate), plain_figure(rate))));
    }
    for (std::size_t i = 0; i < r_.neural.size(); ++i) {
      const std::size_t v = r_.neural[i];
      nlohmann::json& entry = out["selectors"][name_of(v)];
      const selector_record& record = r_.selectors[i];
      entry = {{"throughput_over_undelayed", pairs(over(v, nde_kind::undelayed, v, rate))},
               {"throughput_over_delayed", pairs(over(v, nde_kind::delayed, v, rate))},
               {"throughput_over_traversal", pairs(over(v, nde_kind::undelayed, traversal(), rate))},
               {"block_efficiency_over_undelayed", pairs(over(v, nde_kind::undelayed, v, length))},
               {"share_of_a_round", record.share()},
               {"network_seconds", record.choosing / static_cast<double>(record.chosen())},
               {"reading_seconds", record.reading / static_cast<double>(record.rounds)},
               {"divergence_seconds", record.comparing / static_cast<double>(record.chosen())},
               {"actions", record.actions}};
    }
    return out;
  }

  //! The table of each selector's choices: how often it chose each trunk and length, over all numbers of paths, and how
  //! often each number of paths.
  std::string plot() const {
    constexpr double cell = 24, left = 52, top = 84, gap = 76;
    constexpr int trunks = espalier::delayed_action::most_trunk + 1,
                  lengths = espalier::delayed_action::most_length + 1;
    const double panel = cell * lengths, width = left + static_cast<double>(r_.neural.size()) * (panel + gap),
                 height = top + cell * trunks + 96;
    std::string svg = svg_page(width, height, "Delayed trees that the selectors chose");
    for (std::size_t i = 0; i < r_.neural.size(); ++i) {
      const double x0 = left + static_cast<double>(i) * (panel + gap);
      const selector_record& record = r_.selectors[i];
      std::array<std::array<double, lengths>, trunks> share{};
      std::array<double, espalier::delayed_action::most_paths> paths{};
      double most = 1e-9;
      for (int a = 0; a < espalier::delayed_action::count; ++a) {
        const espalier::delayed_options tree = espalier::delayed_action::at(a);
        const double part = share_of(record, a);
        double& to = share[static_cast<std::size_t>(tree.trunk)][static_cast<std::size_t>(tree.length)];
        to += part, most = std::max(most, to);
        if (tree.length > 0) paths[static_cast<std::size_t>(tree.paths - 1)] += part;
      }
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"600\">{}</text>\n", x0, top - 14,
                         name_of(r_.neural[i]));
      for (int trunk = 0; trunk < trunks; ++trunk) {
        const double y = top + cell * trunk;
        svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", x0 - 6,
                           y + 16, trunk);
        for (int length = 0; length < lengths; ++length) {
          const double part = share[static_cast<std::size_t>(trunk)][static_cast<std::size_t>(length)];
          svg += fmt::format(
              "<rect class=\"bar s6\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"2\" "
              "fill-opacity=\"{:.3f}\"><title>L1 {}, L2 {}: {:.2f} %</title></rect>",
              x0 + cell * length, y, cell - 2, cell - 2, 0.05 + 0.95 * part / most, trunk, length, 100 * part);
        }
        svg += "\n";
      }
      const double below = top + cell * trunks + 16;
      for (int length = 0; length < lengths; ++length) {
        svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                           x0 + cell * (length + 0.5) - 1, below, length);
      }
      std::string words;
      for (std::size_t k = 0; k < paths.size(); ++k)
        words += fmt::format("{}K={}: {:.0f} %", k == 0 ? "" : ", ", k + 1, 100 * paths[k]);
      svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\">{}</text>\n", x0, below + 22,
                         words);
    }
    return svg +
           fmt::format(
               "<text class=\"soft\" x=\"18\" y=\"{:.1f}\" font-size=\"12\">Down: tokens of the trunk, L1; across: "
               "tokens of each path after it, L2; the darker, the more often. K where L2 is above 0.</text>\n"
               "<text class=\"soft\" x=\"18\" y=\"{:.1f}\" font-size=\"12\">{}</text>\n</svg>\n",
               height - 32, height - 12, setting());
  }

 private:
  using stats = espalier::statistics;
  using of_text = double (*)(const stats&);
  using by_prompt = std::function<double(std::size_t, std::size_t)>;

  // A line of the tables of levels.
  struct row {
    std::string name;
    std::size_t verifier;
    nde_kind kind;
  };

  static double rate(const stats& s) { return s.throughput(); }
  static double length(const stats& s) { return s.tokens_per_round(); }

  static nlohmann::json pairs(const std::vector<interval>& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const interval& v : values)
      list.push_back({v.mean, v.half_width});
    return list;
  }
  static double share_of(const selector_record& record, int action) {
    return static_cast<double>(record.actions[static_cast<std::size_t>(action)]) /
           static_cast<double>(std::max<std::int64_t>(record.chosen(), 1));
  }

  const std::string& name_of(std::size_t v) const { return r_.settings.verifiers[v].name; }
  std::size_t traversal() const { return r_.verifier("traversal"); }

  // The mean over sampling settings after one prompt.
  by_prompt figure(std::size_t v, nde_kind kind, of_text of) const {
    return [this, v, kind, of](std::size_t d, std::size_t p) {
      double sum = 0;
      for (std::size_t s = 0; s < r_.method.size(); ++s)
        sum += of(r_.at(s, v, kind, d, p));
      return sum / static_cast<double>(r_.method.size());
    };
  }
  by_prompt plain_figure(of_text of) const {
    return [this, of](std::size_t d, std::size_t p) {
      double sum = 0;
      for (const std::size_t m : r_.plain)
        sum += of(r_.texts->at(m, d, p));
      return sum / static_cast<double>(r_.plain.size());
    };
  }
  static by_prompt quotient(const by_prompt& above, const by_prompt& below) {
    return [above, below](std::size_t d, std::size_t p) { return above(d, p) / below(d, p); };
  }
  std::vector<interval> intervals(const by_prompt& of) const { return intervals_by_domain(r_.settings.n_decoded, of); }
  // The speed of the selector's trees relative to another way, with the same or another verifier.
  std::vector<interval> over(std::size_t v, nde_kind kind, std::size_t reference, of_text of) const {
    return intervals(quotient(figure(v, nde_kind::neural, of), figure(reference, kind, of)));
  }

  std::vector<row> rows() const {
    std::vector<row> list{{"traversal, undelayed", traversal(), nde_kind::undelayed},
                          {"traversal, delayed", traversal(), nde_kind::delayed},
                          {"block-verification", r_.verifier("block-verification"), nde_kind::undelayed}};
    for (const std::size_t v : r_.neural) {
      list.push_back({name_of(v) + ", undelayed", v, nde_kind::undelayed});
      list.push_back({name_of(v) + ", delayed", v, nde_kind::delayed});
      list.push_back({name_of(v) + ", NDE", v, nde_kind::neural});
    }
    return list;
  }

  std::string setting() const {
    std::size_t prompts = 0;
    for (const std::size_t n : r_.settings.n_decoded)
      prompts += n;
    return fmt::format("{} prompts, {} sampling settings, {} tokens each.", prompts, r_.settings.samplings.size(),
                       how_.tokens);
  }

  std::string introduction() const {
    return fmt::format(
        "## Neural selectors of delayed trees (NDE)\n\n{} ± is the 95 % interval over prompts, each of which counts "
        "with "
        "its mean over sampling settings; ratios are prompt by prompt, of these means; averages are over domains. Each "
        "figure is the median of {} run(s) of a text, all methods taking turns prompt by prompt. Draft and target "
        "sample "
        "alike.\n\n*Undelayed*: K independent paths of L tokens, K in 1 to 4, L in 0 to 8. *Delayed*: these, and K "
        "paths "
        "of L2 tokens from a trunk of L1; for a single path, up to 16 tokens. Both are chosen for each verifier and "
        "sampling setting by most offline tokens for the cost of passes, on {} other prompts of each domain. *NDE*: "
        "the "
        "verifier's own selector chooses K, L1 and L2 in each round; the first round of a text has the verifier's "
        "undelayed "
        "tree. Block verification takes a single path, undelayed up to 8 tokens.\n",
        setting(), how_.repeats, how_.tune);
  }

  std::string summary() const {
    std::string text = "\n";
    for (const std::size_t v : r_.neural) {
      const interval gain = over(v, nde_kind::undelayed, v, rate).back();
      text += fmt::format("- **{}: NDE over its best static undelayed tree {} in throughput** (asked: above 1; {}), ",
                          name_of(v), in_words(gain, 3), gain.mean > 1 ? "met" : "missed");
      text += fmt::format("{} over Traversal's", in_words(over(v, nde_kind::undelayed, traversal(), rate).back(), 3));
      text += name_of(v) == "specinfer" ? " (asked: at least 1).\n" : ".\n";
    }
    for (std::size_t i = 0; i < r_.neural.size(); ++i) {
      if (i == 0) text += "- Share of a round spent in the selector (asked: at most 1 %): ";
      text += fmt::format("{}{} {:.2f} %", i == 0 ? "" : ", ", name_of(r_.neural[i]), 100 * r_.selectors[i].share());
    }
    return text + ".\n";
  }

  std::string ratio_table(const std::string& title, of_text of) const {
    std::vector<std::string> columns = domains_;
    columns.push_back("over delayed, average");
    markdown_table text(title, columns, "verifier, NDE");
    for (const std::size_t v : r_.neural) {
      std::vector<std::string> line = cells(over(v, nde_kind::undelayed, v, of), 3);
      line.push_back(in_words(over(v, nde_kind::delayed, v, of).back(), 3));
      text.row(name_of(v), line);
    }
    return text.text();
  }

  std::string level_table(const std::string& title, of_text of, int digits) const {
    std::vector<std::string> columns = domains_;
    columns.push_back("over plain decoding");
    markdown_table text(title, columns, "verifier, tree");
    const auto add = [&](const std::string& name, const by_prompt& level) {
      std::vector<std::string> line = cells(intervals(level), digits);
      line.push_back(in_words(intervals(quotient(level, plain_figure(of))).back(), 3));
      text.row(name, line);
    };
    for (const row& line : rows())
      add(line.name, figure(line.verifier, line.kind, of));
    add("plain decoding", plain_figure(of));
    return text.text();
  }

  std::string over_traversal_table() const {
    std::vector<std::string> columns = domains_;
    columns.push_back("over Traversal's delayed, average");
    columns.push_back("over block verification, average");
    markdown_table text("Tokens a second of NDE over Traversal's best static undelayed tree", columns, "verifier, NDE");
    for (const std::size_t v : r_.neural) {
      std::vector<std::string> line = cells(over(v, nde_kind::undelayed, traversal(), rate), 3);
      line.push_back(in_words(over(v, nde_kind::delayed, traversal(), rate).back(), 3));
      line.push_back(in_words(over(v, nde_kind::undelayed, r_.verifier("block-verification"), rate).back(), 3));
      text.row(name_of(v), line);
    }
    return text.text();
  }

  std::string by_sampling_table() const {
    std::vector<std::string> columns;
    for (const sampling_setting& s : r_.settings.samplings)
      columns.push_back(s.name);
    markdown_table text("Tokens a second of NDE over the best static undelayed tree, by sampling", columns, "verifier");
    for (const std::size_t v : r_.neural) {
      text.row(name_of(v), cells(r_.settings.by_sampling(r_.settings.n_decoded,
                                                         [&](std::size_t s, std::size_t d, std::size_t p) {
                                                           return rate(r_.at(s, v, nde_kind::neural, d, p)) /
                                                                  rate(r_.at(s, v, nde_kind::undelayed, d, p));
                                                         }),
                                 2));
    }
    return text.text();
  }

  std::string static_table() const {
    std::vector<std::string> columns;
    for (const sampling_setting& s : r_.settings.samplings)
      columns.push_back(s.name);
    markdown_table text("The best static trees: K, L or K, L1+L2", columns, "verifier, tree");
    for (const row& line : rows()) {
      if (line.kind == nde_kind::neural) continue;
      std::vector<std::string> trees;
      for (const static_choice& c : r_.settings.choose(line.verifier, goal::throughput, range_of(line.kind)))
        trees.push_back(in_words(r_.settings.trees[c.tree]));
      text.row(line.name, trees);
    }
    return text.text();
  }

  std::string cost_table() const {
    markdown_table text("What the selector takes by the clock, microseconds a round",
                        {"network", "reading the target's row", "divergences", "share of a round", "ms a round"},
                        "verifier");
    for (std::size_t i = 0; i < r_.neural.size(); ++i) {
      const selector_record& record = r_.selectors[i];
      const double rounds = static_cast<double>(std::max<std::int64_t>(record.rounds, 1));
      const auto micro = [&](double seconds) { return fmt::format("{:.1f}", 1e6 * seconds / rounds); };
      text.row(name_of(r_.neural[i]),
               {micro(record.choosing), micro(record.reading), micro(record.comparing),
                fmt::format("{:.2f} %", 100 * record.share()), fmt::format("{:.3f}", 1e3 * record.total / rounds)});
    }
    return text.text();
  }

  std::string action_table() const {
    markdown_table text("Delayed trees that the selectors chose: share of rounds",
                        {"first", "second", "third", "fourth", "fifth", "mean L1 + L2", "K above 1", "different trees"},
                        "verifier");
    for (std::size_t i = 0; i < r_.neural.size(); ++i) {
      const selector_record& record = r_.selectors[i];
      std::vector<std::pair<double, int>> order;
      double depth = 0, branching = 0;
      int different = 0;
      for (int a = 0; a < espalier::delayed_action::count; ++a) {
        const espalier::delayed_options tree = espalier::delayed_action::at(a);
        const double part = share_of(record, a);
        order.push_back({-part, a});
        depth += part * (tree.trunk + tree.length);
        if (tree.paths > 1 && tree.length > 0) branching += part;
        different += part > 0 ? 1 : 0;
      }
      std::sort(order.begin(), order.end());
      std::vector<std::string> line;
      for (std::size_t j = 0; j < 5; ++j)
        line.push_back(fmt::format("{} ({:.0f} %)", in_words(espalier::delayed_action::at(order[j].second)),
                                   -100 * order[j].first));
      line.insert(line.end(),
                  {fmt::format("{:.2f}", depth), fmt::format("{:.1f} %", 100 * branching), std::to_string(different)});
      text.row(name_of(r_.neural[i]), line);
    }
    return text.text();
  }

  static choice_range range_of(nde_kind kind) {
    return {.kind = kind == nde_kind::delayed ? tree_kind::delayed : tree_kind::undelayed, .drafts = 1};
  }

  const nde_results& r_;
  verifier_run how_;
  std::vector<std::string> domains_;  // the domains, and their average
};

}  // namespace bench
