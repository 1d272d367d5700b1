// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <boost/hana/transform.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "espalier/core/philox.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/sampling/sampler.hpp"
#include "model_set.hpp"
#include "root_trees.hpp"
#include "sampled_verifiers.hpp"
#include "tree_pass.hpp"

namespace bench {

//! Number of depths at which single nodes are measured: the first 9 nodes of the main path.
inline constexpr int n_depths = most_trunk + 1;

//! Sums over the rounds at the roots of one text, for one way of drafting.
struct offline_sums {
  double roots = 0;
  std::vector<double> tokens;    //!< [verifiers][trees] tokens committed
  std::vector<double> seconds;   //!< [trees] seconds of a round's passes
  std::vector<double> accepted;  //!< [verifiers][most_paths][n_depths] rounds in which one of the node's first draws is
                                 //!< accepted
  std::vector<double> distance;  //!< [n_depths] sum of |p - q|

  double tokens_of(std::size_t verifier, std::size_t tree) const { return tokens[verifier * seconds.size() + tree]; }
  double block_efficiency(std::size_t verifier, std::size_t tree) const { return tokens_of(verifier, tree) / roots; }
  double acceptance(std::size_t verifier, int paths, int depth) const {
    return accepted[place(verifier, paths, depth)] / roots;
  }
  static std::size_t place(std::size_t verifier, int paths, int depth) {
    return (verifier * most_paths + static_cast<std::size_t>(paths - 1)) * n_depths + static_cast<std::size_t>(depth);
  }
};

//! Verifies every static tree with every verifier at roots along given texts: one target pass for each root and way of
//! drafting.
//!
//! Source      Delayed tree expansion, section 5 (offline trees at roots of fixed spacing)
class offline_rounds {
 public:
  offline_rounds(models::model_set& models, const espalier::cost_model& costs, int trials, espalier::thread_team& team)
      : models_(models),
        costs_(costs),
        trials_(trials),
        team_(team),
        draft_kv_(models.make_cache(models.draft_model())),
        pass_(models, root_trees::most_nodes + 1),
        rows_(static_cast<std::size_t>(root_trees::most_nodes + 1) * vocab()) {
    workers_.resize(static_cast<std::size_t>(team.n_threads()));
  }

  const std::vector<static_tree>& shapes() const { return shapes_; }

  //! Measures along one text. The first root is after `written` tokens, each next one `spacing` tokens further. Returns
  //! one result for each way of drafting. `sampling` is the target's.
  std::vector<offline_sums> run(std::span<const espalier::token_id> text, std::size_t written, std::size_t spacing,
                                const std::vector<espalier::sampling_options>& drafts,
                                const espalier::sampling_options& sampling, std::uint64_t seed) {
    pass_.begin();
    for (worker& w : workers_)
      w.sampler = row_sampler(sampling);
    std::vector<espalier::autoregressive<espalier::llama_backend&, espalier::recurrent_kv&>> drafters;
    std::vector<offline_sums> sums(drafts.size(), empty_sums());
    for (const espalier::sampling_options& draft : drafts) {
      drafters.emplace_back(models_.draft_model(), draft_kv_, draft);
      drafters.back().reserve(root_trees::most_nodes);
    }
    for (std::size_t root = written; root < text.size(); root += spacing) {
      pass_.advance(text.first(root));
      for (std::size_t i = 0; i < drafts.size(); ++i) {
        drafters[i].begin(text.first(root));
        trees_.draw(drafters[i], text[root - 1],
                    {seed, static_cast<std::uint32_t>(root), static_cast<std::uint32_t>(i)});
        forward_all();
        verify_all(drafters[i].rows(), sums[i], seed, static_cast<std::uint32_t>(root));
      }
    }
    return sums;
  }

 private:
  using verifier_set =
      decltype(boost::hana::transform(sampled_verifiers, [](const auto& known) { return known.make(); }));

  using row_sampler = decltype(espalier::sampler(espalier::sampling_options()));

  struct worker {
    verifier_set verifiers = boost::hana::transform(sampled_verifiers, [](const auto& known) { return known.make(); });
    tree_part part;
    row_sampler sampler{};
  };

  std::size_t vocab() const { return static_cast<std::size_t>(models_.target.vocab_size()); }

  offline_sums empty_sums() const {
    const std::size_t verifiers = verifier_rows().size();
    offline_sums sums;
    sums.tokens.resize(verifiers * shapes_.size());
    sums.seconds.resize(shapes_.size());
    sums.accepted.resize(verifiers * most_paths * n_depths);
    sums.distance.resize(n_depths);
    return sums;
  }

  // Calls f(worker, i) for i in 0 .. n - 1, shared among all threads.
  template <class FunctionT>
  void share_out(std::size_t n, const FunctionT& f) {
    std::atomic<std::size_t> next{0};
    std::vector<std::exception_ptr> errors(workers_.size());
    team_.run([&](int thread) {
      try {
        for (std::size_t i = next++; i < n; i = next++)
          f(workers_[static_cast<std::size_t>(thread)], i);
      } catch (...) {
        errors[static_cast<std::size_t>(thread)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  // The target's row after every node.
  void forward_all() {
    const espalier::tree_view tree = trees_.all();
    const auto logits = pass_.forward(tree);
    share_out(static_cast<std::size_t>(tree.n_nodes), [&](worker& w, std::size_t u) {
      const auto row = static_cast<std::int32_t>(u);
      w.sampler.probabilities(logits.row(row), std::span(rows_).subspan(u * vocab(), vocab()), row);
    });
  }

  void verify_all(const espalier::node_rows<float>& draft, offline_sums& sums, std::uint64_t seed, std::uint32_t root) {
    const espalier::vocab_rows<float> target{rows_.data(), trees_.all().size(), models_.target.vocab_size()};
    sums.roots += 1;
    share_out(shapes_.size() + n_depths * most_paths, [&](worker& w, std::size_t i) {
      const bool whole = i < shapes_.size();
      const int paths = whole ? shapes_[i].paths : 1 + static_cast<int>(i - shapes_.size()) / n_depths;
      const int depth = whole ? 0 : static_cast<int>(i - shapes_.size()) % n_depths;
      w.part.take(trees_, whole ? shapes_[i] : static_tree{.paths = paths, .trunk = 0, .length = 1}, depth);
      const auto p = w.part.of_target(target);
      const auto q = w.part.of_draft(draft);
      if (whole)
        sums.seconds[i] +=
            costs_.round(w.part.draft_passes(), w.part.tree().n_nodes, static_cast<std::int32_t>(root) - 1);
      if (!whole && paths == 1) sums.distance[static_cast<std::size_t>(depth)] += distance(p.row(0), q.row(0));
      std::size_t row = 0;
      boost::hana::for_each(w.verifiers, [&]<class VerifierT>(VerifierT& verifier) {
        const std::size_t v = row++;
        if (paths > 1 && !takes_paths<VerifierT>) return;
        double& sum = whole ? sums.tokens[v * shapes_.size() + i] : sums.accepted[offline_sums::place(v, paths, depth)];
        for (int trial = 0; trial < trials_; ++trial) {
          espalier::philox_chance chance(seed, root, static_cast<std::uint32_t>(trial));
          const espalier::verdict verdict = verifier.verify(w.part.tree(), q, p, chance);
          const int accepted = w.part.tree().depth[verdict.accepted];
          sum += static_cast<double>(whole ? accepted + 1 : accepted) / trials_;
        }
      });
    });
  }

  static double distance(std::span<const float> p, std::span<const float> q) {
    double sum = 0;
    for (std::size_t t = 0; t < p.size(); ++t)
      sum += std::abs(static_cast<double>(p[t]) - static_cast<double>(q[t]));
    return sum;
  }

  models::model_set& models_;
  const espalier::cost_model& costs_;
  int trials_;
  espalier::thread_team& team_;
  std::vector<static_tree> shapes_ = all_static_trees();
  espalier::recurrent_kv draft_kv_;
  tree_pass pass_;
  root_trees trees_;
  std::vector<float> rows_;  // rows of the target, by node
  std::vector<worker> workers_;
};

}  // namespace bench
