// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"
#include "markdown_table.hpp"
#include "model_set.hpp"
#include "report_file.hpp"
#include "text_writer.hpp"

namespace bench {

//! Temperature of texts after adversarial prompts when the target samples; the draft samples alike.
inline constexpr float adversarial_temperature = 0.3F;

//! A prompt, and the share of the draft's next tokens that are accepted in the target's text after it.
struct adversarial_candidate {
  std::string kind;
  std::vector<espalier::token_id> tokens;
  double greedy = 0;
  double sampled = 0;
  double at_1 = 0;  //!< sampled at temperature 1
  double worst() const { return std::max(greedy, sampled); }
};

//! Searches for prompts after which the draft cannot guess the target's text: runs of meaningless tokens, once or
//! repeated. After many of them the target falls into a loop that the draft follows; these are dropped.
class adversarial_search {
 public:
  static constexpr int tokens = 256;

  explicit adversarial_search(models::model_set& models) : models_(models), writer_(models) {
    for (espalier::token_id t = 3; t < models.text.size(); ++t) {
      any_.push_back(t);
      if (models.text.piece(t).size() == 1) bytes_.push_back(t);
    }
    rare_.assign(any_.end() - std::ssize(any_) / 8, any_.end());
  }

  //! Returns the `wanted` candidates of least acceptance, greedy and sampled; at most half of them are of one kind.
  std::vector<adversarial_candidate> run(int n_candidates, int wanted) {
    std::vector<adversarial_candidate> kept;
    for (int i = 0; i < n_candidates; ++i) {
      progress(fmt::format("candidate {} of {}, {} kept", i + 1, n_candidates, kept.size()));
      adversarial_candidate c = make(static_cast<std::size_t>(i));
      tally& sum = tallies_[c.kind];
      ++sum.tried;
      const double at_once = greedy(c, tokens / 4);
      sum.greedy += at_once, sum.least = std::min(sum.least, at_once);
      if (at_once > most_at_once) continue;
      c.greedy = greedy(c, tokens);
      if (c.greedy > most_accepted) continue;
      c.sampled = sampled(c, adversarial_temperature);
      c.at_1 = sampled(c, 1);
      ++sum.kept;
      kept.push_back(std::move(c));
    }
    progress("");
    std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.worst() < b.worst(); });
    std::vector<adversarial_candidate> chosen;
    for (adversarial_candidate& c : kept) {
      const auto alike = std::count_if(chosen.begin(), chosen.end(), [&](const auto& o) { return o.kind == c.kind; });
      if (std::ssize(chosen) < wanted && alike < (wanted + 1) / 2) chosen.push_back(std::move(c));
    }
    return chosen;
  }

  //! The tables of the candidates that were tried, and of those that were chosen.
  std::string markdown(const std::vector<adversarial_candidate>& chosen) const {
    std::string text = fmt::format(
        "## Adversarial prompts\n\nAccepted share of the draft's next token where one is drafted a round, over {} "
        "tokens "
        "of the target's; candidates are dropped after {} where more than {:g} are accepted. Where the target samples, "
        "the draft does as it does.\n",
        tokens, tokens / 4, most_at_once);
    markdown_table kinds("Candidates", {"tried", "mean, greedy, at once", "least", "kept"}, "kind");
    for (const auto& [kind, sum] : tallies_) {
      kinds.row(kind, {std::to_string(sum.tried), fmt::format("{:.3f}", sum.greedy / sum.tried),
                       fmt::format("{:.3f}", sum.least), std::to_string(sum.kept)});
    }
    markdown_table table(
        "Chosen", {"tokens", "greedy", fmt::format("temperature {:g}", adversarial_temperature), "temperature 1"},
        "kind");
    for (const adversarial_candidate& c : chosen) {
      table.row(c.kind, {std::to_string(c.tokens.size()), fmt::format("{:.3f}", c.greedy),
                         fmt::format("{:.3f}", c.sampled), fmt::format("{:.3f}", c.at_1)});
    }
    return text + kinds.text() + table.text();
  }

  //! The text of a file of prompts in the form that examples/models/prompts_file.hpp reads.
  static std::string prompts_file(const std::vector<adversarial_candidate>& chosen) {
    std::string text;
    for (const adversarial_candidate& c : chosen) {
      text += fmt::format("{{\"domain\": \"adversarial\", \"temperature\": {:g}, \"tokens\": [{}]}}\n",
                          adversarial_temperature, fmt::join(c.tokens, ", "));
    }
    return text;
  }

 private:
  static constexpr double most_at_once = 0.1;
  static constexpr double most_accepted = 0.05;

  struct tally {
    int tried = 0;
    int kept = 0;
    double greedy = 0;
    double least = 1;
  };

  adversarial_candidate make(std::size_t i) {
    static constexpr std::array<const char*, 6> kinds = {"bytes", "rare tokens", "any tokens",
                                                         "hex",   "base64",      "digits"};
    static constexpr std::array<std::size_t, 5> patterns = {0, 3, 6, 24, 48};
    static constexpr std::array<std::size_t, 3> lengths = {48, 96, 160};
    const std::size_t kind = i % kinds.size();
    const std::size_t pattern = patterns[i / kinds.size() % patterns.size()];
    const std::size_t length = lengths[i / kinds.size() / patterns.size() % lengths.size()];
    adversarial_candidate c;
    c.kind = kinds[kind];
    c.tokens = {models_.text.begin_of_text()};
    const std::vector<espalier::token_id> run = random_run(kind, pattern == 0 ? length : pattern);
    for (std::size_t j = 0; j < length; ++j)
      c.tokens.push_back(run[j % run.size()]);
    return c;
  }

  std::vector<espalier::token_id> random_run(std::size_t kind, std::size_t n) {
    static constexpr std::string_view base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static constexpr std::array<std::string_view, 3> alphabets = {"0123456789abcdef", base64, "0123456789 "};
    std::vector<espalier::token_id> run;
    if (kind < 3) {
      const auto& from = kind == 0 ? bytes_ : kind == 1 ? rare_ : any_;
      while (run.size() < n)
        run.push_back(from[random_() % from.size()]);
    } else {
      std::string text;
      while (run.size() < n) {
        text += alphabets[kind - 3][random_() % alphabets[kind - 3].size()];
        run = models_.text.encode(text);
      }
    }
    return run;
  }

  double greedy(const adversarial_candidate& c, int n) {
    return writer_.write(writer_.draft(), espalier::chain({.length = 1}), espalier::greedy(), c.tokens, {n})
        .stats.acceptance_rate();
  }

  // The mean over several texts.
  double sampled(const adversarial_candidate& c, float temperature) {
    const espalier::sampling_options sampling{.temperature = temperature};
    espalier::statistics sum;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      sum += writer_
                 .write(writer_.draft(sampling), espalier::sampled_chain({.length = 1}), espalier::naive(), c.tokens,
                        {tokens, {.text = {.sampling = sampling, .seed = seed}}})
                 .stats;
    }
    return sum.acceptance_rate();
  }

  models::model_set& models_;
  text_writer writer_;
  std::mt19937 random_;
  std::vector<espalier::token_id> any_, bytes_, rare_;
  std::map<std::string, tally> tallies_;
};

}  // namespace bench
