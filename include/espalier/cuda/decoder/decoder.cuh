// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/processor.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/decoder/outside_pass.cuh"
#include "espalier/cuda/decoder/text_rounds.cuh"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/time_budget.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/held_prefix.hpp"

namespace espalier::cuda {

//! Tree speculative decoding of one sequence on the device: espalier::decoder with parts that live there.
//!
//! A round is work in one stream, from the pending token to the committed text. The stream waits for the host only
//! where a processor or a model of the host is called. Unless decoder_options::replay is false, a graph of the round is
//! captured for each context_bucket and replayed; the first round of a bucket runs without one. The host enqueues one
//! round ahead of the one whose outcome it takes in, and tokens are copied to the host meanwhile. Policy and verifier
//! are kept by value; drafter, store and backend by reference when make_decoder got lvalues, by value otherwise. A
//! prompt is read in one step. Log-probabilities and saved texts are for espalier::decoder alone.
//!
//! A processor stays on the host: the stream calls it there in the middle of a round, for each pass of the draft and
//! for the target's, on a thread of the CUDA runtime. Between begin() and the end of a text, no other code may use
//! the data that the processor's constraint shares with other constraints.
//!
//! Complexity  a round on the host: one graph launch, two copies, one event; on the device, the policy's draft passes,
//!             one target pass of 1 + max_nodes() rows, and no allocation
//! Law         the text is the one that espalier::decoder writes with the same parts, seed and logits. If the host cut
//!             a round at a stop token or string, a policy that learns has seen the whole round when resume() goes on
//! Pre         a drafter serves one decoder, whose text it reads
//! Errors      option_error, input_error when parts or prompt do not fit; numeric_error and the exceptions of a
//!             processor as espalier::decoder; cuda_error. An exception that a part throws while a round is enqueued
//!             may come one step earlier than from espalier::decoder. After an error of step(), the text stands at its
//!             last committed token, and step() may be called again
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class decoder {
  using rounds_type = detail::text_rounds<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  static constexpr std::int32_t only_place[1] = {0};

 public:
  decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
          decoder_options options = {}, ProcessorT processor = {})
      : options_(require_options(options)),
        processor_(std::move(processor)),
        rounds_(std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
                std::forward<BackendT>(backend),
                {.order = options.order, .first_sequence = options.sequence, .replay = options.replay}) {
    rounds_.check(options.text);
    espalier::detail::refuse_time_budget(options.time_budget, options.costs.has_value());
  }

  decoder(const decoder&) = delete;

  //! Starts a text. From here to the end of the text, the sequence of the cache, drafter and backend belong to this
  //! decoder alone. Rows of the text's beginning that the caches hold are used again. Synchronises.
  //!
  //! Errors      as espalier::decoder; option_error for log_probs, which only espalier::decoder gives
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) {
    rounds_.check(options);
    settle();
    const std::int32_t drafted = drafted_of(prompt);
    text_.begin(prompt, std::move(stop), options, rounds_.context(), rounds_.vocab_size());
    n_drafted_ = drafted;
    held_.begin();
    rounds_.sample(0, options.sampling);
    rounds_.forget(0);
  }

  //! Begins a text with another processor, which later texts keep.
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
             ProcessorT processor) requires(espalier::detail::processes<ProcessorT>) {
    begin(prompt, std::move(stop), options);
    processor_ = std::move(processor);
  }

  //! Begins a text with the decoder's options for texts.
  void begin(std::span<const token_id> prompt, stop_conditions stop = {}) {
    begin(prompt, std::move(stop), options_.text);
  }

  //! Appends `more` tokens (or none) to the present text, and goes on after them; begins a text if there is none.
  //! Rows in the caches are used again, and so is the state that the policy has learnt. Synchronises.
  void resume(std::span<const token_id> more, stop_conditions stop = {}) {
    if (text_.state() == status::idle) return begin(more, std::move(stop));
    settle();
    text_.resume(more, std::move(stop), rounds_.context(), rounds_.vocab_size());
  }

  //! Waits for the outcome of one round and takes it in; the next round is under way meanwhile. Returns false, and does
  //! nothing, if the text has ended. piece_of gives the bytes of tokens; only stop strings need it.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    if (!text_.running()) return false;
    espalier::detail::require_pieces<PieceT>(text_);
    require_no_pass();
    flight_guard guard{*this};
    if (begin_in_step()) {
      rounds_.read(0, n_read_, goal());
      finish_reading();
    }
    if (ends_if_read()) return true;
    // A round writes at least one token: with one left, the round under way is the last.
    while (rounds_.n_under_way() < (text_.left() > 1 ? 2 : 1))
      rounds_.enqueue(only_place, make_room(), rows());
    take_in(piece_of);
    guard.finished = text_.running();  // a round that is under way when the text has ended is given up
    return true;
  }

  //! The first half of a step, for an engine that makes the target's passes itself: enqueues the drafting, and returns
  //! the pass that the step needs next. The engine enqueues the pass in its stream, or elsewhere, and hands the logits
  //! to end_step(), or calls give_up(); meanwhile other decoders go on. As in step(), the host waits until a prompt
  //! is read. The text is the one that step() writes, but no graph is used and no round is enqueued ahead.
  //!
  //!     while (decode.current().running()) {
  //!       for (cuda::outside_pass p = decode.begin_step(); p; p = decode.end_step(engine.logits_of(p))) {
  //!       }
  //!     }
  //!
  //! The passes of a draft model are made inside. A round that step() has enqueued ahead is taken in here, and then the
  //! step needs no pass.
  //!
  //! Post        if no pass is returned, the step is over and last_round() is its record, or no text was running
  //! Errors      as step(); input_error if a pass is under way
  template <class PieceT = no_pieces>
  outside_pass begin_step(const PieceT& piece_of = {}) {
    require_no_pass();
    if (!text_.running()) return {};
    if (rounds_.n_under_way() > 0) espalier::detail::require_pieces<PieceT>(text_);
    flight_guard guard{*this};
    record_ = {.state = text_.state()};
    begin_in_step();
    rounds_.n_under_way() > 0 ? take_in(piece_of) : go_on();
    guard.finished = text_.running();
    return pass_;
  }

  //! The second half of a step: takes the logits of the pass under way, and returns the next pass of this step. That
  //! pass reads the prompt, or is the pass of the round. The logits of the round's pass end the step: verifying and
  //! committing are enqueued, and the host waits for their outcome.
  //!
  //! Shapes      logits [batch.n_outputs][vocab_size], in the memory of the device; a text's processor changes them in
  //!             place. They need not be complete yet if they are computed in the stream of the pass. An engine that
  //!             computes them in another stream lets the stream of the pass wait for that one (cudaStreamWaitEvent)
  //! Post        as begin_step()
  //! Errors      as step(), but only those of this round; input_error if no pass is under way, and for logits of
  //!             another shape, after which the pass still is under way
  template <class PieceT = no_pieces>
  outside_pass end_step(vocab_rows<typename rounds_type::number> logits, const PieceT& piece_of = {}) {
    if (!pass_) raise<input_error>("no pass is under way: begin_step() comes first.");
    require_rows_of(logits, pass_.batch.n_outputs, rounds_.vocab_size());
    if (in_step_) espalier::detail::require_pieces<PieceT>(text_);
    flight_guard guard{*this};
    const std::int32_t n = std::exchange(pass_, {}).batch.n_rows;
    if (in_step_) {
      rounds_.close(logits);
      take_in(piece_of);
    } else {
      rounds_.close_read(0, n_read_, n);
      n_read_ += n;
      go_on();
    }
    guard.finished = text_.running();
    return pass_;
  }

  //! Gives up the step that has begun: the text stands at its last committed token, and the next step begins there.
  //! Waits for the decoder's stream. The engine must not write cache slots of the pass any more.
  void give_up() noexcept {
    rounds_.give_up();
    pass_ = {};
    in_step_ = false;
  }

  //! Writes a text to its end, as espalier::decoder::generate does.
  template <Observer ObserverT, class PieceT = no_pieces>
  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop, ObserverT&& observer,
                                     const PieceT& piece_of = {}) {
    begin(prompt, std::move(stop));
    while (step(piece_of)) {
      if (!record_.committed.empty()) observer(last_round());
    }
    return text_.written();
  }

  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return generate(prompt, std::move(stop), [](const round_record&) {});
  }

  //! The text so far, as the host has it.
  const espalier::text& current() const { return text_; }
  //! The record of the last round; valid until the next round or text. Its seconds.on_device is the time from one
  //! outcome to the next, since the host does not see the parts of a round.
  const round_record& last_round() const { return record_; }

 private:
  // A guard that gives up the rounds under way at its end, unless `finished` is true: after an exception, or if the
  // text has ended, host and device go on from the host's text.
  struct flight_guard {
    decoder& self;
    bool finished = false;
    ~flight_guard() {
      if (!finished) self.give_up();
    }
  };

  // Waits until nothing is under way any more, and forgets the last record.
  void settle() {
    rounds_.settle();
    pass_ = {};
    in_step_ = false;
    record_ = {};
  }

  void require_no_pass() const {
    if (pass_)
      raise<input_error>("a pass is under way: end_step() or give_up() comes before another step of this decoder.");
  }

  // Returns how many leading tokens of another text are in the draft's cache. Only tokens that the target's cache still
  // holds count: a text that has overwritten their rows there may have overwritten the draft's rows, too.
  std::int32_t drafted_of(std::span<const token_id> other) const {
    const auto drafted = text_.tokens().first(static_cast<std::size_t>((std::min)(n_drafted_, n_held())));
    return static_cast<std::int32_t>(std::mismatch(drafted.begin(), drafted.end(), other.begin(), other.end()).first -
                                     drafted.begin());
  }

  // Number of leading tokens of the text whose rows the target's cache still holds; 0 if the store does not remember
  // its tokens, since another decoder may have overwritten the sequence.
  std::int32_t n_held() const {
    if constexpr (PrefixKVStore<kv_type>) return held_.of(rounds_.kv(), options_.sequence, text_.tokens());
    return 0;
  }

  // Takes note that all of the text but its pending token is in both caches for good. The target's cache held the first
  // n tokens before.
  void remember(std::int32_t n) {
    n_drafted_ = text_.size() - 1;
    if constexpr (PrefixKVStore<kv_type>)
      held_.remember(rounds_.kv(), options_.sequence, text_.tokens(), n, n_drafted_);
  }

  void require_own_cache() {
    if constexpr (PrefixKVStore<kv_type>) {
      if (n_held() >= text_.size() - 1) return;
      raise<input_error>("sequence ", options_.sequence, " of the cache holds another text from token ", n_held(),
                         " on: another part uses it, too. Each text that is being written needs its own.");
    }
  }

  // Number of tokens that are read before rounds begin: all but the last, which the first round reads.
  std::int32_t goal() const { return text_.size() - 1; }

  // Begins to bring the device in step with the host's text: puts the text there, clears its fault, and finds the rows
  // that the caches hold. Returns true if the caller then is to read the tokens from number n_read_ to goal() - 1, if
  // there are any, and to call finish_reading(). Returns false if the device is in step already.
  bool begin_in_step() {
    if (in_step_) {
      require_own_cache();
      return false;
    }
    watch_.lap();
    n_drafted_ = (std::min)({n_drafted_, n_held(), text_.size() - 1});
    // A drafter that reads the target's hidden states needs the states of all tokens that its cache does not hold.
    n_known_ = n_read_ = (std::min)(n_held(), rounds_type::reads_features ? n_drafted_ : goal());
    rounds_.put(0, text_);
    rounds_.follow(0, text_, processor_);
    // The rows behind n_known_ are written anew.
    if constexpr (SharingKVStore<kv_type>) rounds_.kv().truncate(options_.sequence, n_known_);
    return true;
  }
  void finish_reading() {
    rounds_.begin_draft(0, text_.tokens(), n_drafted_);
    rounds_.settle();
    remember(n_known_);
    in_step_ = true;
  }

  // Goes on with the step up to its next pass, which is pass_ then. If there is none, the step is over.
  void go_on() {
    if (!in_step_ && n_read_ < goal()) {
      pass_ = rounds_.open_read(0, n_read_, goal());
      return;
    }
    if (!in_step_) finish_reading();
    if (!ends_if_read()) pass_ = rounds_.open(only_place, make_room(), rows());
  }

  // Ends a text that was only to be read, and returns true; returns false for any other.
  bool ends_if_read() {
    if (text_.left() > 0) return false;
    text_.end();
    record_ = {.state = text_.state()};
    return true;
  }

  // Returns the rows of a round of one text, with no prompt read beside it.
  typename rounds_type::pass_rows rows() const { return rounds_.rows_of({1, 1, 0}, text_.size()); }

  // Makes room for one more round, and returns how many tokens the text may reach in it.
  std::int32_t make_room() {
    // Each round under way may add `drafted` tokens.
    const std::int32_t drafted = rounds_.max_nodes() + 1;
    const std::int32_t longest = text_.size() + (rounds_.n_under_way() + 2) * drafted;
    rounds_.ensure(0, (std::min)(longest, rounds_.context()));
    return longest;
  }

  template <class PieceT>
  void take_in(const PieceT& piece_of) {
    const auto arrived = rounds_.wait(1);
    arrived.raise_fault(0);
    const std::int32_t held = text_.size() - 1;
    const auto& outcome = arrived.outcomes[0];
    const tree_limit limited_by = rounds_.limit_of(text_, arrived.tree(0), arrived.limit(0), rows());
    record_ = detail::take_round(text_, arrived.tree(0), limited_by, outcome.decision, outcome.ends, piece_of);
    remember(held);
    record_.seconds.on_device = watch_.lap();
  }

  decoder_options options_;
  ESPALIER_NO_UNIQUE_ADDRESS ProcessorT processor_;
  rounds_type rounds_;
  std::int32_t n_drafted_ = 0;  // number of leading tokens whose rows the draft's cache holds
  held_prefix held_;
  std::int32_t n_known_ = 0;  // number of leading tokens that the target's cache held when the device was last put
                              // in step
  std::int32_t n_read_ = 0;   // number of leading tokens that the target's cache holds, or is about to hold; valid
                              // only until the device is in step
  bool in_step_ = false;
  outside_pass pass_;  // the pass that is under way outside, if there is one
  espalier::text text_;
  round_record record_;
  stopwatch watch_;
};

//! Builds a decoder on the device of five parts, and a processor if texts have one. Policy, verifier and processor are
//! moved; drafter, store and backend are kept by reference if they are lvalues, and moved otherwise.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_decoder(
    DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
    decoder_options options = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), options,           std::move(processor)};
}

}  // namespace espalier::cuda
