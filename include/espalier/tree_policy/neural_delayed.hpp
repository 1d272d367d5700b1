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
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/delayed_selector.hpp"
#include "espalier/selector/selector_features.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/round_start.hpp"

namespace espalier {

//! The delayed tree where no selector can choose: without one, and in the first round of a text.
struct neural_delayed_options {
  std::int32_t paths = 2;   //!< K, independent paths, 1 to 4
  std::int32_t trunk = 2;   //!< L1, drafted tokens before they part, 0 to 8
  std::int32_t length = 4;  //!< L2, drafted tokens of each path after that, 0 to 8
};

namespace detail {

template <class SelectorT>
concept ChoosesDelayedTrees = requires(SelectorT& selector, const SelectorT& fixed, const selector_features& features) {
  { selector.choose(features) } -> std::convertible_to<std::int32_t>;
  { fixed.target_hidden_size() } -> std::convertible_to<std::int32_t>;
  { fixed.draft_hidden_size() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! Lets a selector choose a delayed tree in each round, by what draft and target said at the end of the text.
//!
//! A selector has choose(selector_features) -> the number of a delayed_action, and target_hidden_size() and draft_hidden_size(),
//! of the hidden states that it reads. It needs a drafter and a target that keep them. It chooses by what is known before
//! anything is drafted, never by a drawn token.
//!
//!     neural_delayed policy({}, load_selector("specinfer.safetensors", ...), load_costs("costs.json"));
//!
//! Complexity  one draft pass for the root's row, which is drawn from afterwards; two passes over rows of the vocabulary, what
//!             the selector needs, and delayed's; no allocation once read() has been called
//! Law         as delayed
//! Errors      option_error for options outside their ranges, and where a selector meets a drafter that keeps no states;
//!             input_error where the hidden states are not those that it was made for. Both come in the first round that it would
//!             choose for: require_origin tells before
//! Source      Delayed tree expansion, section 6. Its first round of a text is not told of: here a static tree
template <class SelectorT = delayed_selector>
class neural_delayed {
  static_assert(detail::ChoosesDelayedTrees<SelectorT>,
                "a selector needs choose(selector_features), target_hidden_size() and draft_hidden_size().");

 public:
  static constexpr regime sampling = regime::iid;

  //! Without a selector: the tree of the options in every round.
  explicit neural_delayed(neural_delayed_options options = {})
      : action_{options.paths, options.trunk, options.length}, fallback_(action_) {
    require_option("paths", options.paths, 1, delayed_action::most_paths);
    require_option("trunk", options.trunk, 0, delayed_action::most_trunk);
    require_option("length", options.length, 0, delayed_action::most_length);
    growth_.reserve(delayed_action::most_paths);
  }

  //! `costs` gives the selector the seconds of passes of one row.
  neural_delayed(neural_delayed_options options, SelectorT selector, cost_model costs) : neural_delayed(options) {
    selector_.emplace(std::move(selector));
    costs_ = std::move(costs);
  }

  std::int32_t max_nodes() const {
    if (!selector_) return fallback_.trunk + fallback_.paths * fallback_.length;
    return delayed_action::most_trunk + delayed_action::most_paths * delayed_action::most_length;
  }

  //! The delayed tree of the last round.
  const delayed_options& action() const { return action_; }

  //! Whether the selector chose it.
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

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    using row_type = decltype(drafter.rows().row(root_node));
    action_ = fallback_;
    chosen_ = false;
    const round_start start = std::exchange(start_, round_start{0, start_.sampling, false});
    row_type of_root{};
    if (selector_ && tree.limit() > 0) {
      if constexpr (StateDrafter<DrafterT>) {
        if (start.read) of_root = choose(tree, drafter, start);
      } else {
        raise<option_error>(
            "the selector reads the draft's hidden states, but this drafter keeps none; it needs one that does, as "
            "autoregressive, or neural_delayed without a selector.");
      }
    }
    growth_.grow(tree, drafter, chance, action_, of_root);
  }

  void observe(tree_view, verdict) const {}

  void reset() { start_ = {}; }

 private:
  // The root's row, where it had to be asked for.
  template <class TreeT, class DrafterT>
  auto choose(TreeT& tree, DrafterT& drafter, const round_start& start) {
    const node_id root[] = {root_node};
    const auto of_root = drafter.propose(tree, std::span<const node_id>(root)).row(0);
    const auto now = drafter.root_state(), before = drafter.previous_state();
    if (before.row.empty()) return of_root;
    check("target", target_hidden_.size(), selector_->target_hidden_size());
    check("draft", before.hidden.size(), selector_->draft_hidden_size());
    check("draft", now.hidden.size(), selector_->draft_hidden_size());
    features_.target_hidden = target_hidden_;
    features_.draft_hidden_prev = before.hidden;
    features_.draft_hidden_root = now.hidden;
    features_.set_divergences(std::span<const float>(target_row_), before.row, now.row);
    features_.set_text(start.length, start.sampling);
    features_.set_seconds(costs_.draft_pass(1, start.length), costs_.target_pass(1, start.length));
    action_ = delayed_action::at(selector_->choose(features_));
    chosen_ = true;
    return of_root;
  }

  static void check(const char* model, std::size_t size, std::int32_t expected) {
    if (size == static_cast<std::size_t>(expected)) return;
    raise<input_error>("the ", model, "'s hidden state has ", size, " numbers, but the selector was made for ",
                       expected, size == 0 ? "; this model keeps none (hidden_layers must list its last layer)." : ".");
  }

  delayed_options action_, fallback_;
  std::optional<SelectorT> selector_;
  cost_model costs_{{}, {}, {}, cost_curve::linear(0, 0), cost_curve::linear(0, 0)};
  round_start start_;
  bool chosen_ = false;
  selector_features features_;
  std::vector<float> target_row_, target_hidden_;  // where the pending token came from
  detail::delayed_growth growth_;
};

}  // namespace espalier
