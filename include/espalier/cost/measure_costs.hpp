// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/prefill.hpp"

namespace espalier {

struct measure_options {
  std::string target{};  //!< identity of the target model, for cost_model::target
  std::string draft{};   //!< identity of the draft model, for cost_model::draft
  //! name of the hardware; give another one if the models run on fewer threads than hardware_name() says
  std::string hardware = hardware_name();
  std::int32_t most_rows = 256;  //!< rows of the largest pass; fewer if models and caches do not take so many
  //! Lengths of the context to measure, in tokens. If there are none: three lengths from 16 tokens to as many as the
  //! models take beside the largest pass, but at most 4096.
  std::vector<std::int32_t> contexts{};
  double seconds = 4;         //!< time to spend; more is spent if not every pass can be measured in that time
  std::int32_t sequence = 0;  //!< the sequence of the target's cache that is used

  static constexpr void describe(auto see) {
    see(option{"most_rows", &measure_options::most_rows, "rows of the longest pass", 1, 1 << 16});
    see(option{"seconds", &measure_options::seconds, "how long to measure, about", 0, 1e6});
  }
};

namespace detail {

// Numbers of rows to measure: powers of two, the midpoints between them if wanted, and the largest. Numbers just below
// the largest are left out: beyond the largest, cost_curve goes on with the slope between the last two numbers, which
// would be measured badly if they were close together.
inline std::vector<std::int32_t> measured_rows(std::int32_t most, bool with_middles) {
  std::vector<std::int32_t> rows;
  const auto add = [&](std::int32_t n) {
    if (n + n / 8 < most) rows.push_back(n);
  };
  for (std::int32_t n = 1; n < most; n *= 2) {
    add(n);
    if (with_middles && n > 1) add(n + n / 2);
  }
  rows.push_back(most);
  return rows;
}

// A drafter without passes, for measuring a target alone.
struct free_drafter {
  std::int32_t vocab;

  void begin(std::span<const token_id>) {}
  void commit(tree_view, verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return (std::numeric_limits<std::int32_t>::max)(); }
  std::int32_t vocab_size() const { return vocab; }
  void propose(tree_view, std::span<const node_id>) {}
  node_rows<float> rows() const { return {}; }
};

// A receiver of progress that does nothing.
struct silent_progress {
  void operator()(double, std::string_view) const {}
};

// Runs passes of a drafter and a target in turn and measures their times.
template <class DrafterT, class BackendT, class KVStoreT, class ClockT>
class pass_timer {
 public:
  pass_timer(DrafterT& drafter, BackendT& target, KVStoreT& kv, ClockT& clock, std::int32_t sequence,
             std::int32_t most_rows)
      : drafter_(drafter),
        target_(target),
        kv_(kv),
        clock_(clock),
        sequence_(sequence),
        tree_(most_rows),
        order_(most_rows + 1) {
    drafter_.reserve(most_rows);
    batch_.reserve(most_rows, most_rows);
  }

  pass_timer(const pass_timer&) = delete;
  // Empties the sequence: its rows belong to no real text.
  ~pass_timer() {
    if (filled_ > 0) kv_.truncate(sequence_, 0);
  }

  // Begins a text of `context` tokens and a pending one. Slots that were filled for an earlier text are taken again
  // without a pass: the numbers in them do not change the cost of a pass.
  void follow(std::int32_t context) {
    for (std::int32_t i = static_cast<std::int32_t>(text_.size()); i <= context; ++i)
      text_.push_back(token_at(i));
    context_ = context;
    const std::span<const token_id> text = current();
    kv_.truncate(sequence_, context);
    // A recurrent state cannot go back to a shorter text.
    if constexpr (RecurrentStore<KVStoreT>) filled_ = kv_.size(sequence_);
    if (filled_ < context) {
      prefill_.run(target_, kv_, sequence_, text.first(text.size() - 1), 0, [](std::int32_t, std::int32_t) {});
      filled_ = context;
    }
    for (std::int32_t held = kv_.size(sequence_); held < context; held = kv_.size(sequence_)) {
      const std::int32_t n = (std::min)(prefill::default_chunk, context - held);
      take_slots(n);
      kv_.commit(sequence_, prefill_.first_rows(n));
    }
    drafter_.begin(text);
    if constexpr (FeatureDrafter<DrafterT, BackendT>) read_states();
    tree_.reset(text.back());
    propose(root_node, 1);
  }

  // Makes one pass of the target. Returns the seconds that it took.
  double seconds_of(std::int32_t rows) { return sample(rows, forward(rows)).seconds; }

  // Runs rounds that draft: the drafter is asked about the root, and then about `rows` nodes; the target forwards as
  // many rows. A first round of the same kind is not counted: it leaves the CPU's caches as the others will find them.
  // No round begins once `seconds` are spent; if the first one spends them, it counts.
  void drafting_rounds(std::int32_t rows, int n_rounds, double seconds) {
    double spent = 0;
    for (int i = 0; i <= n_rounds && (i == 0 || spent < seconds); ++i) {
      tree_.reset(current().back());
      append_nodes(rows);
      const cost_sample opening = sample(1, propose(root_node, 1));
      const cost_sample draft = sample(rows, propose(1, rows));
      const cost_sample target = sample(rows, forward(rows));
      spent += opening.seconds + draft.seconds + target.seconds;
      if (i == 0 && spent < seconds) continue;
      first_draft_.push_back(opening);
      later_draft_.push_back(draft);
      drafted_.push_back(target);
    }
  }

  // Makes rounds in which only the target runs, over one row; they are counted as in drafting_rounds().
  void plain_rounds(int n_rounds, double seconds) {
    double spent = 0;
    for (int i = 0; i <= n_rounds && (i == 0 || spent < seconds); ++i) {
      const cost_sample target = sample(1, forward(1));
      spent += target.seconds;
      if (i > 0 || spent >= seconds) plain_.push_back(target);
    }
  }

  // The measured costs, without names. `opening` is the time by which a round's first draft pass of one row is longer
  // than later ones, plus the time by which the target's pass is longer in rounds that draft than in plain rounds; both
  // are medians over all contexts together.
  cost_model costs() {
    cost_curve draft_pass = cost_curve::fit(later_draft_);
    const double more_of_target = (std::max)(0.0, -median_beyond(plain_, cost_curve::fit(drafted_)));
    const double more_of_draft = (std::max)(0.0, median_beyond(first_draft_, draft_pass));
    for (cost_sample& s : drafted_)
      s.seconds = (std::max)(0.0, s.seconds - more_of_target);
    return {{}, {}, {}, std::move(draft_pass), cost_curve::fit(drafted_), more_of_draft + more_of_target};
  }

 private:
  // Gives the drafter a state for each token of the context. All are the state of one row, since the numbers do not
  // change the cost of a pass.
  void read_states() {
    forward(1);
    const std::vector<std::int32_t> rows(static_cast<std::size_t>((std::max)(0, context_ - drafter_.n_read())), 0);
    drafter_.read(target_, std::span<const std::int32_t>(rows));
  }

  token_id token_at(std::int32_t i) const { return i % target_.vocab_size(); }

  // Appends n nodes to a tree of its root alone. Each node, the root first, gets one child for each token of the
  // vocabulary, until there are n.
  void append_nodes(std::int32_t n) {
    for (std::int32_t i = 0; i < n; ++i)
      tree_.append(i / target_.vocab_size(), token_at(i), 0.0F);
  }

  void take_slots(std::int32_t n) {
    if (kv_.append(sequence_, n) < 0)
      raise<input_error>("the cache of ", kv_.capacity(), " tokens is full: another sequence holds what is missing.");
  }

  std::span<const token_id> current() const {
    return std::span<const token_id>(text_).first(static_cast<std::size_t>(context_) + 1);
  }

  // Asks the drafter about n nodes from `first` on. Returns the time.
  double propose(node_id first, std::int32_t n) {
    nodes_.resize(static_cast<std::size_t>(n));
    std::iota(nodes_.begin(), nodes_.end(), first);
    const auto start = clock_.now();
    drafter_.propose(tree_, std::span<const node_id>(nodes_));
    return clock_.now() - start;
  }

  double forward(std::int32_t rows) {
    tree_.reset(current().back(), rows - 1);
    append_nodes(rows - 1);
    const auto start = clock_.now();
    order_.compute(tree_.view(), node_order::insertion);
    take_slots(rows);
    batch_.clear();
    batch_.begin_sequence(sequence_, context_, rows);
    batch_.add_chain(current().last(1), context_, true);
    batch_.add_tree(tree_.view(), order_, 0);
    checked_forward(target_, kv_, batch_.view());
    const auto time = clock_.now() - start;
    kv_.truncate(sequence_, context_);
    return time;
  }

  cost_sample sample(std::int32_t rows, double seconds) const { return {rows, context_, seconds}; }

  // The median of the time by which samples of one row exceed a curve.
  static double median_beyond(const std::vector<cost_sample>& samples, const cost_curve& curve) {
    std::vector<double> beyond;
    for (const cost_sample& s : samples)
      beyond.push_back(s.seconds - curve(1, s.context));
    const auto middle = beyond.begin() + static_cast<std::ptrdiff_t>(beyond.size() / 2);
    std::nth_element(beyond.begin(), middle, beyond.end());
    return *middle;
  }

  DrafterT& drafter_;
  BackendT& target_;
  KVStoreT& kv_;
  ClockT& clock_;
  std::int32_t sequence_;
  std::int32_t context_ = 0;
  std::int32_t filled_ = 0;  // tokens that the target's cache was filled with
  std::vector<token_id> text_;
  tree<> tree_;
  tree_order order_;
  forward_batch batch_;
  prefill prefill_;
  std::vector<node_id> nodes_;
  std::vector<cost_sample> first_draft_;  // the first pass of the drafter in each round
  std::vector<cost_sample> later_draft_;
  std::vector<cost_sample> drafted_;  // target passes of rounds that draft
  std::vector<cost_sample> plain_;    // target passes of rounds that do not draft
};

}  // namespace detail

//! Measures the cost of passes of a drafter and of a target by their rows and by the length of the text before them.
//! Makes several rounds of each size one after another, so that a round finds the CPU's caches as a round of the same
//! size has left them. Also measures how much shorter rounds without a draft are. A measurement takes a few seconds;
//! one is enough for each machine and pair of models, and save_costs stores it. On a machine that others use too,
//! measure several times (mean_costs).
//!
//!     const cost_model costs = measure_costs(drafter, target, kv, {.target = "large", .draft = "small"},
//!                                            [](double share, std::string_view what) { show(share, what); });
//!
//! The drafter must have the sampling options with which it will draft, since the making of its rows is measured, too.
//! Afterwards the drafter follows a made-up text, and the sequence of the cache is empty. Rows that the sequence held
//! before are taken for the beginning of the made-up text and not computed again. progress(share, what) is called
//! before each size; `share` is the share of the time that is spent, from 0 to 1, and `what` says what comes next. At
//! the end it is called with share 1. clock.now() gives the time in seconds.
//!
//! Complexity  options.seconds; longer if it takes longer to read the longest context and to make passes of each size
//!             after each context twice. Sizes are powers of two, the largest size and, if passes are fast, the
//!             midpoints between the powers
//! Law         the curves are made of medians by cost_curve::fit
//! Errors      option_error for options out of range, or if models and caches take fewer than 4 tokens; input_error for
//!             a vocabulary that is not the target's, or if the cache has no room for the text and the rows; the errors
//!             of drafter and backend
template <StepDrafter DrafterT, class BackendT, class KVStoreT, class ProgressT = detail::silent_progress,
          class ClockT = monotonic_clock>
requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT> cost_model measure_costs(DrafterT& drafter, BackendT& target,
                                                                                   KVStoreT& kv,
                                                                                   const measure_options& options = {},
                                                                                   ProgressT&& progress = {},
                                                                                   ClockT clock = {}) {
  static_assert(
      !WindowedKVStore<KVStoreT>,
      "passes over a window cost what they cost over a store without one, of the same capacity: measure those");
  static_assert(!detail::CountsFeatures<DrafterT> || FeatureDrafter<DrafterT, BackendT>,
                "the drafter reads hidden states that this target does not have");
  if (drafter.vocab_size() != target.vocab_size()) {
    raise<input_error>("the draft model has ", drafter.vocab_size(), " tokens and the target ", target.vocab_size(),
                       "; they must share one vocabulary.");
  }
  require_options(options);
  const std::int32_t room = std::min<std::int32_t>(context_length(target, kv), drafter.capacity());
  require_option("tokens that models and caches take", room, 4, (std::numeric_limits<std::int32_t>::max)());
  const std::int32_t most_rows = (std::min)({options.most_rows, room / 2 - 1, max_rows_of(target)});
  // The drafter's cache holds the pending token in addition to the context and the rows.
  const std::int32_t longest = room - most_rows - 1;
  std::vector<std::int32_t> contexts = options.contexts;
  if (contexts.empty()) {
    const std::int32_t last = (std::min)(longest, std::int32_t{4096});
    contexts = {(std::min)(last, std::int32_t{16}), (std::max)(std::int32_t{1}, last / 3), last};
  }
  for (const std::int32_t context : contexts)
    require_option("contexts", context, 1, longest);
  std::sort(contexts.begin(), contexts.end(), [](std::int32_t a, std::int32_t b) { return a > b; });
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());

  detail::pass_timer<DrafterT, BackendT, KVStoreT, ClockT> timer(drafter, target, kv, clock, options.sequence,
                                                                 most_rows);
  constexpr int least_turns = 2;
  constexpr int most_rounds = 6;
  const auto start = clock.now();
  progress(0.0, std::string_view("a first pass"));
  timer.follow(contexts.front());
  // If passes are slow, a few sizes that are measured often tell more than many.
  const bool is_slow = timer.seconds_of(most_rows) > options.seconds / 50;
  // The largest size first: the state in which it leaves the CPU's caches matters least to the next size, which is
  // nearly as large.
  std::vector<std::int32_t> rows = detail::measured_rows(most_rows, !is_slow);
  std::reverse(rows.begin(), rows.end());
  // The time in seconds that each size gets in one turn.
  const double round_seconds = options.seconds / static_cast<double>(least_turns * contexts.size() * (rows.size() + 1));
  const auto spent = [&] {
    const double seconds = clock.now() - start;
    return seconds < options.seconds ? seconds / options.seconds : 1.0;
  };
  for (int turn = 0; turn < least_turns || spent() < 1; ++turn) {
    for (const std::int32_t context : contexts) {
      timer.follow(context);
      for (const std::int32_t n : rows) {
        // With fast models, large passes take most of the time and vary least. They come less often; the state of the
        // CPU's caches matters little to them.
        const bool comes_often = is_slow || n < 16;
        if (!comes_often && turn % (n < 64 ? 2 : 4) != 0) continue;
        progress(spent(), std::string_view("passes of " + detail::in_words(n) + " rows after " +
                                           detail::in_words(context) + " tokens"));
        timer.drafting_rounds(n, comes_often ? most_rounds : 1, round_seconds);
      }
      timer.plain_rounds(most_rounds, round_seconds);
    }
  }
  kv.truncate(options.sequence, 0);
  progress(1.0, std::string_view("measured"));
  cost_model costs = timer.costs();
  costs.hardware = options.hardware;
  costs.target = options.target;
  costs.draft = options.draft;
  return costs;
}

//! Measures a target alone, for drafters without a model: in the result, drafting costs nothing. Everything else is as
//! in the function with a drafter.
template <class BackendT, class KVStoreT, class ProgressT = detail::silent_progress, class ClockT = monotonic_clock>
requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT> cost_model measure_costs(BackendT& target, KVStoreT& kv,
                                                                                   const measure_options& options = {},
                                                                                   ProgressT&& progress = {},
                                                                                   ClockT clock = {}) {
  detail::free_drafter drafter{target.vocab_size()};
  return measure_costs(drafter, target, kv, options, progress, clock).without_draft();
}

}  // namespace espalier
