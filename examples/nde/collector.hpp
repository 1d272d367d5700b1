// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../models/model_set.hpp"
#include "collection.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "ot_verifiers.hpp"
#include "root_efficiency.hpp"
#include "root_paths.hpp"
#include "root_states.hpp"
#include "text_tasks.hpp"
#include "trace_file.hpp"

namespace nde {

//! Writes texts, and computes at roots along them the effect that each action would have had.
//!
//! Complexity  a root: 16 draft passes, and one target pass over the trees of all samples and actions together
//! Law         the same seed gives the same trace
//! Source      Delayed tree expansion, section 6 and appendix E
class collector {
 public:
  //! Number of rows of the longest pass.
  static int longest_pass(const collection& how) { return how.samples * root_paths::most_nodes + 1; }

  collector(models::model_set& models, const collection& how, std::vector<ot_verifier> verifiers, int threads)
      : models_(models),
        how_(how),
        team_(espalier::thread_team::shared(threads)),
        target_kv_(make_cache(models.target)),
        draft_kv_(make_cache(models.draft_model())),
        states_(models),
        drawn_(how.samples),
        efficiency_(std::move(verifiers), team_),
        order_(longest_pass(how)),
        target_rows_(static_cast<std::size_t>(longest_pass(how)) * vocab()) {
    batch_.reserve(longest_pass(how), longest_pass(how));
  }

  //! The trace of one prompt. Both models sample by `sampling`.
  //!
  //! Pre         the prompt and how.tokens fit the models' context
  trace collect(std::span<const espalier::token_id> prompt, const espalier::sampling_options& sampling,
                std::uint64_t seed) {
    const std::vector<espalier::token_id> text =
        text_after(models_, target_kv_, draft_kv_, prompt, how_.tokens, sampling, seed);
    trace t = empty_trace();
    espalier::autoregressive drafter(models_.draft_model(), draft_kv_, sampling);
    drafter.reserve(longest_pass(how_));
    target_kv_.truncate(0, 0);
    states_.begin(sampling);
    const auto spacing = static_cast<std::size_t>(how_.spacing);
    for (std::size_t n = prompt.size() + spacing; n <= text.size(); n += spacing) {
      if (how_.roots > 0 && t.roots() == static_cast<std::size_t>(how_.roots)) break;
      const auto before = std::span(text).first(n);
      const espalier::selector_features features = states_.read(target_kv_, before);
      drafter.begin(before);
      drawn_.draw(drafter, before.back(), espalier::philox_chance(seed, static_cast<std::uint32_t>(n), 0));
      forward(sampling);
      const auto drafted = drafter.rows();
      const root_results& results = efficiency_.run(
          drawn_, [&](espalier::node_id u) { return target_row(u); },
          [&](espalier::node_id u) { return drafted.row(u); });
      t.append("target_hidden", features.target_hidden);
      t.append("draft_hidden_prev", features.draft_hidden_prev);
      t.append("draft_hidden_root", features.draft_hidden_root);
      t.append("scalars", std::span(features.scalars).first(n_scalars));
      t.append("efficiency", results.efficiency);
      t.append("nodes", results.nodes);
      t.append("draft_rows", results.draft_rows);
    }
    return t;
  }

 private:
  std::size_t vocab() const { return static_cast<std::size_t>(models_.target.vocab_size()); }

  // A cache with room for the trees of all samples behind the text.
  espalier::recurrent_kv make_cache(const espalier::llama_backend& model) const {
    const int most = longest_pass(how_);
    return espalier::host_cache(model.config(), 1, models_.drafted_context() + most, {.rows = 2 * most});
  }

  trace empty_trace() const {
    const auto target = static_cast<std::size_t>(models_.target.hidden_size());
    const auto draft = static_cast<std::size_t>(models_.draft_model().hidden_size());
    trace t;
    t.tensors = {{"target_hidden", {{0, target}}},
                 {"draft_hidden_prev", {{0, draft}}},
                 {"draft_hidden_root", {{0, draft}}},
                 {"scalars", {{0, n_scalars}}},
                 {"efficiency", {{0, efficiency_.verifiers().size(), n_actions}}},
                 {"nodes", {{0, n_actions}}},
                 {"draft_rows", {{0, n_actions}}}};
    return t;
  }

  // Computes the target's row of every node, as it samples.
  void forward(const espalier::sampling_options& sampling) {
    const espalier::tree_view tree = drawn_.tree();
    order_.compute(tree, espalier::node_order::insertion);
    const int prefix = target_kv_.size(0);
    target_kv_.append(0, tree.n_nodes);
    batch_.clear();
    batch_.begin_sequence(0, prefix, tree.n_nodes);
    batch_.add_row(tree.token[espalier::root_node], prefix, 0, true);
    batch_.add_tree(tree, order_, 0);
    const auto logits = models_.target.forward(target_kv_, batch_.view());
    target_kv_.truncate(0, prefix);
    std::vector<espalier::sampler<float>> samplers(static_cast<std::size_t>(team_.n_threads()),
                                                   espalier::sampler<float>(sampling));
    share_out(team_, static_cast<std::size_t>(tree.n_nodes), [&](std::size_t thread, std::size_t u) {
      const auto row = static_cast<std::int32_t>(u);
      samplers[thread].probabilities(logits.row(row), std::span(target_rows_).subspan(u * vocab(), vocab()), row);
    });
  }

  std::span<const float> target_row(espalier::node_id u) const {
    return std::span(target_rows_).subspan(static_cast<std::size_t>(u) * vocab(), vocab());
  }

  models::model_set& models_;
  collection how_;
  espalier::thread_team& team_;
  espalier::recurrent_kv target_kv_;
  espalier::recurrent_kv draft_kv_;
  root_states states_;
  root_paths drawn_;
  root_efficiency efficiency_;
  espalier::tree_order order_;
  espalier::forward_batch batch_;
  std::vector<float> target_rows_;  // [nodes][vocab]
};

}  // namespace nde
