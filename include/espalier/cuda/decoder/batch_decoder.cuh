// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/decoder/outside_pass.cuh"
#include "espalier/cuda/decoder/text_rounds.cuh"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/batch_places.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/schedule.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/text_table.hpp"
#include "espalier/decoder/time_budget.hpp"
#include "espalier/forward/checked_forward.hpp"

namespace espalier::cuda {

namespace detail {

// The text's own options, if it has any, and the values that its policy learnt in its rounds, as far as these have
// reached the host. Empty for a text that has learnt nothing and has no options of its own. In batch_text, which
// espalier::batch_decoder also uses, this struct takes the place of the text's policy.
struct shared_policy {
  std::vector<std::byte> learnt;

  std::int32_t max_nodes() const { return 0; }
};

// The type of the options that a text may have of its own: std::monostate, unless the policy is a TextwisePolicy.
template <class PolicyT>
struct text_options_of : std::type_identity<std::monostate> {};
template <TextwisePolicy PolicyT>
struct text_options_of<PolicyT> : std::type_identity<typename PolicyT::options_type> {};

// The place of a text on the device, as the host sees it. RoundsT is text_rounds.
template <class RoundsT>
struct text_place
    : espalier::detail::batch_place<espalier::detail::batch_text<shared_policy, typename RoundsT::processor_type>> {
  static constexpr bool releases_rows = RoundsT::can_release;

  explicit text_place(RoundsT& all) : rounds(&all) {}

  RoundsT* rounds;
  std::int32_t n_read = 0;       // number of leading tokens that the target has read, or is about to read, before the
                                 // text's rounds begin
  std::int32_t n_known = 0;      // how many of these the host knows to be in the target's cache
  std::int32_t n_drafted = 0;    // number of leading tokens in the draft's cache
  std::int32_t n_under_way = 0;  // rounds of this text whose outcomes have not been taken in yet
  bool is_ready = false;         // its prompt is read, or about to be: rounds may begin
  bool is_drafted_for = false;   // the draft's cache follows the text
  bool has_rows = false;         // the caches hold rows of this place, even if it has no text
  std::uint64_t turn = 0;        // changes when rounds under way no longer count for the text in this place

  // Number of tokens that are read before the text's rounds begin: all but the last, which the first round reads.
  std::int32_t goal() const { return this->text->value.written.size() - 1; }

  // Takes note that the device no longer has the host's text in this place.
  void lose_step() {
    n_read = n_known = n_drafted = n_under_way = 0;
    ++turn;
    this->stage = espalier::detail::place_stage::arrived;
    is_ready = is_drafted_for = false;
  }

  void arrive() {
    lose_step();
    rounds->sample(this->number, this->text->value.written.options().sampling);
  }
  void leave() {}
  bool holds_rows() const { return has_rows; }
  void release() {
    rounds->release(this->number);
    has_rows = false;
  }
  // Returns 1, whatever the size of a page, so that a common beginning is not cut to full pages: a text that begins
  // like another one waits until the other one has read all of the beginning. The store decides whether it shares only
  // full pages.
  std::int32_t page_size() const { return 1; }

  // Returns the text as plan_step() sees it. A text whose rounds have begun is ready for at most as many rounds as it
  // has tokens left, since a round writes at least one token.
  espalier::detail::seat as_seat() const {
    if (is_ready) return {this->text->value.written.left() > n_under_way, 0, true, 0};
    return {false, goal() - n_read, true, 0};
  }
  espalier::detail::reading as_reading() const {
    const bool is_read = is_ready && n_known == n_read;
    return {this->tokens(), is_read ? goal() : n_known, 0, this->has_begun()};
  }
};

// The texts of a round under way, by lane. If a text has left its place since the round was planned, the place has
// no text, or its `turn` has changed: see is_there().
template <class PlaceT, class RowsT>
struct round_ticket {
  struct participant {
    PlaceT* at;
    std::uint64_t turn;
    std::int32_t n_read = 0;  // of a reader: number of leading tokens that are read when this pass ends
    bool is_there() const { return at->text != nullptr && at->turn == turn; }
  };
  std::vector<participant> texts;
  std::vector<participant> readers;  // texts whose prompts the pass reads
  RowsT rows{};
  std::int32_t longest = 0;  // number of tokens that the longest text may reach
};

}  // namespace detail

//! Tree speculative decoding of many texts at once on the device: espalier::batch_decoder with parts that live there.
//!
//! The texts have their rounds together: each launch of a policy, a drafter, the verifier or a store works for all
//! texts, and the target makes one pass. The host enqueues one round ahead of the one whose outcome it takes in. Texts
//! join and leave between rounds, which does not touch the other texts. Each text has its own sampling, seed and stop
//! conditions, its own processor if there is one (see decoder for when it is called), and may have its own options of a
//! TextwisePolicy. The values that are learnt of a text stay with the text if it takes another place. The text in place
//! i has sequence i of both caches.
//!
//! Passes are planned by the function that plans them for espalier::batch_decoder: up to batch_options::prefill_rows
//! tokens of prompts are read in each round's pass, beside the trees. Trees that may be cut leave a quarter of max_rows
//! to prompts if need be. Prompts are read in passes of their own while no text is written, and if rounds leave them no
//! rows, or less than a quarter of the rows that they want. A drafter reads prompts in passes of its own.
//!
//! If a pass of max_rows has no room for a whole tree of each text, its rows go to those nodes that are expected to
//! gain most, to whichever text they belong: by the draft's probabilities and by the tokens lately accepted in each
//! text. Trees shrink to plain decoding if need be. With batch_options::costs the host chooses how many rows a pass
//! has: the number with which the most tokens a second are expected, by the rounds whose outcomes it has. Trees that
//! are drawn get their shares before anything is drawn, from earlier rounds alone. Trees are whole with
//! batch_options::share_budget = false, and also if they are not drawn and the drafter keeps rows by node but cannot
//! follow a cut (it is no RenumberingDrafter). Texts that then find no room in a pass wait for the next, as on the
//! host. Log-probabilities and saved texts are for espalier::batch_decoder alone.
//!
//! If pages run out, the last text in turn gives up its place and is read again later. Tokens in full pages that the
//! store shares between texts are read only once.
//!
//! Complexity  a step on the host: one graph launch, two copies (outcomes, and the trees of all places), one event,
//!             O(texts); on the device as decoder's, with max_nodes() + 1 rows for each text or as many as they
//!             share, the number of texts rounded up to a power of two, or to max_texts. The host waits for no round
//!             but the one that it takes in, with three exceptions: after a failure; if rounds begin to draft again;
//!             and if models of the host read prompts
//! Law         a text is the one that decoder writes with the same parts, prompt, stop conditions and text_options,
//!             whatever other texts are served, if the backends are batch-invariant. If rows are short or costs are
//!             given, its trees depend on the other texts: its tokens are still the same with greedy and target_only,
//!             and another draw of the same distribution with other verifiers
//! Errors      as espalier::batch_decoder; option_error for max_rows below max_texts, or below a whole tree where trees
//!             are not cut. A fault that a round finds in a text, or an exception of the text's processor, holds that
//!             text alone. An exception that a part throws while a round is enqueued, or that a model of the host
//!             throws in the round's pass, holds all texts of the round, those whose prompts it reads included. A text
//!             that is held stands at its last committed token
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class batch_decoder
    : public espalier::detail::batch_places<
          detail::text_place<detail::text_rounds<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>,
          espalier::detail::text_table<detail::shared_policy, ProcessorT>> {
  using places = typename batch_decoder::batch_places;
  using typename places::entry;
  using typename places::place;
  using rounds_type = detail::text_rounds<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>;
  using ticket = detail::round_ticket<place, typename rounds_type::pass_rows>;
  using participant = typename ticket::participant;
  using task = espalier::detail::pass_task;
  using own_options = typename detail::text_options_of<TreePolicyT>::type;

 public:
  batch_decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
                batch_options options = {}, ProcessorT processor = {})
      : places(require_options(options)),
        options_(std::move(options)),
        processor_(std::move(processor)),
        rounds_(std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
                std::forward<BackendT>(backend),
                {.order = options_.order,
                 .max_texts = options_.max_texts,
                 .max_rows = options_.max_rows,
                 .prefill_rows = options_.prefill_rows,
                 .share_budget = options_.share_budget,
                 .costs = options_.share_budget ? options_.costs : std::nullopt,
                 .keeps_learnt = true,
                 .replay = options_.replay}) {
    rounds_.check(options_.text);
    espalier::detail::refuse_time_budget(options_.time_budget);
    const espalier::detail::pass_limits limits = rounds_.limits();
    if (!limits.cuts_trees) espalier::detail::require_whole_tree(limits.rows, limits.max_nodes);
    for (std::int32_t i = 0; i < options_.max_texts; ++i)
      this->add_place(rounds_);
    const auto n = static_cast<std::size_t>(options_.max_texts);
    lanes_.reserve(n), numbers_.reserve(n), chunks_.reserve(n), readers_.reserve(n);
    for (ticket& t : under_way_)
      t.texts.reserve(n), t.readers.reserve(n);
  }

  //! Adds a text, which waits for its turn, and returns its number. The text may have a processor of its own, and, if
  //! the policy has options by text (TextwisePolicy), options of its own.
  //!
  //! Errors      as decoder::begin(); input_error if max_waiting texts wait; option_error for options that would make
  //!             larger trees than the decoder's
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              own_parts<own_options, ProcessorT> own = {}) {
    rounds_.check(options);
    std::vector<std::byte> learnt;
    if constexpr (TextwisePolicy<TreePolicyT>) {
      if (own.policy) learnt = rounds_.learnt_with(*own.policy);
    }
    entry& e = this->texts().spare({}, this->n_running(), processor_);
    e.value.written.begin(prompt, std::move(stop), options, rounds_.context(), rounds_.vocab_size());
    e.value.policy.learnt = std::move(learnt);
    espalier::detail::take_own(e.value.processor, own.processor, processor_);
    return this->texts().add(own.priority);
  }

  //! Adds a text with the decoder's options for texts.
  text_id add(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return add(prompt, std::move(stop), options_.text);
  }

  //! Goes on with a text that has ended, after `more` further tokens (or none), or with a text that a failure holds.
  //! The latter keeps its stop conditions, and takes no further tokens.
  //!
  //! Errors      as decoder::resume(); input_error for any other text, and for `more` tokens or stop conditions while a
  //!             failure holds the text
  void resume(text_id id, std::span<const token_id> more = {}, stop_conditions stop = {}) {
    this->texts().resume(id, more, std::move(stop), rounds_.context(), rounds_.vocab_size());
  }

  //! Reads prompts, enqueues the next rounds, and waits for the oldest one and takes it in, until there are events or
  //! no round is under way. Returns what texts have written since the last step, and which of them have ended
  //! or failed; nothing if prompts were read and no text has ended by that. piece_of gives the bytes of tokens; only
  //! stop strings need it. The events are valid until the next step.
  template <class PieceT = no_pieces>
  std::span<const text_event> step(const PieceT& piece_of = {}) {
    this->require_no_pass();
    open_step();
    plan_reading();
    read_alone();
    do {
      while (rounds_.n_under_way() < 2 && enqueue()) {
      }
      if (rounds_.n_under_way() > 0) take_in(piece_of);
    } while (this->events().empty() && rounds_.n_under_way() > 0);
    this->record().seconds.on_device = watch_.lap();
    return this->events();
  }

  //! The first half of a step, for an engine that makes the target's passes itself: enqueues the drafting of a round,
  //! and returns the pass that the step needs next. The engine enqueues the pass in its stream, or elsewhere, and hands
  //! the logits to end_step(), or tells fail_pass() that it cannot. In between other decoders go on, and texts may be
  //! added, forked and cancelled here. The texts are those that step() writes, but no graph is used and no round is
  //! enqueued ahead.
  //!
  //!     while (!decode.idle()) {
  //!       for (cuda::outside_pass p = decode.begin_step(); p; p = decode.end_step(engine.logits_of(p))) {
  //!       }
  //!       for (const text_event& e : decode.events()) show(e.id, e.round.committed);
  //!     }
  //!
  //! The passes of a draft model are made inside. A round that step() has enqueued ahead is taken in here, and then the
  //! step needs no pass.
  //!
  //! Post        if no pass is returned, the step is over, and events() tells what texts have written
  //! Errors      as step(); input_error if a pass is under way
  template <class PieceT = no_pieces>
  outside_pass begin_step(const PieceT& piece_of = {}) {
    this->require_no_pass();
    open_step();
    if (rounds_.n_under_way() == 0) {
      plan_reading();
      return go_on();
    }
    while (rounds_.n_under_way() > 0)
      take_in(piece_of);
    return end();
  }

  //! The second half of a step: takes the logits of the pass under way, and returns the next pass of this step. That
  //! pass reads a prompt, or is the pass of the round. The logits of the round's pass end the step: verifying and
  //! committing are enqueued, and the host waits for their outcome. A text that was cancelled in the meantime leaves:
  //! its rows are dropped.
  //!
  //! Shapes      logits [batch.n_outputs][vocab_size], in the memory of the device, as for decoder::end_step()
  //! Post        as begin_step()
  //! Errors      as step(); input_error if no pass is under way, and for logits of another shape, after which the pass
  //!             still is under way
  template <class PieceT = no_pieces>
  outside_pass end_step(vocab_rows<typename rounds_type::number> logits, const PieceT& piece_of = {}) {
    this->require_pass();
    require_rows_of(logits, pass_.batch.n_outputs, rounds_.vocab_size());
    const std::int32_t n = close_pass().batch.n_rows;
    if (!is_reading()) {
      if (attempt_round([&] { rounds_.close(logits); })) {
        begin_round();
        take_in(piece_of);
      }
      return end();
    }
    const participant& r = readers_[next_reader_];
    if (r.is_there()) {
      this->attempt(*r.at, [&] {
        rounds_.close_read(r.at->number, r.at->n_read, n);
        has_read_alone(*r.at, n);
      });
    }
    return go_on();
  }

  //! Tells that the pass under way has failed with this error, and returns the next pass of the step. As after an
  //! exception of a backend in step(), the texts of the pass have the error in their events, and are held at their last
  //! committed token until resume(); the other texts go on. The engine must not write cache slots of the pass any more.
  //!
  //! Errors      input_error if no pass is under way
  outside_pass fail_pass(std::exception_ptr error) {
    this->require_pass();
    (void)close_pass();
    if (!is_reading()) {
      fail_round(error);
      return end();
    }
    const participant& r = readers_[next_reader_];
    if (r.is_there()) this->fail(*r.at, error);
    return go_on();
  }

  //! Gives up the step: all texts stand at their last committed tokens, and none is held. Waits for the decoder's
  //! stream. The engine must not write cache slots of the pass any more. Does nothing if no pass is under way.
  void give_up() {
    if (!pass_) return;
    (void)close_pass();
    go_back();
  }

 private:
  // Begins a step: texts take free places.
  void open_step() {
    watch_.lap();
    this->seat_texts(rounds_.kv());
  }

  // Goes on with the step up to its next pass that is made outside, and returns it. If there is none, the step is over.
  outside_pass go_on() {
    for (; is_reading(); ++next_reader_) {
      const participant& r = readers_[next_reader_];
      if (!r.is_there() || r.at->n_read == r.n_read) continue;
      place& p = *r.at;
      this->attempt(p, [&] {
        if (ensure(p, r.n_read + 1)) pass_ = rounds_.open_read(p.number, p.n_read, r.n_read);
      });
      if (pass_) return give_out();
    }
    if (plan_round()) {
      const ticket& t = next_ticket();
      attempt_round([&] { pass_ = rounds_.open(numbers_, t.longest, t.rows, chunks_); });
    }
    return pass_ ? give_out() : end();
  }
  outside_pass give_out() {
    this->set_pass_outside(true);
    return pass_;
  }
  // Ends the pass that is under way outside, and returns it.
  outside_pass close_pass() {
    this->set_pass_outside(false);
    return std::exchange(pass_, {});
  }
  // Ends a step that was made in halves.
  outside_pass end() {
    this->record().seconds.on_device = watch_.lap();
    return {};
  }

  // Plans the next pass. Before that, each text that has not begun adopts the rows of its first tokens that the cache
  // holds.
  espalier::detail::pass_plan plan_pass(bool may_read_alone) {
    for (place* p : this->in_turn()) {
      if (p->text != nullptr && !p->has_begun()) this->attempt(*p, [&] { settle(*p); });
    }
    espalier::detail::pass_limits limits = rounds_.limits();
    limits.may_read_alone = may_read_alone;
    return this->plan(limits);
  }

  // Puts a text on the device if it is new in its place (stage `arrived`), and begins the text unless it waits for rows
  // that another text is about to compute.
  void settle(place& p) {
    const entry& e = *p.text;
    const text& t = e.value.written;
    if (p.stage == espalier::detail::place_stage::arrived) {
      rounds_.put(p.number, t);
      rounds_.follow(p.number, t, e.value.processor);
      rounds_.learn(p.number, e.value.policy.learnt);
    }
    p.stage = espalier::detail::place_stage::waits;
    p.n_read = p.n_known = rounds_.adopt(p.number, t.tokens().first(static_cast<std::size_t>(p.goal())));
    if (rounds_type::shares_rows && this->waits(p)) return;
    p.stage = espalier::detail::place_stage::begun;
    if (p.n_read < p.goal() || !ensure(p, p.n_read + 1)) return;
    reads_on(p, 0);
    has_read(p, p.n_read);
  }

  // Finds the prompts that are to be read in passes of their own. There are such prompts only if no text is written, or
  // if rounds leave prompts too few rows: see plan_step().
  void plan_reading() {
    readers_.clear();
    next_reader_ = 0;
    if (plan_pass(true).n_rounds > 0) return;
    this->begin_pass();
    for (place* p : this->in_turn()) {
      // A prompt of which a round under way reads a chunk is left out.
      if (p->text == nullptr || p->task.kind != task::read || p->n_read != p->n_known) continue;
      readers_.push_back({p, p->turn, p->n_read + p->task.n_rows});
    }
  }
  // True if prompts are still to be read in passes of their own, in a step that is made in halves.
  bool is_reading() const { return next_reader_ < readers_.size(); }

  // Reads the prompts that plan_reading() has found.
  void read_alone() {
    for (const participant& r : readers_) {
      if (!r.is_there()) continue;
      place& p = *r.at;
      this->attempt(p, [&] {
        if (!ensure(p, r.n_read + 1)) return;
        rounds_.read(p.number, p.n_read, r.n_read);
        has_read_alone(p, r.n_read - p.n_read);
      });
    }
  }
  // Takes note that passes which read only this prompt have read its next n tokens.
  void has_read_alone(place& p, std::int32_t n) {
    this->record().target_rows += n;
    reads_on(p, n);
    has_read(p, p.n_read);
  }

  // Makes sure that both caches have n_slots slots for a text; if pages run out, other texts give up their pages.
  // Returns true if the text still has its place.
  bool ensure(place& p, std::int32_t n_slots) {
    while (p.text != nullptr) {
      try {
        rounds_.ensure(p.number, n_slots);
        p.has_rows = true;
        return true;
      } catch (const input_error&) {
        if (!this->make_room(p) && p.text != nullptr) this->fail(p, std::current_exception());
      } catch (...) {
        this->fail(p, std::current_exception());
      }
    }
    return false;
  }

  // Takes note that the next n tokens of a prompt are about to be read, in the stream's order. After the last token of
  // the prompt, rounds may begin.
  void reads_on(place& p, std::int32_t n) {
    p.n_read += n;
    this->record().prompt_rows += n;
    if (p.n_read < p.goal()) return;
    if (p.text->value.written.left() > 0) follow(p, 0);
    p.is_ready = true;
  }

  // Takes note that the first n_read tokens of a text have been read: only now may another text begin with their rows.
  // A text of which only the prompt was to be read ends here.
  void has_read(place& p, std::int32_t n_read) {
    text& t = p.text->value.written;
    if (p.n_known < n_read) rounds_.remember(p.number, t.tokens(), p.n_known, n_read);
    p.n_known = n_read;
    if (n_read < p.goal() || t.left() > 0) return;
    t.end();
    this->tell(p, {.state = t.state()});
  }

  // Makes the draft's cache, which has the first n_known tokens of the text, follow the text from here on.
  void follow(place& p, std::int32_t n_known) {
    rounds_.begin_draft(p.number, p.tokens(), n_known);
    p.is_drafted_for = true;
    p.n_drafted = p.goal();
  }

  // Gives up the rounds under way: all texts go on from the tokens that the host has, with the rows that it knows of.
  void go_back() {
    rounds_.give_up();
    for (place& p : this->all_places())
      p.lose_step();
  }

  // Enqueues the round that is planned next, with chunks of prompts. Returns false if there is none, or an error holds
  // its texts.
  bool enqueue() {
    if (!plan_round()) return false;
    const ticket& t = next_ticket();
    if (!attempt_round([&] { rounds_.enqueue(numbers_, t.longest, t.rows, chunks_); })) return false;
    begin_round();
    return true;
  }

  // Plans the next round, with chunks of prompts: sets next_ticket(), numbers_ and chunks_. Returns false if there is
  // none: no text is ready for one, or an outcome must be taken in first.
  bool plan_round() {
    const espalier::detail::pass_plan planned = plan_pass(false);
    if (planned.n_rounds == 0) return false;
    lanes_.clear();
    for (place* p : this->in_turn()) {
      if (p->draws()) lanes_.push_back(p);
    }
    auto rows = rounds_.rows_of(planned, mean_size());
    const bool drafts = rows.drafts();
    if (drafts && std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return !p->is_drafted_for; })) {
      if (rounds_.n_under_way() > 0) return false;  // first the host takes in the rounds without a draft
      for (place* p : lanes_) {
        if (!p->is_drafted_for) this->attempt(*p, [&] { follow(*p, p->n_drafted); });
      }
    }
    chunks_.clear();
    for (place* p : this->in_turn()) {
      const std::int32_t n = p->task.n_rows;
      if (p->text == nullptr || p->task.kind != task::read || !ensure(*p, p->n_read + n + 1)) continue;
      chunks_.push_back({.place = p->number, .first = p->n_read, .n = n});
    }
    std::int32_t longest = 0;
    for (place* p : lanes_) {
      if (p->text == nullptr) continue;
      const std::int32_t most = p->text->value.written.size() + (p->n_under_way + 2) * (rounds_.max_nodes() + 1);
      if (ensure(*p, (std::min)(most, rounds_.context()))) longest = (std::max)(longest, most);
    }
    // If a text has lost its place, another round is planned for the others, which then may draft after all.
    if (std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return p->text == nullptr; }))
      return plan_round();
    const auto reader_of = [&](const prompt_chunk& c) -> place& { return this->at(c.place); };
    std::erase_if(chunks_, [&](const prompt_chunk& c) { return reader_of(c).text == nullptr; });
    if (chunks_.empty()) rows.n_prompt_rows = 0;
    this->begin_pass();
    ticket& t = next_ticket();
    t.texts.clear(), t.readers.clear();
    for (const prompt_chunk& c : chunks_) {
      t.readers.push_back({&reader_of(c), reader_of(c).turn, c.first + c.n});
      longest = (std::max)(longest, c.first + c.n);
    }
    t.rows = rows;
    t.longest = longest;
    numbers_.clear();
    for (place* p : lanes_) {
      t.texts.push_back({p, p->turn});
      numbers_.push_back(p->number);
      ++p->n_under_way;
      p->is_drafted_for = p->is_drafted_for && (drafts || !rounds_type::draft_falls_behind);
    }
    return true;
  }

  // Calls f, which enqueues the planned round, or a half of it. Returns false if an error holds the round's texts.
  template <class FunctionT>
  bool attempt_round(const FunctionT& f) {
    try {
      f();
      return true;
    } catch (...) {
      fail_round(std::current_exception());
      return false;
    }
  }
  // Holds the texts of the planned round with this error, but for those that were cancelled.
  void fail_round(const std::exception_ptr& error) {
    go_back();
    const ticket& t = next_ticket();
    for (const std::vector<participant>* some : {&t.texts, &t.readers}) {
      for (const participant& one : *some) {
        if (one.at->text != nullptr) this->fail(*one.at, error);
      }
    }
  }
  // Takes note that the planned round is under way.
  void begin_round() {
    for (const participant& r : next_ticket().readers) {
      if (r.is_there()) this->attempt(*r.at, [&] { reads_on(*r.at, r.n_read - r.at->n_read); });
    }
    next_ticket_ = 1 - next_ticket_;
  }
  ticket& next_ticket() { return under_way_[next_ticket_]; }

  // Returns the average number of tokens of the texts of the round.
  std::int32_t mean_size() const {
    std::int64_t sum = 0;
    for (const place* p : lanes_)
      sum += p->text->value.written.size();
    return static_cast<std::int32_t>(sum / std::ssize(lanes_));
  }

  template <class PieceT>
  void take_in(const PieceT& piece_of) {
    const ticket& t = under_way_[rounds_.n_under_way() == 2 ? next_ticket_ : 1 - next_ticket_];
    const auto arrived = rounds_.wait(t.texts.size());
    this->record().target_rows += t.rows.n_rows + t.rows.n_prompt_rows;
    for (std::size_t lane = 0; lane < t.texts.size(); ++lane) {
      if (!t.texts[lane].is_there()) continue;
      place& p = *t.texts[lane].at;
      --p.n_under_way;
      try {
        espalier::detail::require_pieces<PieceT>(p.text->value.written);
        arrived.raise_fault(lane);
        commit(p, arrived, arrived.outcomes[lane], t.rows, piece_of);
      } catch (...) {
        this->fail(p, std::current_exception());
      }
    }
    for (const participant& r : t.readers) {
      if (!r.is_there()) continue;
      arrived.failure ? this->fail(*r.at, arrived.failure) : has_read(*r.at, r.n_read);
    }
    // A model reports only its first failure, so the pass after this one may have failed to read its prompts, too.
    if (arrived.failure && rounds_.n_under_way() > 0 && !under_way_[1 - next_ticket_].readers.empty()) go_back();
  }

  template <class PieceT>
  void commit(place& p, const typename rounds_type::arrival& arrived, const detail::round_outcome& outcome,
              const typename rounds_type::pass_rows& rows, const PieceT& piece_of) {
    const tree_view tree = arrived.tree(p.number);
    entry& e = *p.text;
    text& t = e.value.written;
    const std::int32_t held = t.size() - 1;
    const tree_limit limited_by = rounds_.limit_of(t, tree, arrived.limit(p.number), rows);
    const round_record round = detail::take_round(t, tree, limited_by, outcome.decision, outcome.ends, piece_of);
    rounds_.remember(p.number, t.tokens(), held, t.size() - 1);
    if (rows.drafts() || !rounds_type::draft_falls_behind) p.n_drafted = t.size() - 1;
    const std::span<const std::byte> learnt = arrived.learnt_at(p.number);
    e.value.policy.learnt.assign(learnt.begin(), learnt.end());
    ++this->record().rounds;
    this->record().committed += static_cast<std::int32_t>(round.committed.size());
    this->record().drafted += tree.n_draws;
    this->tell(p, round);
  }

  batch_options options_;
  ESPALIER_NO_UNIQUE_ADDRESS ProcessorT processor_;
  rounds_type rounds_;
  std::vector<place*> lanes_;          // the places of the planned round
  std::vector<std::int32_t> numbers_;  // the numbers of these places
  std::vector<prompt_chunk> chunks_;   // the chunks of prompts that the planned round's pass reads
  ticket under_way_[2];
  int next_ticket_ = 0;
  std::vector<participant> readers_;  // texts whose prompts are read in passes of their own
  std::size_t next_reader_ = 0;       // index of the reader whose pass is made outside next
  outside_pass pass_;                 // the pass that is under way outside, if there is one
  stopwatch watch_;
};

//! Builds a batch_decoder on the device of five parts, and a processor if texts have one. Policy, verifier and
//! processor are moved; drafter, store and backend are kept by reference if they are lvalues, and moved otherwise.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
batch_decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_batch_decoder(
    DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
    batch_options options = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy),  std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), std::move(options), std::move(processor)};
}

}  // namespace espalier::cuda
