// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/round_rows.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/decoder/log_probs.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/decoder/processed_rows.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/text_processor.hpp"
#include "espalier/forward/held_prefix.hpp"
#include "espalier/forward/prefill.hpp"

namespace espalier {

//! A sequence of a cache, as a text uses it while it is written. It knows how much of the text the sequence holds, and
//! finds out if another part has changed the sequence.
//!
//! The store is kept by reference if it is given as an lvalue, by value otherwise. A store that remembers its tokens
//! (PrefixKVStore) tells which tokens' rows the sequence holds, whoever wrote them. From a store that shares rows
//! (SharingKVStore), a text that begins also adopts the rows that the store finds of its beginning. Of any other store
//! nothing is known when a text begins; while the text is written, another part's use of the sequence is noticed only
//! by the number of rows.
template <class KVStoreT>
class text_cache {
  using kv_type = std::remove_reference_t<KVStoreT>;
  static_assert(KVStore<kv_type>, "a text_cache is of a KVStore");

 public:
  //! Errors      the store's error if it has no such sequence
  text_cache(KVStoreT&& kv, std::int32_t sequence) : kv_(std::forward<KVStoreT>(kv)), sequence_(sequence) {
    kv_.size(sequence);
    // The store takes memory for the sequence's tokens now.
    if constexpr (PrefixKVStore<kv_type>)
      kv_.remember(sequence, static_cast<std::int32_t>(kv_.prefix(sequence).size()), {});
  }

  kv_type& store() { return kv_; }
  const kv_type& store() const { return kv_; }
  std::int32_t sequence() const { return sequence_; }
  //! The number of committed rows.
  std::int32_t size() const { return kv_.size(sequence_); }
  //! The number of committed rows that the target sees: all, or a window of them.
  std::int32_t held() const {
    if constexpr (WindowedKVStore<kv_type>) return kv_.held(sequence_);
    return size();
  }
  //! The number of rows that may be committed until the window slides; no limit if the store has no window.
  std::int32_t until_slide() const { return rows_until_slide(kv_, sequence_); }

  //! Notes that another text begins.
  void begin() {
    held_.begin();
    known_ = 0;
    in_step_ = false;
  }

  //! Notes that the text goes on with more tokens.
  void resume() {
    if (in_step_) known_ = n_committed_;
    in_step_ = false;
  }

  //! Drops all scratch, and all committed rows except the rows of the text's tokens before its last one. If the text
  //! has just begun or been resumed, a store that shares rows first adopts the rows that it finds of these tokens.
  //!
  //! Errors      input_error if rows of another text took the place of this one's while it was written; the next call
  //!             mends that
  void follow(std::span<const token_id> tokens) {
    const auto before_pending = static_cast<std::int32_t>(tokens.size()) - 1;
    if constexpr (SharingKVStore<kv_type>) {
      if (!in_step_) kv_.adopt(sequence_, tokens.first(tokens.size() - 1));
    }
    std::int32_t known = in_step_ ? before_pending : (std::min)(known_, before_pending);
    if constexpr (!PrefixKVStore<kv_type>) {
      if (const std::int32_t n = size(); n != n_committed_) {
        known_ = known = 0;
        if (std::exchange(in_step_, false)) {
          raise<input_error>("sequence ", sequence_, " of the cache holds ", n, " rows, but this text has committed ",
                             n_committed_,
                             ": another part uses it, too. Each text that is being written needs its own.");
        }
      }
    } else {
      const std::int32_t same = held_.of(kv_, sequence_, tokens);
      if (in_step_ && same < (std::min)(static_cast<std::int32_t>(kv_.prefix(sequence_).size()), before_pending)) {
        in_step_ = false;
        raise<input_error>("sequence ", sequence_, " of the cache holds another text from token ", same,
                           " on: another part uses it, too. Each text that is being written needs its own.");
      }
      if (!in_step_) known = (std::min)(same, before_pending);
    }
    truncate(known);
    if constexpr (PrefixKVStore<kv_type>) held_.keep(kv_, sequence_);
    in_step_ = true;
  }

  //! Drops what a failed round has left: scratch rows, and rows that are committed beyond the text.
  void drop_scratch(std::span<const token_id> tokens) {
    truncate(in_step_ ? static_cast<std::int32_t>(tokens.size()) - 1 : size());
  }

  //! The number of tokens of the text that the sequence does not hold.
  //!
  //! Errors      input_error if it holds them all
  std::int32_t pending(std::span<const token_id> tokens) const {
    const std::int32_t n = static_cast<std::int32_t>(tokens.size()) - size();
    if (n < 1) {
      raise<input_error>("sequence ", sequence_, " of the cache holds ", size(), " tokens of a text of ", tokens.size(),
                         ": another part uses it, too. Drafter and target need a sequence each.");
    }
    return n;
  }

  void truncate(std::int32_t n) {
    kv_.truncate(sequence_, n);
    n_committed_ = size();
  }

  //! Commits scratch rows, as KVStore says. The store learns their tokens from remember(), once the text has grown.
  void commit(std::span<const std::int32_t> kept) {
    kv_.commit(sequence_, kept);
    n_committed_ = size();
  }
  void remember(std::span<const token_id> tokens) {
    if constexpr (PrefixKVStore<kv_type>) held_.remember(kv_, sequence_, tokens, size());
  }

 private:
  KVStoreT kv_;
  std::int32_t sequence_;
  held_prefix held_;
  std::int32_t known_ = 0;        // leading rows that belong to the text, for follow() where the store does not tell
  std::int32_t n_committed_ = 0;  // rows of the sequence after this object's last change of it
  bool in_step_ = false;
};

}  // namespace espalier

namespace espalier::detail {

// Takes the place of drafting_ahead for drafters that do not draft ahead: each round drafts when it begins.
struct no_ahead {
  no_ahead(const auto&...) {}

  void start(const auto&...) {}
  auto rows(auto& drafter) { return draft_rows(drafter); }
  double commit(auto& drafter, tree_view tree, verdict v, bool&) {
    drafter.commit(tree, v);
    return 0;
  }
  bool take(const auto&...) { return false; }
  bool give_up() { return false; }
  std::int32_t n_nodes() const { return 0; }
};

// Trait whose member `type` drafts ahead for a drafter: the drafter's drafting_type, if the drafter has one and the
// decoder can draft ahead (Can), else no_ahead. A decoder can draft ahead if nothing but tokens goes from a round to
// the next tree.
template <class DrafterT, class PolicyT, bool Can>
struct ahead_of : std::type_identity<no_ahead> {};
template <class DrafterT, class PolicyT>
requires requires {
  typename DrafterT::template drafting_type<PolicyT>;
}
struct ahead_of<DrafterT, PolicyT, true> : std::type_identity<typename DrafterT::template drafting_type<PolicyT>> {};

// The server of one text: holds a drafter, a sequence of the target's cache and a tree, and makes the steps of a round.
// The text itself is given with each call, since it may go on elsewhere. The passes of the target are made outside, for
// this text alone or for many: add_chunk() and add_round() put rows into a batch, finish_chunk() and verify() take its
// logits.
//
//     prepare
//     read_draft                   while draft_reads(): the drafter has not read the prompt
//     then one of
//       add_chunk, finish_chunk    while left() > 0: the target has not read the prompt
//       a round                    take_ahead, or open_tree, grow_step..., close_tree; then add_round, draft_ahead for
//                                  the next round, verify, commit
//     give_up                      where a step fails
template <class DrafterT, class TreePolicyT, class KVStoreT, class BackendT, class ProcessorT>
class served_text {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using number = logit_number<BackendT, kv_type>;
  static constexpr bool reads_features = FeatureDrafter<drafter_type, BackendT>;
  static constexpr bool has_processor = processes<ProcessorT>;
  static constexpr bool rebuilds = RebuildingPolicy<TreePolicyT> || AsksParts<TreePolicyT>;
  using ahead_type = typename ahead_of<drafter_type, TreePolicyT,
                                       ESPALIER_EXCEPTIONS != 0 && !reads_features && !WindowedKVStore<kv_type>>::type;

 public:
  using text_type = saved_text<TreePolicyT, ProcessorT>;
  using target_rows = detail::target_rows<number, ProcessorT>;
  static constexpr bool shares_rows = SharingKVStore<kv_type>;  // with other texts
  static constexpr bool adopts_prompts = !reads_features;       // if false, all of a text passes through the target

  served_text(DrafterT&& drafter, KVStoreT&& kv, std::int32_t sequence, const TreePolicyT& policy,
              const served_sizes& sizes)
      : drafter_(std::forward<DrafterT>(drafter)),
        cache_(std::forward<KVStoreT>(kv), sequence),
        sizes_(sizes),
        tree_(sizes.max_asked),
        rows_(sizes.max_nodes + 1, (std::max)(sizes.max_pending + sizes.max_nodes, sizes.prefill_rows)),
        ahead_(drafter_, policy, sizes) {
    prefill_.first_rows(sizes.prefill_rows);  // takes its memory now
    require_scratch(cache_.store(), sizes.max_nodes);
    require_rows(cache_.store(), (std::max)(sizes.max_pending + sizes.max_nodes, sizes.prefill_rows));
    keep_states(policy, drafter_);
    drafter_.reserve((std::max)(tree_.capacity(), ahead_.n_nodes()));
    if constexpr (has_processor) processor_.reserve(tree_.capacity(), sizes_.vocab);
  }

  // Takes another text, or (resume) the same text with more tokens.
  void begin(const text_type& t) {
    cache_.begin();
    start(t);
  }
  void resume(const text_type& t) {
    cache_.resume();
    start(t);
  }

  drafter_type& drafter() { return drafter_; }
  const drafter_type& drafter() const { return drafter_; }
  text_cache<KVStoreT>& cache() { return cache_; }
  // The number of the text's rows in the target's cache.
  std::int32_t held() const { return cache_.size(); }
  std::int32_t page_size() const requires shares_rows { return cache_.store().page_size(); }
  const tree<>& drafted() const { return tree_; }
  growth& growing() { return growth_; }
  round_record& record() { return record_; }
  const round_record& record() const { return record_; }

  // Gives up the rows of a text that goes elsewhere. Without `all`, the target's rows stay where they are if they can
  // be found again only in this sequence: that is, if the store knows their tokens and does not share rows.
  void release(bool all) {
    if (all || shares_rows || !PrefixKVStore<kv_type>) cache_.truncate(0);
    if constexpr (ReleasingDrafter<drafter_type>) {
      if (all || detail::gives_up_rows<drafter_type>()) drafter_.release();
    }
  }

  // Begins a step: caches and drafter follow the text, and its processor does where the last step failed.
  void prepare(text_type& t) {
    record_ = {.index = t.written.round()};
    log_probs_.clear();
    if (!t.processor_in_step) t.read_again();
    if (!has_own_rows(t)) forget_ahead();
    const std::span<const token_id> tokens = t.written.tokens();
    cache_.follow(tokens);
    if (t.written.scores_prompt()) cache_.truncate(t.written.n_scored() - 1);
    if (!drafter_in_step_ && !rests()) {
      drafter_.begin(tokens);
      draft_reads_ = !std::exchange(strayed_, false);
      drafter_in_step_ = true;
    }
    if (!drafter_in_step_) return;
    // Tokens that a drafter of hidden states has not read must pass through the target before the drafter is asked.
    if (lacks_features(t)) {
      if constexpr (reads_features) cache_.truncate(drafter_.n_read());
    }
  }

  // Calls f, a part of a step's drafting, and returns true. If f fails because no token can be drawn from the draft's
  // numbers, for example NaN, returns false: the round goes on with what has been drafted, and the drafter rests for
  // twice as many rounds as the time before. A drafter of hidden states rests until another text begins, since the
  // target would have to read the whole text again for it. The error is raised in a program without exceptions, and
  // with a policy that draws at random and builds its tree anew.
  template <class FunctionT>
  bool draft([[maybe_unused]] text_type& t, const FunctionT& f) {
#if ESPALIER_EXCEPTIONS
    try {
      f();
    } catch (const numeric_error&) {
      if (rebuilds && TreePolicyT::sampling != regime::deterministic) throw;
      lose_draft(t);
      return false;
    }
#else
    f();
#endif
    return true;
  }
  // Whether the drafter rests in this round.
  bool rests() const {
    return n_resting_ > 0;
  }

  // Whether the drafter has still to read tokens that were not written by rounds of this object. Tokens of these rounds
  // are read when a policy asks about the nodes after them.
  bool draft_reads() const {
    return draft_reads_;
  }
  void set_draft_reads(bool reads) {
    draft_reads_ = reads;
  }
  // Makes the drafter read up to n tokens.
  void read_draft(std::int32_t n) {
    if constexpr (PromptDrafter<drafter_type>)
      draft_reads_ = draft_reads_ && drafter_.read_prompt(n);
    else
      draft_reads_ = false;
  }

  // Returns how many tokens the target's cache must take before a round may begin. Of a text that is only read, it must
  // take all but the last. No round reads across a slide of the cache's window.
  std::int32_t left(const text_type& t) const {
    const bool to_the_end = t.written.left() == 0 || t.written.scores_prompt() || lacks_features(t);
    const std::int32_t goal = t.written.size() - (to_the_end ? 1 : sizes_.max_pending);
    const std::int32_t n = (std::max)(std::int32_t{0}, goal - cache_.size()), slides = cache_.until_slide();
    return unread(t) < slides ? n : (std::max)(n, slides);
  }
  // Returns how many tokens before the last one are not in the target's cache: a round takes them with it.
  std::int32_t unread(const text_type& t) const {
    return t.written.size() - 1 - cache_.size();
  }
  // Returns how many tokens the target sees when a round begins, the pending ones included.
  std::int32_t seen(const text_type& t) const {
    return cache_.held() + unread(t) + 1;
  }
  // Returns whether a round may begin, with drafting or without (`drafts`). If not, more is to be read, or the text is
  // only read.
  bool writes(const text_type& t, bool drafts = true) const {
    return left(t) == 0 && !(drafts && draft_reads_) && t.written.left() > 0;
  }

  // Adds the next tokens of the prompt to a pass, n at most. Returns false, and adds none, where the cache has no room.
  bool add_chunk(forward_batch& batch, const text_type& t, std::int32_t n) {
    n = (std::min)(n, cache_.until_slide());
    first_row_ = batch.n_rows();
    first_output_ = batch.n_outputs();
    n_outputs_ = t.written.scores_prompt() ? n : 0;
    if (!prefill::add(batch, cache_.store(), cache_.sequence(), t.written.tokens(), n, n_outputs_)) return false;
    record_.forwarded_rows = n;
    return true;
  }

  void finish_chunk(text_type& t, const BackendT& backend, vocab_rows<number> logits) {
    const std::int32_t first = cache_.size(), n = record_.forwarded_rows;
    const std::span<const token_id> tokens = t.written.tokens();
    show_features(backend, first, rows_.in_batch(prefill_.first_rows(n), first_row_));
    cache_.commit(prefill_.first_rows(n));
    cache_.remember(tokens);
    const std::int32_t next = first + 1;
    for (std::int32_t i = 0; i < n_outputs_; ++i) {
      if (next + i < t.written.n_scored()) continue;
      log_probs_.add(logits.row(first_output_ + i), tokens[static_cast<std::size_t>(next + i)],
                     row_origin::after_token(row_origin::model::target, cache_.sequence(), next + i - 1));
    }
    if (t.written.scores_prompt()) t.written.score(next + n_outputs_);
    record_.log_probs = log_probs_.tokens();
  }

  // Ends a text to which nothing is to be added, if this step has read the last of it.
  void end_if_read(text_type& t, bool drafts = true) {
    if (t.written.left() == 0 && !(drafts && draft_reads_) && left(t) == 0) t.written.end();
  }

  // Begins a round, with drafting or without (`drafts`).
  //
  // budget      the budget that this text's tree shares with the trees of other texts; nullptr if it shares none
  // in_time     the number of drafted tokens of this text for which the pass has time
  template <class BudgetT>
  void open_tree(text_type& t, bool drafts, BudgetT* budget, std::int32_t in_time) {
    const text& w = t.written;
    is_drafted_for_ = drafts;
    in_time_ = in_time;
    detail::open_tree(tree_, drafter_, w.tokens().back(), w.size(), drafts ? w.left() : 0,
                      (std::min)(w.room(), in_time));
    if constexpr (has_processor) {
      processor_.open(t.processor);
      processor_.attach(drafter_, true);
    }
    if constexpr (OpeningPolicy<TreePolicyT>) t.policy.open({seen(t), w.options().sampling, t.policy_in_step});
    if constexpr (!std::is_same_v<BudgetT, no_budget>) {
      if (budget != nullptr) t.policy.join(*budget);
    }
    growth_.begin(t.policy, tree_, drafter_);
    grows_ = true;
  }

  template <class ChanceT>
  void grow_step(text_type& t, ChanceT& chance) {
    if constexpr (has_processor)
      detail::grow_step(growth_, t.policy, tree_, drafter_, chance, processor_);
    else
      detail::grow_step(growth_, t.policy, tree_, drafter_, chance);
  }

  // Hands the policy the answer of a part of the drafter that was asked together with the drafters of other texts.
  template <std::size_t Index, class AnswerT, class ChanceT>
  void take(part_index<Index> part, text_type& t, const AnswerT& answer, ChanceT& chance) {
    growth_.take(part, t.policy, tree_, drafter_, answer, chance);
  }
  // The two halves of take() for policies that share a budget.
  template <class AnswerT, class ChanceT>
  void consider(text_type& t, const AnswerT& answer, ChanceT& chance) {
    const policy_step<half::consider, TreePolicyT, tree<>, AnswerT> step{t.policy, tree_, answer};
    with_checked_draws<TreePolicyT::sampling>(tree_, answer, chance, step);
  }
  template <class AnswerT, class ChanceT>
  void choose(text_type& t, const AnswerT& answer, ChanceT& chance) {
    growth_.choose(t.policy, tree_, drafter_, answer, chance);
  }

  void close_tree(text_type& t) {
    grows_ = false;
    detail::close_tree(growth_, t.policy, tree_, drafter_, sizes_.max_nodes, sizes_.vocab);
    record_tree(t);
  }

  // Takes the round's tree, and returns true, if it was drafted beside the last round's pass.
  bool take_ahead(text_type& t) {
    record_.drafted_ahead = ahead_.take(drafter_, tree_, t.policy);
    is_drafted_for_ = true;
    if (record_.drafted_ahead) record_tree(t);
    return record_.drafted_ahead;
  }
  void draft_ahead(const text_type& t) {
    if (!rests() && has_own_rows(t) && !reads_states(t.policy)) ahead_.start(drafter_, tree_, t.policy, t.written);
  }
  // Drops the round that draft_ahead() began, so that the next one drafts when it begins.
  void forget_ahead() {
    if (ahead_.give_up()) drafter_in_step_ = false, strayed_ = true;
  }

  // Adds the rows of the round to a pass. Returns false, and adds none, where the cache has no room.
  bool add_round(forward_batch& batch, const text_type& t, node_order order) {
    const std::int32_t pending = cache_.pending(t.written.tokens());
    const std::int32_t rows = pending + tree_.size() - 1;
    const std::int32_t prefix = cache_.store().append(cache_.sequence(), rows);
    if (prefix < 0) return false;
    rows_.add_to(batch, tree_.view(), order, t.written.tokens().last(static_cast<std::size_t>(pending)),
                 cache_.sequence(), prefix);
    record_.forwarded_rows = rows;
    return true;
  }

  // Returns the verdict on the round's tree. `logits` are the rows of the whole pass; `target` gets the target's
  // distributions, for commit().
  template <class VerifierT, class ChanceT>
  verdict verify(const text_type& t, vocab_rows<number> logits, VerifierT& verifier, target_rows& target,
                 ChanceT& chance) {
    logits_ = {logits.row(rows_.first_output()).data(), tree_.size(), logits.vocab};
    target.sample(t.written.options().sampling, sizes_.vocab);
    if constexpr (has_processor)
      target.open(logits_, rows_.logits_rows(), cache_.sequence(), tree_.view(), processor_);
    else
      target.open(logits_, rows_.logits_rows(), cache_.sequence());
    const verdict v = verifier.verify(tree_.view(), ahead_.rows(drafter_), target, chance);
    require_verdict(tree_.view(), v, sizes_.vocab);
    return v;
  }

  // Commits the verdict: caches, drafter, policy and text go on. `target` is as verify() has left it.
  template <class PieceT>
  void commit(text_type& t, verdict v, const BackendT& backend, target_rows& target, const PieceT& piece_of) {
    const tree_view tree = tree_.view();
    // Rows beyond a slide of the cache's window were computed as if it had not slid.
    v = cut(tree, v, (std::min)(cache_.until_slide() - rows_.n_pending(), tree_.size()) + 1);
    status after = status::running;
    if constexpr (has_processor) {
      const std::int32_t end = target.end_of(v.accepted);
      if (end == 0) return stop(t);
      if (end > 0) v = cut(tree, v, end), after = status::nothing_allowed;
    }
    const verdict admitted = t.written.admit(tree, v, piece_of, after);
    log_probs_.add(tree, admitted, target, cache_.sequence());
    const std::span<const std::int32_t> kept = rows_.kept(tree, admitted.accepted);
    show_features(backend, cache_.size(), rows_.in_batch(kept, rows_.first_row()));
    cache_.commit(kept);
    if (!rests()) {
      record_.seconds.draft_forward += ahead_.commit(drafter_, tree, admitted, strayed_);
      drafter_in_step_ = !strayed_;
    } else if (drafter_in_step_) {  // this round has lost its draft
      if constexpr (ReleasingDrafter<drafter_type>) drafter_.release();
      drafter_in_step_ = strayed_ = false;
    }
    detach();
    if constexpr (has_processor) {
      t.processor_in_step = false;
      processor_.commit(t.processor, tree, admitted);
    }
    show_state(t, backend, admitted.accepted);
    t.policy.observe(tree, admitted);
    // The text is committed last: if anything fails before this line, the round does not count.
    const std::size_t written = t.written.tokens().size();
    t.written.commit(tree, admitted);
    t.processor_in_step = true;
    t.policy_in_step = reads_states(t.policy);
    record_.decision = admitted;
    record_.committed = t.written.tokens().subspan(written);
    record_.log_probs = log_probs_.tokens();
    record_.shown = t.written.shown();
    cache_.remember(t.written.tokens());
    if (rests()) --n_resting_;
  }

  // Gives up a step that does not finish: no scratch is left, and the drafter will follow the text anew.
  void give_up([[maybe_unused]] const text_type& t) {
    drafter_in_step_ = strayed_ = grows_ = false;
    ahead_.give_up();
    detach();
#if ESPALIER_EXCEPTIONS
    try {
      cache_.drop_scratch(t.written.tokens());
    } catch (...) {  // the next step drops it
    }
#endif
  }

 private:
  // Records the tree, which has grown, and why it is not larger.
  void record_tree(const text_type& t) {
    const text& w = t.written;
    tree_limit otherwise = tree_limit::policy;
    if constexpr (requires { t.policy.limited_by(); }) otherwise = t.policy.limited_by();
    if constexpr (has_processor) {
      if (otherwise == tree_limit::policy && processor_.has_cut()) otherwise = tree_limit::processor;
    }
    if (!is_drafted_for_) otherwise = tree_limit::not_drafting;
    if (rests()) otherwise = tree_limit::draft_error;
    record_.tree = tree_.view();
    record_.limited_by = limit_of(record_.tree.n_draws,
                                  {is_drafted_for_ && !rests(), w.left(), w.room(), drafter_.capacity() - w.size(),
                                   (std::min)(t.policy.max_nodes(), sizes_.max_nodes), in_time_},
                                  otherwise);
  }

  // Whether rows are the models' own: no processor changes them.
  static bool has_own_rows([[maybe_unused]] const text_type& t) {
    if constexpr (has_processor) return is_idle(t.processor);
    return true;
  }

  void start(const text_type& t) {
    record_ = {};
    drafter_in_step_ = draft_reads_ = strayed_ = false;
    n_resting_ = n_lost_ = 0;
    ahead_.give_up();
    log_probs_.reserve((std::max)(sizes_.max_nodes + 1, sizes_.prefill_rows), t.written.options().log_probs,
                       sizes_.vocab);
  }

  // Ends the text, since the processor allows no token after it.
  void stop(text_type& t) {
    give_up(t);
    t.written.stop(status::nothing_allowed);
    record_.shown = t.written.shown();
  }

  // Takes the text's processor from the drafter: the text may leave between rounds, and its processor with it.
  void detach() {
    if constexpr (has_processor) {
      processor_.attach(drafter_, false);
      processor_.close();
    }
  }

  // Ends the drafting of this round, and begins a rest of the drafter. What a policy has drawn stays in the tree: to
  // drop tokens because of what they are would bias the text. A tree that the policy has yet to build anew loses its
  // drafted tokens: they were chosen without chance.
  void lose_draft([[maybe_unused]] text_type& t) {
    n_resting_ = reads_features ? (std::numeric_limits<std::int32_t>::max)() : 1 << n_lost_;
    n_lost_ = (std::min)(n_lost_ + 1, std::int32_t{10});
    draft_reads_ = false;
    if (!std::exchange(grows_, false)) return;
    growth_.stop();
    if constexpr (rebuilds) {
      detail::open_tree(tree_, drafter_, t.written.tokens().back(), t.written.size(), 0, 0);
      growth_.begin(t.policy, tree_, drafter_);
    }
  }

  bool lacks_features([[maybe_unused]] const text_type& t) const {
    if constexpr (reads_features) return !rests() && drafter_.n_read() < t.written.size() - 1;
    return false;
  }

  // Gives the drafter the hidden states of the tokens that it has not read. rows [n] are rows of the last pass: those
  // of the text's tokens from number `first` on.
  void show_features(const BackendT& backend, std::int32_t first, std::span<const std::int32_t> rows) {
    if constexpr (reads_features) {
      if (rests()) return;
      const auto known = static_cast<std::size_t>((std::max)(std::int32_t{0}, drafter_.n_read() - first));
      if (known < rows.size()) drafter_.read(backend, rows.subspan(known));
    }
  }

  // Tells the policy what the target says after this node.
  void show_state(text_type& t, const BackendT& backend, node_id u) {
    if constexpr (ReadsModelStates<TreePolicyT, number>) {
      if (!reads_states(t.policy)) return;
      std::span<const float> hidden;
      if constexpr (KeepsHiddenStates<BackendT>) {
        if (backend.hidden_size() > 0) hidden = backend.hidden_state(rows_.row(u));
      }
      t.policy_in_step = false;
      t.policy.read(logits_.row(rows_.logits_rows()[static_cast<std::size_t>(u)]), hidden);
    }
  }

  DrafterT drafter_;
  text_cache<KVStoreT> cache_;
  served_sizes sizes_;
  tree<> tree_;
  growth growth_;
  round_rows rows_;
  prefill prefill_;
  log_probs<number> log_probs_;
  ESPALIER_NO_UNIQUE_ADDRESS text_processor<ProcessorT> processor_;
  ESPALIER_NO_UNIQUE_ADDRESS ahead_type ahead_;
  vocab_rows<number> logits_;                                      // the rows of this text's nodes
  std::int32_t first_row_ = 0, first_output_ = 0, n_outputs_ = 0;  // the chunk's rows and outputs in its pass
  bool is_drafted_for_ = true;                                     // in this round
  // Drafted tokens that the round's pass has time for.
  std::int32_t in_time_ = (std::numeric_limits<std::int32_t>::max)();
  bool drafter_in_step_ = false;
  bool draft_reads_ = false;
  // Whether the drafter went on with another verdict than the target's, and so must begin the text anew. That is no
  // reason to read a prompt: the tokens that it lacks then were written by rounds of this object.
  bool strayed_ = false;
  bool grows_ = false;          // the tree is open
  std::int32_t n_resting_ = 0;  // rounds until the drafter is asked again, this one included: see draft()
  std::int32_t n_lost_ = 0;     // rounds of this text that lost their draft, at most 10
  round_record record_;
};

}  // namespace espalier::detail
