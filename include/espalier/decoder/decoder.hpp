// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/round_rows.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/decoder/batch_drafting.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/outside_pass.hpp"
#include "espalier/decoder/processed_rows.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/served_text.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/time_budget.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/sampling/lazy_rows.hpp"

namespace espalier {

namespace detail {

// The text of a decoder, as batch_drafting sees a place of a batch.
template <class ServedT, class TextT>
struct lone_place {
  struct entry {
    text_id id;
    TextT& value;
  };

  ServedT& served;
  entry own;
  entry* text = &own;
  bool is_drafted_for = true;

  lone_place(ServedT& its_server, TextT& its_text) : served(its_server), own{0, its_text} {}
  lone_place(const lone_place&) = delete;
  bool has_begun() const { return true; }
  bool draws() const { return true; }
};

// Takes the place of batch_drafting for drafters that make their passes themselves.
struct no_passes {};

}  // namespace detail

//! A decoder that writes one text at a time by tree speculative decoding. It brings five parts together (drafter,
//! policy, verifier, KV store and backend), and a processor where texts have one.
//!
//! Policy, verifier and processor are kept by value; drafter, store and backend by reference when make_decoder got
//! lvalues, by value otherwise.
//!
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!     decode.begin(prompt, {.max_tokens = 256}, {.seed = 7});
//!     while (decode.step()) show(decode.last_round().committed);
//!
//! Complexity  a round: the draft passes that the policy asks for, and one target pass over the pending and the drafted
//!             tokens; no allocation once warm
//! Law         the text is distributed as the target alone would write it, with its logits as the processor leaves
//!             them; with the greedy verifier it is the same text. With equal parts and capacities, a text depends on
//!             prompt, stop conditions and text_options alone, not on what was written before or on its place in the
//!             cache
//! Pre         the rows that the cache holds for this sequence were computed by this backend's model
//! Errors      option_error and input_error if parts or prompt do not fit; input_error if another decoder has changed
//!             the sequence in the middle of a text (a store that is no PrefixKVStore shows this only by its number of
//!             rows). If a part throws inside step(), text and cache stand at the text's last committed token: step()
//!             may be called again
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class decoder {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(
      detail::fit<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>());
  using number = logit_number<backend_type, std::remove_reference_t<KVStoreT>>;
  using served_type = detail::served_text<DrafterT, TreePolicyT, KVStoreT, backend_type, ProcessorT>;
  using place = detail::lone_place<served_type, saved_text<TreePolicyT, ProcessorT>>;
  static constexpr bool drafts_outside = detail::drafts_outside<drafter_type>;
  using drafting = std::conditional_t<drafts_outside, detail::batch_drafting<drafter_type>, detail::no_passes>;

 public:
  decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
          decoder_options options = {}, ProcessorT processor = {})
      : text_{{}, std::move(policy), false, std::move(processor)},
        verifier_(std::move(verifier)),
        backend_(std::forward<BackendT>(backend)),
        options_(require_options(options)),
        context_(context_length(backend_, kv)),
        max_nodes_((std::min)(text_.policy.max_nodes(), context_)),
        time_(options_),
        served_(std::forward<DrafterT>(drafter), std::forward<KVStoreT>(kv), options.sequence, text_.policy, sizes()) {
    detail::require_text<VerifierT>(options.text, backend_);
    detail::require_parts<VerifierT, ProcessorT>(served_.drafter(), text_.policy, backend_, max_nodes_);
    const std::int32_t rows = options_.prefill_rows + max_nodes_;
    batch_.reserve(rows, rows);
    if constexpr (drafts_outside) drafting_.reserve(1, sizes().max_asked + options_.prefill_rows, sizes().max_asked);
    target_.reserve(max_nodes_ + 1, backend_.vocab_size());
    reserve_verifier(verifier_, max_nodes_, backend_.vocab_size());
    if constexpr (ESPALIER_HOSTED == 0) {  // no memory is taken later
      text_.written.reserve(context_);
      target_.sample(options_.text.sampling, backend_.vocab_size());
    }
  }

  //! Returns the bytes of an arena that the decoder and its parts take.
  static constexpr std::size_t bytes(const static_capacity& c) {
    static_assert(!detail::processes<ProcessorT>, "processors are for programs with a heap");
    const std::int32_t nodes = (std::min)(c.nodes, c.context), rows = c.prefill_rows + nodes;
    const std::size_t drafter = arena::bytes_of_part<drafter_type>(c);
    return drafter + arena::bytes_of_part<TreePolicyT>(c) + arena::bytes_of_part<VerifierT>(c) +
           arena::bytes_of_part<KVStoreT>(c) + arena::bytes_of_part<BackendT>(c) + tree<>::bytes(nodes) +
           round_rows::bytes(nodes + 1, rows) + prefill::bytes(c.prefill_rows) + forward_batch::bytes(rows, rows) +
           lazy_rows<number>::bytes(c.target, nodes + 1, c.vocabulary) +
           arena::bytes_of<token_id>(static_cast<std::size_t>(c.context) + 1);
  }

  //! Starts a text. Rows that the caches of target and draft hold of its beginning are used again.
  //!
  //! Errors      as text::begin(); option_error for text options that are out of range or that the verifier or the
  //!             backend does not support. After such an error the text from before still stands, and a pass that was
  //!             under way is still under way
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) {
    start(prompt, std::move(stop), options);
    begin_text();
  }

  //! Begins a text with a processor of its own, which the texts after it keep.
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
             ProcessorT processor) requires(detail::processes<ProcessorT>) {
    start(prompt, std::move(stop), options);
    text_.processor = std::move(processor);
    begin_text();
  }

  //! Begins a text with the decoder's options for texts.
  void begin(std::span<const token_id> prompt, stop_conditions stop = {}) {
    begin(prompt, std::move(stop), options_.text);
  }

  //! Goes on after the text that stands, with `more` tokens in between (or none): the next turn of a conversation. If
  //! there is no text yet, it begins one with `more` as the prompt. Rows that the caches hold are used again, and so is
  //! what the policy has learnt. For a processor all tokens from before are prompt: a constraint begins anew.
  //!
  //! Errors      as begin()
  void resume(std::span<const token_id> more, stop_conditions stop = {}) {
    if (current().state() == status::idle) return begin(more, std::move(stop));
    give_up_for(static_cast<std::size_t>(current().size()), more, stop);
    text_.written.resume(more, std::move(stop), context_, backend_.vocab_size());
    text_.policy_in_step = false;
    text_.read_again();
    served_.resume(text_);
  }

  //! Returns the text as it stands, with what the policy has learnt of it. load() goes on from there: in another
  //! decoder, later, or several times.
  saved_text<TreePolicyT, ProcessorT> save() const { return text_; }

  //! Goes on with a text that was saved, instead of the one that stands. Rows that the caches hold of it are used.
  //!
  //! Errors      input_error if the saved text does not fit vocabulary or context, option_error if policy or verifier
  //!             do not fit. After such an error the text from before still stands
  void load(saved_text<TreePolicyT, ProcessorT> saved) {
    detail::require_text<VerifierT>(saved.written.options(), backend_);
    saved.move_to(text_.policy, context_, backend_.vocab_size());
    if (pass_) give_up();
    text_ = std::move(saved);
    begin_text();
  }

  //! Makes one round, or reads the next part of a long prompt, of prefill_rows tokens at most; in the latter case
  //! last_round() has committed nothing. Returns false, and does nothing, if the text has ended or none has begun.
  //! `piece_of(token)` gives the characters of a token: it is needed for stop strings and for round_record::shown.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    philox_chance chance = chance_of_step();
    return advance(chance, piece_of, true);
  }

  //! The first half of a step, for an engine that makes passes itself: drafts, and returns the pass that the step needs
  //! next. The engine computes its logits, however and whenever it likes, and hands them to end_step(), or calls
  //! give_up(); meanwhile nothing waits, and other decoders go on. step() is made of the same halves, and writes the
  //! same text.
  //!
  //!     while (decode.current().running()) {
  //!       for (outside_pass p = decode.begin_step(); p; p = decode.end_step(engine.logits_of(p))) {
  //!       }
  //!     }
  //!
  //! Passes of a draft model are asked for where its drafter is autoregressive over an outside_backend; other drafters
  //! make their passes inside begin_step() and end_step().
  //!
  //! Post        if no pass is returned, the step is over, and last_round() is its record; or no text is running
  //! Errors      as step(); input_error if a pass is under way
  outside_pass begin_step() {
    require_no_pass();
    if (!current().running()) return {};
    philox_chance chance = chance_of_step();
    [[maybe_unused]] guard_type guard{*this};
    open_step();
    go_on(chance, true, true);
    guard.finished = true;
    return pass_;
  }

  //! The second half of a step: takes the logits of the pass under way, and returns the next pass of this step, which
  //! is the draft's or the target's. The target's logits end the step: the round is verified and committed.
  //!
  //! Shapes      logits [batch.outputs.size()][vocab_size], read until this returns
  //! Post        as begin_step()
  //! Errors      as step(); input_error if no pass is under way, and for logits of another shape, after which the pass
  //!             still is under way
  template <class PieceT = no_pieces>
  outside_pass end_step(vocab_rows<number> logits, const PieceT& piece_of = {}) {
    if (!pass_) raise<input_error>("no pass is under way: begin_step() comes first.");
    require_rows_of(logits, static_cast<std::int32_t>(pass_.batch.outputs.size()), backend_.vocab_size());
    if (!pass_.is_draft()) detail::require_pieces<PieceT>(current());
    [[maybe_unused]] guard_type guard{*this};
    philox_chance chance = chance_of_step();
    if (drafts_outside && pass_.is_draft())
      take_draft(chance, logits);
    else
      end_pass(chance, logits, piece_of);
    guard.finished = true;
    return pass_;
  }

  //! Makes a step as step() does, but with the caller's chance, for example an enumerating_chance. A tree that was
  //! drafted ahead is dropped.
  template <Chance ChanceT, class PieceT = no_pieces>
  bool step_with(ChanceT& chance, const PieceT& piece_of = {}) {
    served_.forget_ahead();
    return advance(chance, piece_of, false);
  }

  //! Writes a whole text, and tells the observer about each round that commits tokens; the seconds of reading the
  //! prompt count with the first. Returns the tokens that were written, valid until another text begins or this one
  //! goes on.
  template <std::same_as<stop_conditions> StopT = stop_conditions, Observer ObserverT, class PieceT = no_pieces>
  std::span<const token_id> generate(std::span<const token_id> prompt, StopT stop, ObserverT&& observer,
                                     const PieceT& piece_of = {}) {
    begin(prompt, std::move(stop));
    station_seconds reading;
    while (step(piece_of)) {
      round_record& record = served_.record();
      reading += record.seconds;
      if (record.committed.empty()) continue;
      record.seconds = std::exchange(reading, {});
      observer(last_round());
    }
    return current().written();
  }

  //! Writes a whole text without an observer.
  template <std::same_as<stop_conditions> StopT = stop_conditions>
  std::span<const token_id> generate(std::span<const token_id> prompt, StopT stop = {}) {
    return generate(prompt, std::move(stop), [](const round_record&) {});
  }

  // Calls that must not be made: the compiler says why.
  template <detail::OtherPrompt PromptT>
  detail::prompt_of_other_type begin(const PromptT&, const stop_conditions& = {}, const text_options& = {});
  template <detail::OtherPrompt PromptT, class... MoreT>
  detail::prompt_of_other_type generate(const PromptT&, const stop_conditions& = {}, const MoreT&...);
  template <std::integral NumberT>
  detail::number_as_stop begin(std::span<const token_id>, NumberT, const text_options& = {});
  template <std::integral NumberT, class... MoreT>
  detail::number_as_stop generate(std::span<const token_id>, NumberT, const MoreT&...);
  template <detail::OtherObserver ObserverT, class... PieceT>
  detail::observer_of_other_type generate(std::span<const token_id>, const stop_conditions&, ObserverT&&,
                                          const PieceT&...);
  detail::stop_strings_without_pieces generate(std::span<const token_id>, const detail::conditions_with_strings&);
  template <Observer ObserverT>
  detail::stop_strings_without_pieces generate(std::span<const token_id>, const detail::conditions_with_strings&,
                                               ObserverT&&);

  //! Gives up a step that has begun and will not end; in a program without exceptions, also one that was left by a
  //! jump. The text then stands at its last committed token.
  void give_up() {
    pass_ = {};
    served_.give_up(text_);
  }

  //! Returns the text that is being written, or was written last.
  const text& current() const { return text_.written; }
  //! Returns the record of the last step, valid until the next step or text.
  const round_record& last_round() const { return served_.record(); }
  //! Returns the policy, to change it before the next step: a tree that was drafted ahead is dropped. To read the
  //! policy without that, call this on a const decoder.
  TreePolicyT& policy() {
    served_.forget_ahead();
    return text_.policy;
  }
  const TreePolicyT& policy() const { return text_.policy; }
  const ProcessorT& processor() const { return text_.processor; }

 private:
  friend drafting;

  struct step_guard {
    decoder& self;
    bool finished = false;
    ~step_guard() {
      if (!finished) self.give_up();
    }
  };
  // Without exceptions a step is left by a jump, which calls no destructor: the caller calls give_up().
  struct no_guard {
    decoder& self;
    bool finished = false;
  };
  using guard_type = std::conditional_t<ESPALIER_EXCEPTIONS != 0, step_guard, no_guard>;

  void start(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) {
    detail::require_text<VerifierT>(options, backend_);
    require_options(options);
    give_up_for(0, prompt, stop);
    if constexpr (ESPALIER_HOSTED == 0) target_.sample(options.sampling, backend_.vocab_size());  // may raise an error
    text_.written.begin(prompt, std::move(stop), options, context_, backend_.vocab_size());
    if constexpr (ResettingPolicy<TreePolicyT>) text_.policy.reset();
    text_.policy_in_step = false;
  }

  // Gives up the pass under way, if there is one, before another text begins. If that text's arguments are wrong,
  // raises an error instead.
  void give_up_for(std::size_t n_before, std::span<const token_id> prompt, const stop_conditions& stop) {
    if (!pass_) return;
    text::require_prompt(n_before, prompt, stop, context_, backend_.vocab_size());
    give_up();
  }

  void begin_text() {
    text_.read_again();
    served_.begin(text_);
    target_.sample(current().options().sampling, backend_.vocab_size());  // takes its memory now
  }

  detail::served_sizes sizes() const {
    const std::int32_t max_pending = (std::min)(options_.prefill_rows, max_rows_of(backend_) - max_nodes_);
    return {.max_nodes = max_nodes_,
            .max_asked = (std::min)(most_asked(text_.policy), context_),
            .max_pending = max_pending,
            .prefill_rows = options_.prefill_rows,
            .vocab = backend_.vocab_size(),
            .keeps_draft_rows = !detail::reads_target_alone<VerifierT>()};
  }

  station_seconds& seconds() { return served_.record().seconds; }

  double draft_forward_seconds() const { return forward_seconds_of(served_.drafter()); }

  // Adds the time since the last lap to the record: to draft_forward the draft's passes, whose sum was `before` seconds
  // at that lap, and the rest to grow.
  void lap_draft(double before) {
    const double passes = draft_forward_seconds() - before;
    seconds().draft_forward += passes;
    seconds().grow += watch_.lap() - passes;
  }

  philox_chance chance_of_step() const {
    const text& t = current();
    return philox_chance(t.seed(), t.options().stream, static_cast<std::uint32_t>(t.size()));
  }

  void require_no_pass() const {
    if (pass_)
      raise<input_error>("a pass is under way: end_step() or give_up() comes before another step of this decoder.");
  }

  // Makes one step. own_chance: whether `chance` is step()'s own. If so, the next round's chance is known, too, and
  // that round can be drafted ahead.
  template <class ChanceT, class PieceT>
  bool advance(ChanceT& chance, const PieceT& piece_of, bool own_chance) {
    require_no_pass();
    if (!current().running()) return false;
    detail::require_pieces<PieceT>(current());
    [[maybe_unused]] guard_type guard{*this};
    open_step();
    go_on(chance, own_chance, false);
    if (pass_) end_pass(chance, checked_forward(backend_, store(), batch_.view()), piece_of);
    guard.finished = true;
    return true;
  }

  // Begins a step: the drafter is to read the prompt.
  void open_step() {
    watch_.lap();
    served_.prepare(text_);
    batch_.clear();
    if constexpr (drafts_outside) {
      with_place([&](auto places) { drafting_.begin_reading(places, options_.prefill_rows); });
    }
  }

  // Goes on with the step up to its next pass, which is pass_ then: the draft's, where `gives` allows that it is made
  // outside, or the target's, whose rows batch_ has. If there is none, the step is over.
  template <class ChanceT>
  void go_on(ChanceT& chance, bool own_chance, bool gives) {
    const double before = draft_forward_seconds();
    const bool waits = draft(chance, gives);
    lap_draft(before);
    if (waits) return;
    if (is_round()) {
      require_room(served_.add_round(batch_, text_, options_.order));
      if (own_chance && !time_.is_limited()) served_.draft_ahead(text_);
      seconds().compile = watch_.lap();
    } else {
      add_chunk();
    }
    pass_ = {batch_.view()};
    if (!pass_) end_reading();
  }

  // Goes on with the drafting. Returns true if it needs a pass that is made outside; else the tree has grown, if the
  // step is to make a round.
  template <class ChanceT>
  bool draft(ChanceT& chance, bool gives) {
    bool reads = true;
    if constexpr (drafts_outside) reads = drafting_.is_reading();
    if (reads) {
      if (read_draft(chance, gives)) return true;
      if (!served_.writes(text_) || served_.take_ahead(text_)) return false;
      served_.open_tree(text_, !served_.rests(), static_cast<detail::no_budget*>(nullptr), in_time());
      if constexpr (drafts_outside) drafting_.begin_growing();
    }
    if (grow(chance, gives)) return true;
    served_.close_tree(text_);
    return false;
  }

  template <class ChanceT>
  bool read_draft([[maybe_unused]] ChanceT& chance, [[maybe_unused]] bool gives) {
    if constexpr (drafts_outside) {
      return ask_outside(chance, gives);
    } else {
      served_.draft(text_, [&] { served_.read_draft(options_.prefill_rows); });
      return false;
    }
  }

  template <class ChanceT>
  bool grow(ChanceT& chance, [[maybe_unused]] bool gives) {
    if constexpr (drafts_outside) {
      return ask_outside(chance, gives);
    } else {
      while (!served_.growing().wanted().empty())
        served_.draft(text_, [&] { served_.grow_step(text_, chance); });
      return false;
    }
  }

  // Goes on with the questions to a drafter of which at least one part has its passes made outside. Returns true if
  // pass_ is now such a pass.
  template <class ChanceT>
  bool ask_outside(ChanceT& chance, bool gives) requires(drafts_outside) {
    const auto chance_of = [&](text_id, const text&) -> ChanceT& { return chance; };
    bool waits = false;
    with_place([&](auto places) {
      waits = drafting_.advance(*this, served_.drafter(), places, chance_of, static_cast<detail::no_budget*>(nullptr),
                                gives);
    });
    if (waits) pass_ = {drafting_.pass(served_.drafter()), drafting_.part()};
    return waits;
  }

  // Takes the rows of a draft's pass that was made outside, and goes on.
  template <class ChanceT>
  void take_draft([[maybe_unused]] ChanceT& chance, [[maybe_unused]] vocab_rows<number> rows) {
    if constexpr (drafts_outside) {
      pass_ = {};
      seconds().draft_forward += watch_.lap();
      with_place([&](auto places) { drafting_.take(*this, served_.drafter(), places, rows); });
      go_on(chance, true, true);
    }
  }

  // Calls f with the places of a batch of one text.
  template <class FunctionT>
  void with_place(const FunctionT& f) {
    place p(served_, text_);
    place* const places[] = {&p};
    f(std::span<place* const>(places));
  }

  // The members that batch_drafting calls of a decoder. With one text alone, errors are not caught for the sake of
  // others, and no other text can make room.
  template <class FunctionT>
  bool attempt_draft(place&, const FunctionT& f) {
    return served_.draft(text_, f);
  }
  template <class FunctionT, class WhoseT>
  void attempt_all(const FunctionT& f, const WhoseT&) {
    f();
  }
  bool make_room(place&) {
    raise<input_error>("the draft model's cache has no room for a text of ", current().size(),
                       " tokens and its tree, or its pages are used up.");
  }

  // Whether this step makes a round. Pre: drafting is over
  bool is_round() { return served_.record().tree.n_nodes > 0; }

  // Returns how many drafted tokens the round's pass has time for.
  std::int32_t in_time() const {
    if (!time_.is_limited()) return detail::time_budget::no_limit;
    const std::int32_t unread = served_.unread(text_), n = time_.room(1, unread + 1, served_.seen(text_) - unread - 1);
    return n < max_nodes_ ? n : detail::time_budget::no_limit;
  }

  // Takes the logits of the target's pass: of a round, or of a part of the prompt.
  template <class ChanceT, class PieceT>
  void end_pass(ChanceT& chance, vocab_rows<number> logits, const PieceT& piece_of) {
    seconds().target_forward += watch_.lap();
    if (is_round()) {
      const verdict v = served_.verify(text_, logits, verifier_, target_, chance);
      seconds().verify = watch_.lap();
      const double drafted = seconds().draft_forward;
      served_.commit(text_, v, backend_, target_, piece_of);
      seconds().commit = watch_.lap() - (seconds().draft_forward - drafted);
      served_.record().state = current().state();
    } else {
      served_.finish_chunk(text_, backend_, logits);
      end_reading();
    }
    pass_ = {};
  }

  // Ends a step in which the prompt was read, and the text, if it was only to be read.
  void end_reading() {
    served_.end_if_read(text_);
    served_.record().state = current().state();
  }

  // Adds a part of the prompt to the pass, unless a round's pass can take all that is unread beside its tree.
  void add_chunk() {
    const std::int32_t n = (std::min)({served_.left(text_), options_.prefill_rows, max_rows_of(backend_)});
    if (n > 0) require_room(served_.add_chunk(batch_, text_, n));
  }

  auto& store() { return served_.cache().store(); }

  void require_room(bool has_room) {
    if (!has_room)
      raise<input_error>("the cache of ", store().capacity(), " tokens is full, or its pages are used up.");
  }

  saved_text<TreePolicyT, ProcessorT> text_;
  VerifierT verifier_;
  BackendT backend_;
  decoder_options options_;
  std::int32_t context_;
  std::int32_t max_nodes_;  // drafted tokens that there is room for, whatever the policy says later
  detail::time_budget time_;
  served_type served_;
  detail::target_rows<number, ProcessorT> target_;
  forward_batch batch_;
  ESPALIER_NO_UNIQUE_ADDRESS drafting drafting_;
  outside_pass pass_;  // under way, if any is
  stopwatch watch_;
};

//! Builds a decoder of five parts, and a processor where texts have one. Policy, verifier and processor are copied or
//! moved. Drafter, store and backend are kept by reference if they are lvalues, else moved.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
requires(!detail::Mistake<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>)
    decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_decoder(
        DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
        decoder_options options = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy),  std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), std::move(options), std::move(processor)};
}

// Parts that do not fit: the compiler says why.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
requires detail::Mistake<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>
auto make_decoder(DrafterT&&, const TreePolicyT&, const VerifierT&, KVStoreT&&, BackendT&&, const decoder_options& = {},
                  const ProcessorT& = {})
    -> detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>;
template <class... PartsT>
requires(sizeof...(PartsT) < 5) detail::too_few_parts make_decoder(const PartsT&...);

}  // namespace espalier
