// SPDX-License-Identifier: BSL-1.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "../models/model_set.hpp"
#include "arguments.hpp"
#include "espalier/analysis/acceptance_by_rank.hpp"
#include "espalier/analysis/acceptance_rate.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/tree_policy/sequoia.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "root_states.hpp"
#include "text_tasks.hpp"

namespace nde {

namespace {

using row = std::span<const float>;

// A count of the accepted draws of one node without replacement, by their rank, at many places. The verifier's
// decisions are drawn, `trials` times at each place.
class ranks_of_draws {
 public:
  ranks_of_draws() : draws_({.budget = n_ranks, .max_depth = 1, .acceptance = std::vector<double>(n_ranks, 0.5)}) {}

  void count(row p, row q, std::uint64_t seed, std::uint32_t place) {
    const auto vocab = static_cast<std::int32_t>(p.size());
    // The target's rows below the root decide nothing: its children have no draws.
    const std::vector<std::int32_t> always(n_ranks + 1, 0);
    const espalier::node_rows<float> target{{p.data(), 1, vocab}, always.data()};
    const espalier::node_rows<float> draft{{q.data(), 1, vocab}, always.data()};
    for (std::uint32_t trial = 0; trial < trials; ++trial) {
      espalier::philox_chance chance(seed, place, trial);
      tree_.reset(0);
      for (auto wanted = draws_.begin(tree_); !wanted.empty();)
        wanted = draws_.take(tree_, draft, chance);
      ranks_.count(tree_, walk_.verify(tree_, draft, target, chance));
    }
  }

  // Returns the rates with commas between them, as sequoia's option takes them. A rank is accepted no more often than
  // the one before it; where it was counted more often, that is chance, and the rate of the one before stands.
  std::string in_words() const {
    std::string text;
    double before = 1;
    for (const double rate : ranks_.rates()) {
      before = (std::min)(before, rate);
      text += fmt::format("{}{:.3f}", text.empty() ? "" : ",", before);
    }
    return text;
  }

 private:
  static constexpr std::int32_t n_ranks = 16;
  static constexpr std::uint32_t trials = 16;

  espalier::sequoia draws_;
  espalier::residual_walk walk_;
  espalier::tree<> tree_{n_ranks};
  espalier::acceptance_by_rank ranks_{n_ranks};
};

// Sums of acceptance rates over the places of texts of one sampling.
struct found_rates {
  explicit found_rates(std::size_t n) : sums(n) {}

  std::size_t texts = 0, places = 0;
  std::vector<double> sums;  // [draws][verifiers, then the highest rate there can be]
  ranks_of_draws ranks;
};

}  // namespace

int rates(const rates_arguments& a) {
  espalier::require_option("spacing", a.spacing, 1, a.tokens);
  std::vector<ot_verifier> verifiers = a.known;
  std::erase_if(verifiers, [](const ot_verifier& verifier) { return verifier.rate == nullptr; });
  models::model_set models =
      models::model_set::load(a.models, {.threads = a.n_threads(), .max_rows = 64, .arithmetic = a.arithmetic});
  const std::vector<text_task> tasks = text_tasks(models, a.prompts, a.samplings, a.count, a.tokens + 1);
  espalier::recurrent_kv target_kv = models.make_cache(models.target);
  espalier::recurrent_kv draft_kv = models.make_cache(models.draft_model());
  espalier::prefill prefill;
  const std::size_t columns = verifiers.size() + 1;
  std::map<std::string, found_rates> found;
  std::vector<float> p, q;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const text_task& t = tasks[i];
    const std::uint64_t seed = a.seed + (static_cast<std::uint64_t>(i) << 32);
    const auto text = text_after(models, target_kv, draft_kv, t.prompt, a.tokens, t.sampling, seed);
    found_rates& to = found.try_emplace(in_words(t.sampling), a.draws.size() * columns).first->second;
    ++to.texts;
    target_kv.truncate(0, 0), draft_kv.truncate(0, 0);
    espalier::sampler<float> sampler(t.sampling);
    for (std::size_t n = t.prompt.size() + static_cast<std::size_t>(a.spacing); n <= text.size();
         n += static_cast<std::size_t>(a.spacing)) {
      const auto before = std::span(text).first(n);
      row_after(models.target, target_kv, prefill, before, p);
      row_after(models.draft_model(), draft_kv, prefill, before, q);
      sampler.probabilities(p, p, 0);
      sampler.probabilities(q, q, 0);
      ++to.places;
      double* sum = to.sums.data();
      for (const int k : a.draws) {
        for (const ot_verifier& verifier : verifiers)
          *sum++ += verifier.rate(p, q, k);
        *sum++ += espalier::optimal_acceptance_rate(row(p), row(q), k);
      }
      to.ranks.count(p, q, seed, static_cast<std::uint32_t>(n));
    }
  }
  for (const auto& [sampling, r] : found) {
    fmt::print("sampling {}: mean acceptance rates at {} places of {} texts\n  {:>5}", sampling, r.places, r.texts,
               "draws");
    for (const ot_verifier& verifier : verifiers)
      fmt::print("{:>13}", verifier.name);
    fmt::print("{:>13}\n", "optimal");
    for (std::size_t k = 0; k < a.draws.size(); ++k) {
      fmt::print("  {:>5}", a.draws[k]);
      for (std::size_t v = 0; v < columns; ++v)
        fmt::print("{:>13.4f}", r.sums[k * columns + v] / static_cast<double>(r.places));
      fmt::print("\n");
    }
    fmt::print("  by the rank of a draw without replacement (--sequoia.acceptance):\n  {}\n", r.ranks.in_words());
  }
  return 0;
}

}  // namespace nde
