// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/delayed_selector.hpp"
#include "espalier/selector/selector_features.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

//! The shape of the tree in rounds in which no selector chooses. Without a selector these are all rounds. With one,
//! they are the first round of a text, and each round that begins while the models' states are not known.
struct neural_delayed_options {
  std::int32_t paths = 2;   //!< K, independent paths
  std::int32_t trunk = 2;   //!< L1, drafted tokens before the paths part
  std::int32_t length = 4;  //!< L2, drafted tokens of each path after that

  static constexpr void describe(auto see) {
    using self = neural_delayed_options;
    see(option{"paths", &self::paths, "independent paths, where no selector chooses", 1, delayed_action::most_paths});
    see(option{"trunk", &self::trunk, "drafted tokens before they part, likewise", 0, delayed_action::most_trunk});
    see(option{"length", &self::length, "drafted tokens of each after that, likewise", 0, delayed_action::most_length});
  }
};

namespace detail {

template <class SelectorT>
concept ChoosesDelayedTrees = requires(SelectorT& selector, const SelectorT& fixed, const selector_features& features) {
  { selector.choose(features) } -> std::convertible_to<std::int32_t>;
  { fixed.target_hidden_size() } -> std::convertible_to<std::int32_t>;
  { fixed.draft_hidden_size() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! A policy that lets a selector choose a delayed tree in each round, by the rows and hidden states of draft and target
//! at the end of the text.
//!
//! A selector has choose(selector_features), which returns the number of a delayed_action, and target_hidden_size() and
//! draft_hidden_size(), the sizes of the hidden states that it reads. Drafter and target must keep these states, as
//! autoregressive and llama_backend do; decoders hand them over (see decoder/model_states.hpp). The selector chooses by
//! what is known before anything is drafted, never by a drawn token.
//!
//!     neural_delayed policy({}, load_selector("specinfer.safetensors").selector, load_costs("costs.json"));
//!
//! Complexity  as delayed; and passes over one row of the target and two of the draft, and the selector's own work. The
//!             root's row, by which the selector chooses, is drawn from afterwards: it costs no further draft pass. No
//!             allocation once read() has been called
//! Law         as delayed
//! Errors      option_error for options out of range and, in the first round that drafts, if there is a selector but
//!             the drafter keeps no states; input_error, in the first round in which the selector would choose, if
//!             hidden states or vocabularies are not those that it was made for: require_origin tells beforehand
//! Source      Delayed tree expansion, section 6. The source does not mention the first round of a text; here it has
//!             the tree of the options
template <class SelectorT = delayed_selector>
class neural_delayed {
  static_assert(detail::ChoosesDelayedTrees<SelectorT>,
                "a selector needs choose(selector_features), target_hidden_size() and draft_hidden_size().");

 public:
  static constexpr regime sampling = regime::iid;

  //! Makes a policy without a selector: every round has the tree of the options.
  explicit neural_delayed(neural_delayed_options options = {})
      : action_{options.paths, options.trunk, options.length}, fallback_(action_) {
    require_options(options);
    growth_.reserve(delayed_action::most_paths);
  }

  //! Makes a policy with a selector, which learns from `costs` how many seconds passes of one row take.
  neural_delayed(neural_delayed_options options, SelectorT selector, cost_model costs) : neural_delayed(options) {
    selector_.emplace(std::move(selector));
    costs_ = std::move(costs);
  }

  std::int32_t max_nodes() const {
    using most = delayed_action;
    return selector_ ? delayed_options{most::most_paths, most::most_trunk, most::most_length}.max_nodes()
                     : fallback_.max_nodes();
  }

  //! The delayed tree of the last round.
  const delayed_options& action() const { return action_; }

  //! Whether the selector chose the tree of the last round.
  bool chosen() const { return chosen_; }

  void open(const round_start& start) { start_ = start; }

  bool reads_states() const { return selector_.has_value(); }

  template <class NumberT>
  void read(std::span<const NumberT> logits, std::span<const float> hidden) {
    if (!selector_) return;
    if constexpr (std::is_same_v<NumberT, float>) {
      target_row_.resize(logits.size());
      untruncated_row(logits, start_.sampling.temperature, target_row_);
    } else {
      target_row_.assign(logits.begin(), logits.end());
      untruncated_row(target_row_, start_.sampling.temperature, target_row_);
    }
    target_hidden_.assign(hidden.begin(), hidden.end());
  }

  template <class NumberT>
  void read_draft(const model_state<NumberT>& root, const model_state<NumberT>& previous) {
    if (!may_choose_ || previous.row.empty()) return;
    if (target_row_.size() != root.row.size()) {
      raise<input_error>("the target's row has ", target_row_.size(), " tokens, but the draft's ", root.row.size(),
                         ".");
    }
    check("target", target_hidden_.size(), selector_->target_hidden_size());
    check("draft", previous.hidden.size(), selector_->draft_hidden_size());
    check("draft", root.hidden.size(), selector_->draft_hidden_size());
    features_.target_hidden = target_hidden_;
    features_.draft_hidden_prev = previous.hidden;
    features_.draft_hidden_root = root.hidden;
    features_.set_divergences(std::span<const float>(target_row_), previous.row, root.row);
    features_.set_text(start_.length, start_.sampling);
    features_.set_seconds(costs_.draft_pass(1, start_.length), costs_.target_pass(1, start_.length));
    action_ = delayed_action::at(selector_->choose(features_));
    chosen_ = true;
    growth_.reshape(action_);
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    static constexpr node_id root = root_node;
    action_ = fallback_;
    chosen_ = false;
    may_choose_ = selector_ && std::exchange(start_.read, false) && tree.limit() > 0;
    const auto wanted = growth_.begin(tree, action_);
    // The root is asked about even if the tree of the options has no drafted token: the selector chooses after that.
    return may_choose_ ? std::span(&root, 1) : wanted;
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    return growth_.take(tree, rows, chance);
  }

  void observe(tree_view, verdict) const {}

  void reset() { start_ = {}; }
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(target_row_, target_hidden_);
  }

 private:
  static void check(const char* model, std::size_t size, std::int32_t expected) {
    if (size == static_cast<std::size_t>(expected)) return;
    raise<input_error>("the ", model, "'s hidden state has ", size, " numbers, but the selector was made for ",
                       expected, size == 0 ? "; this model keeps none (hidden_layers must list its last layer)." : ".");
  }

  delayed_options action_, fallback_;
  std::optional<SelectorT> selector_;
  cost_model costs_{{}, {}, {}, cost_curve::linear(0, 0), cost_curve::linear(0, 0)};
  round_start start_;
  bool may_choose_ = false;
  bool chosen_ = false;
  selector_features features_;
  std::vector<float> target_row_, target_hidden_;  // at the position that the pending token was drawn from
  detail::delayed_growth growth_;
};

}  // namespace espalier
