// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/check_round.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/decoder/log_probs.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/round_batch.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/stopwatch.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_cache.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/lazy_rows.hpp"

namespace espalier {

//! For texts without stop strings: tokens have no pieces.
struct no_pieces {
  std::string_view operator()(token_id) const { return {}; }
};

//! Tree speculative decoding of one text at a time: the only place that knows all five parts.
//!
//! Policy and verifier are kept by value; drafter, store and backend by reference when make_decoder got lvalues, by
//! value otherwise.
//!
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!     decode.begin(prompt, {.max_tokens = 256}, {.seed = 7});
//!     while (decode.step()) show(decode.last_round().committed);
//!
//! Complexity  a round: the policy's draft passes, one target pass of pending + nodes rows; no allocation once warm
//! Law         the text is distributed as the target alone would write it; with the greedy verifier it is the same
//!             text. With equal parts and capacities it depends on prompt, stop conditions and text_options alone, not
//!             on what was written before or where it stands in the cache
//! Pre         what the sequence of the cache holds is of this backend's model
//! Errors      option_error and input_error when parts or prompt do not fit; input_error where another decoder has
//!             changed the sequence of a PrefixKVStore in the middle of a text. A part that throws inside step() leaves
//!             the text at its last committed token, cache included: step() may be called again
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
class decoder {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(
      detail::check_parts<drafter_type, TreePolicyT, VerifierT, std::remove_reference_t<KVStoreT>, backend_type>());
  using number = logit_number<backend_type, std::remove_reference_t<KVStoreT>>;
  static constexpr bool reads_features = FeatureDrafter<drafter_type, backend_type>;

 public:
  decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
          decoder_options options = {})
      : drafter_(std::forward<DrafterT>(drafter)),
        policy_(std::move(policy)),
        verifier_(std::move(verifier)),
        cache_(std::forward<KVStoreT>(kv), options.sequence),
        backend_(std::forward<BackendT>(backend)),
        options_(require_options(options)),
        context_(context_length(backend_, cache_.store())),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        tree_((std::min)(most_asked(policy_), context_)),
        batch_(max_nodes_ + 1, options_.prefill_chunk + max_nodes_),
        prefill_(options_.prefill_chunk) {
    detail::require_sampling<VerifierT>(options_.text.sampling);
    detail::require_fit(drafter_, backend_, max_nodes_);
    max_pending_ = options_.prefill_chunk;
    if constexpr (BoundedBackend<backend_type>)
      max_pending_ = std::min<std::int32_t>(max_pending_, backend_.max_rows() - max_nodes_);
    if constexpr (StateDrafter<drafter_type>) {
      if (reads_states()) drafter_.keep_states();
    }
    drafter_.reserve(tree_.capacity());
    target_.reserve(max_nodes_ + 1, backend_.vocab_size());
    if constexpr (ReservingVerifier<VerifierT>) verifier_.reserve(max_nodes_, backend_.vocab_size());
  }

  //! Starts a text. What the caches of target and draft hold of its beginning is used again.
  //!
  //! Errors      as text::begin(); option_error for sampling options out of range. The text before then still stands
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) {
    detail::require_sampling<VerifierT>(options.sampling);
    text_.begin(prompt, std::move(stop), options, context_, backend_.vocab_size());
    cache_.begin();
    if constexpr (ResettingPolicy<TreePolicyT>) policy_.reset();
    policy_in_step_ = false;
    start();
  }

  //! The same, with the decoder's options for texts.
  void begin(std::span<const token_id> prompt, stop_conditions stop = {}) {
    begin(prompt, std::move(stop), options_.text);
  }

  //! Goes on after the text that stands, if any, with `more` tokens in between (or none): the next turn of a
  //! conversation. What the caches hold is used again, and so is what the policy has learnt.
  //!
  //! Errors      as begin()
  void resume(std::span<const token_id> more, stop_conditions stop = {}) {
    if (text_.state() == status::idle) return begin(more, std::move(stop));
    text_.resume(more, std::move(stop), context_, backend_.vocab_size());
    cache_.resume();
    policy_in_step_ = false;
    start();
  }

  //! The text as it stands, and what the policy has learnt of it: to go on from here elsewhere, later, or several
  //! times.
  saved_text<TreePolicyT> save() const { return {text_, policy_, policy_in_step_}; }

  //! Goes on with a text that was saved, instead of the one that stands. What the caches hold of it is used.
  //!
  //! Errors      input_error where it does not fit vocabulary or context, option_error where policy or verifier do not
  //!             fit. The text before then still stands
  void load(saved_text<TreePolicyT> saved) {
    detail::require_sampling<VerifierT>(saved.written.options().sampling);
    saved.move_to(policy_, context_, backend_.vocab_size());
    text_ = std::move(saved.written);
    policy_ = std::move(saved.policy);
    policy_in_step_ = saved.policy_in_step;
    cache_.begin();
    start();
  }

  //! One round, or a pass over the next prefill_chunk tokens of a long prompt, where last_round() has committed
  //! nothing. False, and nothing is done, once the text has ended. `piece_of` is needed for stop strings and for
  //! round_record::shown.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    philox_chance chance(text_.seed(), text_.options().stream, static_cast<std::uint32_t>(text_.size()));
    return step_with(chance, piece_of);
  }

  //! The same with a chance of one's own, such as the enumerator's.
  template <Chance ChanceT, class PieceT = no_pieces>
  bool step_with(ChanceT& chance, const PieceT& piece_of = {}) {
    if (!text_.running()) return false;
    if (std::is_same_v<PieceT, no_pieces> && text_.reads_pieces())
      raise<input_error>("stop strings need the text of each token: give step() or generate() a function for it.");
    record_ = {.index = text_.round()};
    log_probs_.clear();
    watch_.lap();
    scratch_guard guard{*this};
    if (!read_prompt()) {
      draft(chance);
      compile();
      logits_ = checked_forward(backend_, cache_.store(), batch_.view());
      record_.seconds.target_forward += watch_.lap();
      target_.open(logits_, batch_.logits_rows(), cache_.sequence());
      const verdict v = verifier_.verify(tree_.view(), detail::draft_rows(drafter_), target_, chance);
      record_.seconds.verify = watch_.lap();
      commit(v, piece_of);
      record_.seconds.commit = watch_.lap();
    }
    record_.state = text_.state();
    guard.finished = true;
    return true;
  }

  //! Writes a whole text and tells the observer about each round; the reading of the prompt counts with the first. The
  //! result is valid until the next text begins.
  template <Observer ObserverT, class PieceT = no_pieces>
  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop, ObserverT&& observer,
                                     const PieceT& piece_of = {}) {
    begin(prompt, std::move(stop));
    station_seconds reading;
    while (step(piece_of)) {
      reading += record_.seconds;
      if (record_.committed.empty()) continue;
      record_.seconds = std::exchange(reading, {});
      observer(last_round());
    }
    return text_.written();
  }

  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return generate(prompt, std::move(stop), [](const round_record&) {});
  }

  const text& current() const { return text_; }
  //! Valid until the next step or text.
  const round_record& last_round() const { return record_; }
  TreePolicyT& policy() { return policy_; }
  const TreePolicyT& policy() const { return policy_; }

 private:
  // A round that does not finish leaves no scratch, and a drafter that follows the text anew.
  struct scratch_guard {
    decoder& self;
    bool finished = false;
    ~scratch_guard() {
      if (finished) return;
      self.drafter_in_step_ = false;
#if ESPALIER_EXCEPTIONS
      try {
        self.cache_.drop_scratch(self.text_.tokens());
      } catch (...) {  // the next round drops it
      }
#endif
    }
  };

  // Another text has been put in place.
  void start() {
    const text_options& options = text_.options();
    target_.sample(options.sampling, backend_.vocab_size());
    log_probs_.reserve((std::max)(max_nodes_ + 1, options_.prefill_chunk), options.log_probs, backend_.vocab_size());
    record_ = {};
    drafter_in_step_ = false;
  }

  // Gives the drafter the hidden states of the last pass's rows that are text beyond what it has read. rows [n] are
  // those of the tokens from `first` on.
  void show_features(std::int32_t first, std::span<const std::int32_t> rows) {
    if constexpr (reads_features) {
      const auto known = static_cast<std::size_t>((std::max)(std::int32_t{0}, drafter_.n_read() - first));
      if (known < rows.size()) drafter_.read(backend_, rows.subspan(known));
    }
  }

  bool reads_states() const {
    if constexpr (StatePolicy<TreePolicyT, number>) return policy_.reads_states();
    return false;
  }

  // Tells the policy what the target says after this node.
  void show_state(node_id u) {
    if constexpr (StatePolicy<TreePolicyT, number>) {
      if (!reads_states()) return;
      std::span<const float> hidden;
      if constexpr (HiddenBackend<backend_type>) {
        if (backend_.hidden_size() > 0) hidden = backend_.hidden_state(batch_.row(u));
      }
      policy_in_step_ = false;
      policy_.read(logits_.row(batch_.logits_rows()[static_cast<std::size_t>(u)]), hidden);
    }
  }

  // Reads what the target's pass of a round cannot take beside the tree: one chunk a call. False once a round may
  // begin.
  bool read_prompt() {
    cache_.follow(text_.tokens());
    if (text_.scores_prompt()) cache_.truncate(text_.n_scored() - 1);
    if (!drafter_in_step_) {
      drafter_.begin(text_.tokens());
      drafter_in_step_ = draft_reads_ = true;
    }
    const double before = draft_forward_seconds();
    // Only what was written elsewhere: text of this decoder's own rounds is read where a policy asks for it.
    if constexpr (PromptDrafter<drafter_type>)
      draft_reads_ = draft_reads_ && drafter_.read_prompt(options_.prefill_chunk);
    else
      draft_reads_ = false;
    record_.seconds.draft_forward = draft_forward_seconds() - before;
    record_.seconds.grow = watch_.lap() - record_.seconds.draft_forward;
    const bool writes = text_.left() > 0;
    std::int32_t goal = text_.size() - (writes && !text_.scores_prompt() ? max_pending_ : 1);
    if constexpr (reads_features) {
      // Text that it has not read passes through the target before the drafter is asked.
      if (drafter_.n_read() < text_.size() - 1) {
        cache_.truncate(drafter_.n_read());
        goal = text_.size() - 1;
      }
    }
    const std::int32_t left = goal - cache_.size();
    if (left > 0) read_chunk(left);
    if (!writes && !draft_reads_ && cache_.size() >= goal) text_.end();
    return left > 0 || draft_reads_ || !writes;
  }

  void read_chunk(std::int32_t left) {
    const std::span<const token_id> tokens = text_.tokens();
    std::int32_t next = 0;
    logits_ = prefill_.pass(backend_, cache_.store(), cache_.sequence(), tokens, left, text_.scores_prompt() ? left : 0,
                            [&](std::int32_t first, std::int32_t n) {
                              show_features(first, prefill_.rows().first(static_cast<std::size_t>(n)));
                              record_.forwarded_rows = n;
                              next = first + 1;
                            });
    for (std::int32_t i = 0; i < logits_.n_rows; ++i) {
      if (next + i >= text_.n_scored())
        log_probs_.add(logits_.row(i), tokens[static_cast<std::size_t>(next + i)],
                       row_origin::after_token(row_origin::model::target, cache_.sequence(), next + i - 1));
    }
    if (text_.scores_prompt()) text_.score(next + logits_.n_rows);
    record_.log_probs = log_probs_.tokens();
    record_.seconds.target_forward = watch_.lap();
  }

  template <class ChanceT>
  void draft(ChanceT& chance) {
    // The last token that may be written is the target's own: nothing need be drafted for it.
    const std::int32_t room = text_.left() > 1 ? (std::min)(text_.room(), drafter_.capacity() - text_.size()) : 0;
    tree_.reset(text_.tokens().back(), (std::min)(tree_.capacity(), room));
    const double before = draft_forward_seconds();
    if constexpr (OpeningPolicy<TreePolicyT>) policy_.open({text_.size(), text_.options().sampling, policy_in_step_});
    espalier::grow(policy_, tree_, drafter_, chance);
    detail::require_budget(tree_, max_nodes_);
    record_.tree = tree_.view();
    detail::require_tokens(record_.tree, backend_.vocab_size());
    record_.seconds.draft_forward += draft_forward_seconds() - before;
    record_.seconds.grow += watch_.lap() - (draft_forward_seconds() - before);
  }

  double draft_forward_seconds() const {
    if constexpr (TimedDrafter<drafter_type>) return drafter_.forward_seconds();
    return 0.0;
  }

  void compile() {
    const std::int32_t prefix = cache_.size(), pending = cache_.pending(text_.tokens());
    const std::int32_t rows = pending + tree_.size() - 1;
    if (cache_.store().append(cache_.sequence(), rows) < 0)
      raise<input_error>("the cache of ", cache_.store().capacity(), " tokens is full, or its pages are used up.");
    batch_.compile(tree_.view(), options_.order, text_.tokens().last(static_cast<std::size_t>(pending)),
                   cache_.sequence(), prefix);
    record_.forwarded_rows = rows;
    record_.seconds.compile = watch_.lap();
  }

  template <class PieceT>
  void commit(verdict v, const PieceT& piece_of) {
    const tree_view tree = tree_.view();
    detail::require_verdict(tree, v, backend_.vocab_size());
    const verdict admitted = text_.admit(tree, v, piece_of);
    const node_id accepted = admitted.accepted;
    log_probs_.add(tree, admitted, logits_, batch_.logits_rows(), cache_.sequence());
    const std::span<const std::int32_t> kept = batch_.kept(tree, accepted);
    show_features(batch_.prefix(), kept);
    cache_.commit(kept);
    drafter_.commit(tree, admitted);
    show_state(accepted);
    policy_.observe(tree, admitted);
    // The text comes last: whatever failed before this line, the round has not been.
    const std::size_t written = text_.tokens().size();
    text_.commit(tree, admitted);
    policy_in_step_ = reads_states();
    record_.decision = admitted;
    record_.committed = text_.tokens().subspan(written);
    record_.log_probs = log_probs_.tokens();
    record_.shown = text_.shown();
    cache_.remember(text_.tokens());
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  VerifierT verifier_;
  text_cache<KVStoreT> cache_;
  BackendT backend_;
  decoder_options options_;
  text text_;
  lazy_rows<number> target_;
  vocab_rows<number> logits_;  // of the last target pass
  log_probs<number> log_probs_;
  std::int32_t context_;
  std::int32_t max_nodes_;  // what there is room for, whatever the policy says later
  tree<> tree_;
  round_batch batch_;
  prefill prefill_;
  std::int32_t max_pending_ = 0;
  bool drafter_in_step_ = false;
  bool draft_reads_ = false;     // what the text held before this decoder's rounds
  bool policy_in_step_ = false;  // what it read last is of the token before the pending one
  round_record record_;
  stopwatch watch_;
};

//! Builds a decoder of five parts: policy and verifier are copied or moved, of the others lvalues are kept by
//! reference.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT> make_decoder(DrafterT&& drafter, TreePolicyT policy,
                                                                           VerifierT verifier, KVStoreT&& kv,
                                                                           BackendT&& backend,
                                                                           decoder_options options = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), std::move(options)};
}

}  // namespace espalier
