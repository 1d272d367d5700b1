// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "model_set.hpp"
#include "tree_pass.hpp"

namespace bench {

//! Sums over rounds. A round that was verified several times counts once, with its mean.
struct round_sums {
  double rounds = 0;
  double tokens = 0;        //!< tokens committed, the target's own included
  double drafted = 0;       //!< draws
  double draft_passes = 0;  //!< calls of the draft model, one for all nodes of a level

  double tokens_per_round() const { return tokens / rounds; }
  double drafted_per_round() const { return drafted / rounds; }
  double draft_passes_per_round() const { return draft_passes / rounds; }

  round_sums& operator+=(const round_sums& other) {
    rounds += other.rounds, tokens += other.tokens;
    drafted += other.drafted, draft_passes += other.draft_passes;
    return *this;
  }
};

//! Runs single rounds of any policy and verifier at given positions of a text, and commits none of them. So all methods
//! see the same contexts, no matter how many tokens each would have committed.
class tree_rounds {
 public:
  //! For trees of up to max_nodes nodes, root included.
  tree_rounds(models::model_set& models, espalier::sampling_options draft, int max_nodes, int trials)
      : trials_(trials),
        vocab_(models.target.vocab_size()),
        max_nodes_(max_nodes),
        draft_kv_(models.make_cache(models.draft_model())),
        drafter_(models.draft_model(), draft_kv_, draft),
        pass_(models, max_nodes),
        tree_(max_nodes - 1) {
    drafter_.reserve(max_nodes - 1);
  }

  //! Begins a new text, which the target samples in this way.
  void begin(const espalier::sampling_options& sampling, std::uint64_t seed) {
    pass_.begin();
    target_.emplace(sampling);
    target_->reserve(max_nodes_, vocab_);
    seed_ = seed;
  }

  //! Moves to the end of a longer beginning of the text, at which the next rounds are.
  void advance(std::span<const espalier::token_id> text) {
    root_ = static_cast<std::uint32_t>(text.size());
    last_ = text.back();
    pass_.advance(text);
    drafter_.begin(text);
  }

  //! Drafts one round.
  template <class PolicyT>
  round_sums draft(PolicyT& policy) {
    const std::int64_t passes = drafter_.n_passes;
    // Paths are short: the room of the cache limits the tree, not the positions of the model.
    tree_.reset(last_, std::min(tree_.capacity(), draft_kv_.capacity() - static_cast<int>(root_)));
    espalier::philox_chance chance(seed_, root_, 0);
    espalier::grow(policy, tree_, drafter_, chance);
    return {.rounds = 1,
            .drafted = static_cast<double>(tree_.view().n_draws),
            .draft_passes = static_cast<double>(drafter_.n_passes - passes)};
  }

  //! Drafts one round and verifies it several times; calls observer(tree, verdict) for every verification. The policy
  //! learns from the last one.
  template <class PolicyT, class VerifierT, class ObserverT>
  round_sums run(PolicyT& policy, VerifierT& verifier, const ObserverT& observer) {
    round_sums sums = draft(policy);
    const espalier::tree_view tree = tree_;
    // The pass comes first, since rows() is of the last pass, and a call's arguments have no given order.
    const espalier::vocab_rows<float> logits = pass_.forward(tree);
    target_->open(logits, pass_.rows(), 0);
    if constexpr (requires { verifier.reserve(max_nodes_, vocab_); }) verifier.reserve(max_nodes_, vocab_);
    for (int trial = 1; trial <= trials_; ++trial) {
      espalier::philox_chance chance(seed_, root_, static_cast<std::uint32_t>(trial));
      const espalier::verdict v = verifier.verify(tree, drafter_.rows(), *target_, chance);
      observer(tree, v);
      sums.tokens += static_cast<double>(tree.depth[v.accepted] + 1) / trials_;
      if (trial == trials_) policy.observe(tree, v);
    }
    return sums;
  }

  //! Number of tokens of the text whose rows the cache holds: all but the last one.
  int prefix() const { return static_cast<int>(root_) - 1; }
  //! The tree of the last round.
  espalier::tree_view tree() const { return tree_; }
  //! The target's probability of a token after a node of that tree. Pre: the last round was verified
  double target_probability(espalier::node_id u, espalier::token_id token) {
    return static_cast<double>(target_->row(u)[static_cast<std::size_t>(token)]);
  }

  template <class PolicyT, class VerifierT>
  round_sums run(PolicyT& policy, VerifierT& verifier) {
    return run(policy, verifier, [](espalier::tree_view, espalier::verdict) {});
  }

 private:
  struct counting_drafter : espalier::autoregressive<espalier::llama_backend&, espalier::recurrent_kv&> {
    using autoregressive::autoregressive;
    std::int64_t n_passes = 0;

    void propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) {
      ++n_passes;
      autoregressive::propose(tree, nodes);
    }
  };

  int trials_;
  int vocab_;
  int max_nodes_;
  espalier::recurrent_kv draft_kv_;
  counting_drafter drafter_;
  tree_pass pass_;
  espalier::tree<> tree_;
  std::optional<espalier::lazy_rows<float>> target_;
  std::uint64_t seed_ = 0;
  std::uint32_t root_ = 0;
  espalier::token_id last_ = 0;
};

}  // namespace bench
