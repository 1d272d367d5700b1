// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/decoder/statistics.hpp"
#include "interval.hpp"
#include "markdown_table.hpp"
#include "prompt_set.hpp"
#include "speedup_plot.hpp"
#include "timed_texts.hpp"

namespace bench {

//! The group in which a method is counted.
enum class method_group { plain, chain, tree, cost_aware, other_engine };

//! A method, by its name in the tables.
struct named_method {
  std::string name;
  method_group group;
};

//! The texts of all methods at one temperature.
struct real_model_texts {
  std::string name;
  timed_texts texts;
  std::vector<std::size_t> differing{};  //!< [methods] number of texts that differ from plain decoding's; empty if
                                         //!< texts are drawn
};

//! The tables of real models as Markdown, JSON and a plot. Plain decoding is the first method.
class real_models_report {
 public:
  real_models_report(std::string setting, std::vector<named_method> methods, const std::vector<prompt_domain>& kinds,
                     const std::vector<real_model_texts>& regimes)
      : setting_(std::move(setting)), methods_(std::move(methods)), regimes_(regimes) {
    for (const prompt_domain& kind : kinds) {
      kinds_.push_back(kind.name);
      n_prompts_ += kind.prompts.size();
    }
    kinds_.emplace_back("mean");
  }

  std::string markdown() const {
    std::string text = fmt::format(
        "## Real models\n\n{}\n\nA *speedup* is the tokens a second of a method over those of plain decoding after the "
        "same prompt, its reading included; ± is the 95 % interval over the prompts of a kind, and *mean* that of the "
        "kinds, each counting alike. Methods take turns prompt by prompt. cost-aware believes the table of --price or, "
        "by "
        "the clock, what `generate` measures before its first text, which no text's time holds. chain and best-first "
        "come in several sizes, every other method with its defaults. Where texts are drawn, or are another engine's, "
        "they differ in words and in length.\n",
        setting_);
    for (const real_model_texts& regime : regimes_)
      text += summary(regime) + table(regime);
    return text;
  }

  nlohmann::json json() const {
    nlohmann::json out = {{"bench", "real_models"}, {"setting", setting_}, {"prompts", n_prompts_}};
    for (const real_model_texts& regime : regimes_) {
      for (std::size_t m = 0; m < methods_.size(); ++m) {
        const std::vector<interval> speedups = regime.texts.speedups(m, 0);
        nlohmann::json& entry = out[regime.name][methods_[m].name];
        for (std::size_t k = 0; k < kinds_.size(); ++k) {
          const espalier::statistics sum = k + 1 < kinds_.size() ? regime.texts.total(m, k) : regime.texts.total(m);
          entry[kinds_[k]] = {{"speedup", {speedups[k].mean, speedups[k].half_width}},
                              {"tokens_per_second", sum.throughput()},
                              {"seconds_per_token", sum.time_per_token()},
                              {"tokens_per_round", sum.tokens_per_round()},
                              {"drafted_per_round", sum.drafted_per_round()}};
        }
        if (!regime.differing.empty()) entry["differing_texts"] = regime.differing[m];
      }
    }
    return out;
  }

  //! The table by kind for greedy texts, and the mean for each temperature: cost-aware methods, another engine, and the
  //! fastest of the others.
  std::string plot() const {
    const auto is_chosen = [&](std::size_t m) {
      return methods_[m].group == method_group::cost_aware || methods_[m].group == method_group::other_engine;
    };
    std::vector<std::size_t> shown(methods_.size() - 1);
    std::iota(shown.begin(), shown.end(), std::size_t{1});
    std::stable_sort(shown.begin(), shown.end(), [&](auto a, auto b) { return mean_of_all(a) > mean_of_all(b); });
    std::stable_partition(shown.begin(), shown.end(), is_chosen);
    shown.resize(std::min<std::size_t>(shown.size(), 8));
    std::vector<bar_series> series;
    for (const std::size_t m : shown) {
      series.push_back({methods_[m].name, regimes_.front().texts.speedups(m, 0)});
      for (std::size_t i = 1; i < regimes_.size(); ++i)
        series.back().values.push_back(regimes_[i].texts.speedups(m, 0).back());
    }
    std::vector<std::string> groups = kinds_;
    for (std::size_t i = 1; i < regimes_.size(); ++i)
      groups.push_back("mean, " + regimes_[i].name);
    return speedup_plot("Real models: tokens a second over plain decoding's",
                        fmt::format("{} prompts, {}", n_prompts_, regimes_.front().name), groups, series);
  }

 private:
  double mean_of(const real_model_texts& regime, std::size_t method) const {
    return regime.texts.speedups(method, 0).back().mean;
  }

  double mean_of_all(std::size_t method) const {
    double sum = 0;
    for (const real_model_texts& regime : regimes_)
      sum += mean_of(regime, method);
    return sum;
  }

  // The fastest method, by the mean of the kinds, among those for which counts() is true.
  template <class CountsT>
  std::optional<std::size_t> best(const real_model_texts& regime, const CountsT& counts) const {
    std::optional<std::size_t> found;
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      if (counts(methods_[m].group) && (!found || mean_of(regime, m) > mean_of(regime, *found))) found = m;
    }
    return found;
  }

  // Comparisons of two methods, prompt by prompt.
  std::string summary(const real_model_texts& regime) const {
    markdown_table text(regime.name + ": one method's tokens a second over another's", kinds_, "methods");
    const auto add = [&](std::size_t method, std::size_t over) {
      text.row(fmt::format("{} over {}", methods_[method].name, methods_[over].name),
               cells(regime.texts.speedups(method, over), 3));
    };
    const auto of = [](method_group wanted) { return [=](method_group group) { return group == wanted; }; };
    const std::size_t fastest = *best(regime, [](method_group group) { return group != method_group::other_engine; });
    const auto other = best(regime, of(method_group::other_engine));
    if (other) add(0, *other);
    if (fastest != 0) add(fastest, 0);
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      if (fastest != 0 && methods_[m].group == method_group::other_engine) add(fastest, m);
    }
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      if (methods_[m].group == method_group::cost_aware && m != fastest) add(m, fastest);
    }
    const auto tree = best(regime, of(method_group::tree)), chain = best(regime, of(method_group::chain));
    if (tree && chain) add(*tree, *chain);
    return text.text() + "\nWhat is compared is the fastest by its mean on these very texts, chance included.\n";
  }

  std::string table(const real_model_texts& regime) const {
    std::vector<std::string> columns = kinds_;
    columns.insert(columns.end(), {"tokens a second", "tokens a round", "drafted a round"});
    if (!regime.differing.empty()) columns.emplace_back("texts that differ from plain's");
    markdown_table text(regime.name + ": speedup over plain decoding", columns);
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      std::vector<std::string> row = cells(regime.texts.speedups(m, 0), 2);
      const espalier::statistics sum = regime.texts.total(m);
      row.push_back(fmt::format("{:.1f}", sum.throughput()));
      row.push_back(fmt::format("{:.2f}", sum.tokens_per_round()));
      row.push_back(fmt::format("{:.2f}", sum.drafted_per_round()));
      if (!regime.differing.empty()) row.push_back(fmt::format("{} of {}", regime.differing[m], n_prompts_));
      text.row(methods_[m].name, row);
    }
    return text.text();
  }

  std::string setting_;
  std::vector<named_method> methods_;
  std::vector<std::string> kinds_;  // the kinds, and their mean
  std::size_t n_prompts_ = 0;
  const std::vector<real_model_texts>& regimes_;
};

}  // namespace bench
