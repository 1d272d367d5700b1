// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/decoder/batch_drafting.hpp"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/batch_places.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/outside_pass.hpp"
#include "espalier/decoder/processed_rows.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/served_text.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/text_table.hpp"
#include "espalier/decoder/time_budget.hpp"
#include "espalier/forward/checked_forward.hpp"

namespace espalier {

namespace detail {

// Place of a text in a batch on the host.
template <class ServedT, class EntryT>
struct served_place : batch_place<EntryT> {
  static constexpr bool releases_rows = true;
  // Whether a text may begin with rows that another text computes.
  static constexpr bool shares_prompts = ServedT::shares_rows && ServedT::adopts_prompts;

  template <class... PartsT>
  explicit served_place(PartsT&&... parts) : served(std::forward<PartsT>(parts)...) {}

  ServedT served;
  std::int32_t n_draft_unread = 0;  // tokens that the text's drafter has still to read
  bool is_drafted_for = true;       // whether rounds of this step draft for the text

  void arrive() {}
  void leave() {
    served.give_up(this->text->value);
    served.release(false);
  }
  bool holds_rows() const { return served.held() != 0; }
  void release() { served.release(true); }
  std::int32_t page_size() const { return served.page_size(); }

  seat as_seat() const {
    const auto& t = this->text->value;
    const bool is_ready = served.writes(t, is_drafted_for);
    return {is_ready, is_ready ? served.unread(t) : served.left(t), is_drafted_for, 0};
  }
  reading as_reading() const {
    return {this->tokens(), served.held(), is_drafted_for ? n_draft_unread : 0, this->has_begun()};
  }
};

// The budget that the texts of a batch_decoder share in a round. For a policy that cannot share one, all calls do
// nothing.
template <class PolicyT, class DrafterT>
class shared_budget {
  using part = part_type<DrafterT, 0>;
  static constexpr bool exists =
      BudgetedPolicy<PolicyT> && n_parts<DrafterT> == 1 && (StepDrafter<part> || SequenceDrafter<part>);

 public:
  using type = typename std::conditional_t<exists, budget_of<PolicyT>, std::type_identity<no_budget>>::type;

  shared_budget(const PolicyT& policy, bool shares) : budget_(first(policy)), shares_(shares) {}

  // Returns the budget, or nullptr if each text has its own.
  type* get() { return shares_ ? &budget_ : nullptr; }

  void begin(std::int32_t n_texts, std::int32_t context, std::int32_t n_reading, std::int32_t n_prompt_rows) {
    if constexpr (exists) budget_.begin(n_texts, context, n_reading, n_prompt_rows);
  }
  // Returns whether it pays that the drafter of a text reads `unread` tokens of it, beside n_texts - 1 other texts.
  bool worth_reading(std::int32_t n_texts, const text& t, std::int32_t unread) const {
    if constexpr (exists) {
      if (shares_ && unread > 0 && t.left() > 0) return budget_.worth_reading(n_texts, t.size(), unread, t.left());
    }
    return true;
  }
  void end() {
    if constexpr (exists) budget_.end();
  }

 private:
  static type first(const PolicyT& policy) {
    if constexpr (exists)
      return policy.budget();
    else
      return {};
  }

  type budget_;
  bool shares_;
};

// Gives the round of each text the chance of the text's own seed.
struct own_chances {
  philox_chance operator()(text_id, const text& t) const {
    return philox_chance(t.seed(), t.options().stream, static_cast<std::uint32_t>(t.size()));
  }
};

}  // namespace detail

//! A decoder that writes many texts at once by tree speculative decoding, with the same parts as decoder. A step makes
//! one pass of the target over the rounds of all texts, and over parts of the prompts of texts that have just come; the
//! passes of a SharedDrafter are shared, too.
//!
//! Texts join and leave between steps. Those that wait are served in the order in which they came, or by priority. Each
//! text has its own sampling, seed, stop conditions and copies of policy and processor and, while it is served, one
//! sequence in each cache. Policy, verifier and processor are kept by value; drafter, store and backend by reference if
//! make_batch_decoder got lvalues, else by value. A drafter that is no SharedDrafter is copied for each text.
//!
//!     auto decode = make_batch_decoder(drafter, dynatree(), greedy(), kv, target, {.max_texts = 16});
//!     const text_id id = decode.add(prompt, {.max_tokens = 256});
//!     while (!decode.idle())
//!       for (const text_event& e : decode.step()) show(e.id, e.round.committed);
//!
//! If the store shares rows, a prompt that begins like a prompt that is being read waits for the rows of that prompt.
//! If pages run out, the last text in turn gives up its place and is computed again later. A round that finds no room
//! in a pass of max_rows waits for the next step, and then comes first.
//!
//! Complexity  a step: one target pass, and as many draft passes as the deepest tree needs, more if one pass has no
//!             room for all texts; no allocation once warm, nor when a text joins or leaves
//! Law         a text is the one that decoder writes with the same parts, prompt, stop conditions and text_options,
//!             whoever else is served, where the backends are batch-invariant (but see batch_options::share_budget, and
//!             time_budget)
//! Errors      input_error and option_error as decoder; input_error for a text that is not known. An error of a part in
//!             step() is told in the events of the texts that it hits, for example all texts of a pass: these are held
//!             at their last committed token until resume(), the others go on
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class batch_decoder
    : public detail::batch_places<
          detail::served_place<
              detail::served_text<typename detail::batch_drafting<std::remove_reference_t<DrafterT>>::drafter_of_text,
                                  TreePolicyT, std::remove_reference_t<KVStoreT>&, std::remove_reference_t<BackendT>,
                                  ProcessorT>,
              detail::batch_text<TreePolicyT, ProcessorT>>,
          detail::text_table<TreePolicyT, ProcessorT>> {
  using places = typename batch_decoder::batch_places;
  using typename places::entry;
  using typename places::place;
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(
      detail::fit<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>());
  using number = logit_number<backend_type, kv_type>;
  using drafting = detail::batch_drafting<drafter_type>;
  using saved_type = saved_text<TreePolicyT, ProcessorT>;

 public:
  batch_decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
                batch_options options = {}, ProcessorT processor = {})
      : places(require_options(options)),
        drafter_(std::forward<DrafterT>(drafter)),
        policy_(detail::without_history(std::move(policy))),
        processor_(std::move(processor)),
        verifier_(std::move(verifier)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        options_(std::move(options)),
        context_(context_length(backend_, kv_)),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        max_rows_((std::min)(options_.max_rows, max_rows_of(backend_))),
        budget_(policy_, options_.share_budget),
        time_(options_) {
    detail::require_whole_tree(max_rows_, max_nodes_);
    detail::require_text<VerifierT>(options_.text, backend_);
    const detail::served_sizes sizes{.max_nodes = max_nodes_,
                                     .max_asked = (std::min)(most_asked(policy_), context_),
                                     .max_pending = (std::min)(options_.prefill_rows, max_rows_ - max_nodes_),
                                     .prefill_rows = options_.prefill_rows,
                                     .vocab = backend_.vocab_size()};
    for (std::int32_t i = 0; i < options_.max_texts; ++i)
      this->add_place(drafter_for_text(drafter_, i), kv_, i, policy_, sizes);
    detail::require_parts<VerifierT, ProcessorT>(drafter_, policy_, backend_, max_nodes_);
    const std::int64_t all_rounds = std::int64_t{options_.max_texts} * (max_nodes_ + 1) + options_.prefill_rows;
    const auto rows = static_cast<std::int32_t>((std::min)(all_rounds, std::int64_t{max_rows_}));
    batch_.reserve(rows, sizes.max_pending + max_nodes_, options_.max_texts);
    drafting_.reserve(options_.max_texts, rows, sizes.max_asked);
    target_.reserve(max_nodes_ + 1, backend_.vocab_size());
    reserve_verifier(verifier_, max_nodes_, backend_.vocab_size());
  }

  batch_decoder(const batch_decoder&) = delete;

  //! Adds a text, which waits for its turn, and returns its number. The text may have a policy and a processor of its
  //! own; the costs in this policy count only where texts share no budget.
  //!
  //! Errors      as decoder::begin(); input_error if max_waiting texts wait already, besides as many as there are free
  //!             places; option_error for a policy that drafts or asks about other numbers of nodes than the decoder's,
  //!             or differs from it in reading states
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              own_parts<TreePolicyT, ProcessorT> own = {}) {
    detail::require_text<VerifierT>(options, backend_);
    if (own.policy) detail::require_same_size(*own.policy, policy_);
    entry& e = spare();
    e.value.written.begin(prompt, std::move(stop), options, context_, backend_.vocab_size());
    detail::take_own(e.value.policy, own.policy, policy_);
    e.value.policy_in_step = false;
    detail::take_own(e.value.processor, own.processor, processor_);
    e.value.read_again();
    return this->texts().add(own.priority);
  }

  //! Adds a text with the decoder's options for texts.
  text_id add(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return add(prompt, std::move(stop), options_.text);
  }

  //! Adds a text that was saved, with what its policy has learnt, and returns its number: the text goes on.
  //!
  //! Errors      as decoder::load(); input_error for a text that has ended, and if too many wait, as for add() above
  text_id add(saved_type saved, std::int32_t priority = 0) {
    detail::require_text<VerifierT>(saved.written.options(), backend_);
    entry& e = spare();
    saved.move_to(policy_, context_, backend_.vocab_size());
    this->texts().require_running(saved.written);
    e.value = std::move(saved);
    return this->texts().add(priority);
  }

  // Calls that must not be made: the compiler says why.
  template <detail::OtherPrompt PromptT>
  detail::prompt_of_other_type add(const PromptT&, const stop_conditions& = {}, const text_options& = {});
  template <std::integral NumberT>
  detail::number_as_stop add(std::span<const token_id>, NumberT, const text_options& = {});

  //! Goes on with a text that has ended, with `more` tokens in between (or none), or with one that a failure holds,
  //! which takes no further tokens and keeps its stop conditions.
  //!
  //! Errors      as decoder::resume(); input_error for a text that has not ended and is not held, and for `more` tokens
  //!             or stop conditions to a text that is held
  void resume(text_id id, std::span<const token_id> more = {}, stop_conditions stop = {}) {
    this->texts().resume(id, more, std::move(stop), context_, backend_.vocab_size());
  }

  //! Returns a text as it stands, with what its policy has learnt.
  saved_type save(text_id id) const { return this->texts().find(id).value; }

  //! Makes one step: for each text that is served a round, or the reading of a part of its prompt. Returns what each
  //! has done, valid until the next step; nothing once all have ended. `piece_of` is as for decoder::step().
  template <class PieceT = no_pieces>
  std::span<const text_event> step(const PieceT& piece_of = {}) {
    return step_with(detail::own_chances(), piece_of);
  }

  //! Makes one step, as step() does, with chances of the caller's: chance_of(id, text) gives the chance of a text's
  //! round.
  template <class ChancesT, class PieceT = no_pieces>
  std::span<const text_event> step_with(const ChancesT& chance_of, const PieceT& piece_of = {}) {
    this->require_no_pass();
    open_step();
    draft(chance_of, false);
    if (batch_.n_rows() > 0)
      this->attempt_all([&] { take(checked_forward(backend_, kv_, batch_.view()), chance_of, piece_of); }, in_pass());
    finish();
    return this->events();
  }

  //! The first half of a step, for an engine that makes passes itself: drafts, and returns the pass that the step needs
  //! next. The engine computes its logits, however and whenever it likes, and hands them to end_step(), or tells
  //! fail_pass() that it cannot. In between nothing waits: other decoders go on, and texts may be added, forked, saved
  //! and cancelled here. step() is made of the same halves, and writes the same texts.
  //!
  //!     while (!decode.idle()) {
  //!       for (outside_pass p = decode.begin_step(); p; p = decode.end_step(engine.logits_of(p))) {
  //!       }
  //!       for (const text_event& e : decode.events()) show(e.id, e.round.committed);
  //!     }
  //!
  //! Passes of a draft model are asked for where its drafter is autoregressive over an outside_backend; other drafters
  //! make their passes inside begin_step() and end_step().
  //!
  //! Post        if no pass is returned, the step is over, and events() tells what each text has done, as step() would
  //! Errors      as step(); input_error if a pass is under way
  outside_pass begin_step() {
    this->require_no_pass();
    open_step();
    return go_on();
  }

  //! The second half of a step: takes the logits of the pass under way, and returns the next pass of this step, which
  //! is the draft's or the target's. The target's logits end the step. A text that was cancelled in the meantime
  //! leaves, and its rows are dropped.
  //!
  //! Shapes      logits [batch.outputs.size()][vocab_size], read until this returns
  //! Post        as begin_step()
  //! Errors      as step(); input_error if no pass is under way, and for logits of another shape, after which the pass
  //!             still is under way
  template <class PieceT = no_pieces>
  outside_pass end_step(vocab_rows<number> logits, const PieceT& piece_of = {}) {
    this->require_pass();
    require_rows_of(logits, static_cast<std::int32_t>(pass_.batch.outputs.size()), backend_.vocab_size());
    if (close_pass().is_draft()) {
      drafting_.take(*this, drafter_, this->in_turn(), logits);
      return go_on();
    }
    take(logits, detail::own_chances(), piece_of);
    finish();
    return {};
  }

  //! Tells that the pass under way has failed with this error, and returns the next pass of the step. As where a
  //! backend throws in step(), the texts of the pass have the error in their events, and are held at their last
  //! committed token until resume(); the others go on.
  //!
  //! Errors      input_error if no pass is under way, and for a null pointer, after which the pass still is under way
  outside_pass fail_pass(std::exception_ptr error) {
    this->require_pass();
    if (!error) raise<input_error>("fail_pass() needs the error by which the pass failed, but got a null pointer.");
    const bool is_draft = close_pass().is_draft();
    const auto fail = [&](place& p) { this->fail(p, error); };
    if (is_draft) {
      drafting_.fail(this->in_turn(), fail);
      return go_on();
    }
    in_pass()(fail);
    finish();
    return {};
  }

  //! Gives up the step: all texts stand at their last committed tokens, and no text is held because of it. The engine
  //! must not write cache slots of the pass any more. Does nothing where no pass is under way.
  void give_up() {
    if (!pass_) return;
    (void)close_pass();
    for (place* p : this->in_turn()) {
      if (p->text != nullptr && p->has_begun()) p->served.give_up(p->text->value);
    }
    budget_.end();
  }

 private:
  friend drafting;
  entry& spare() { return this->texts().spare(policy_, this->n_running(), processor_); }

  // Returns the seconds that the draft's passes which texts share have taken since construction.
  double draft_seconds() const { return forward_seconds_of(drafter_); }

  detail::pass_limits limits() const {
    return {.rows = max_rows_,
            .prefill_rows = options_.prefill_rows,
            .prefill_alone = options_.prefill_rows,
            .max_chunks = options_.max_texts,
            .max_nodes = max_nodes_,
            .may_read_alone = had_rounds_};
  }

  // Begins a step: texts take free places, and drafters begin to read prompts.
  void open_step() {
    watch_.lap();
    this->seat_texts(kv_);
    for (place* p : this->in_turn())
      this->attempt(*p, [&] { prepare(*p); });
    drafting_.begin_reading(this->in_turn(), options_.prefill_rows);
  }

  // Goes on to the next pass that is made outside, and returns it. If there is none, the step is over.
  outside_pass go_on() {
    if (draft(detail::own_chances(), true))
      pass_ = {drafting_.pass(drafter_), drafting_.part()};
    else if (batch_.n_rows() > 0)
      pass_ = {batch_.view()};
    else
      finish();
    if (pass_) this->set_pass_outside(true);
    return pass_;
  }
  // Ends the pass under way, and returns it.
  outside_pass close_pass() {
    this->set_pass_outside(false);
    station_seconds& seconds = this->record().seconds;
    (pass_.is_draft() ? seconds.draft_forward : seconds.target_forward) += watch_.lap();
    return std::exchange(pass_, {});
  }

  // Returns a function that calls f(place) for each text that has rows in the target's pass.
  auto in_pass() {
    return [this](const auto& f) {
      for (place* p : this->in_turn()) {
        if (p->task.kind != detail::pass_task::none) f(*p);
      }
    };
  }

  // Makes a text's caches and drafter follow it, unless it waits for rows that another text computes.
  void prepare(place& p) {
    saved_type& t = p.text->value;
    if (!p.has_begun()) settle(p);
    if (!p.has_begun()) return;
    p.served.prepare(t);
    p.n_draft_unread = p.served.draft_reads() ? drafting::unread(p.served.drafter(), t.written.size()) : 0;
    p.is_drafted_for = !p.served.rests() && budget_.worth_reading(this->n_running(), t.written, p.n_draft_unread);
  }

  // Makes a text that has not begun take the rows that other sequences hold of it, and begin, unless it is to wait for
  // rows that another text computes.
  void settle(place& p) {
    saved_type& t = p.text->value;
    if (p.stage == detail::place_stage::arrived) p.served.begin(t);
    p.stage = detail::place_stage::begun;
    if constexpr (SharingKVStore<kv_type>) {
      take_rows(p);
      if (place::shares_prompts && !t.written.scores_prompt() && this->waits(p)) p.stage = detail::place_stage::waits;
    }
  }

  // Takes rows of the text that the store finds (see SharingKVStore), and rows that the sequence of another text holds
  // in a page that is not full, for example where this text was forked from that text. From a store with recurrent
  // states, rows are taken only if the store holds a state with which they can go on.
  void take_rows(const place& p) {
    const std::span<const token_id> wanted = p.tokens().first(p.tokens().size() - 1);
    std::int32_t held = kv_.adopt(p.number, wanted);
    for (const place* q : this->in_turn()) {
      if (q->text == nullptr || q == &p) continue;
      const std::span<const token_id> theirs = kv_.prefix(q->number);
      const auto common =
          std::mismatch(theirs.begin(), theirs.end(), wanted.begin(), wanted.end()).first - theirs.begin();
      if (common <= held) continue;
      if constexpr (RecurrentStore<kv_type>) {
        const auto n = static_cast<std::int32_t>(common);
        if (rows_after_truncate(kv_, q->number, n) < n) continue;
      }
      kv_.fork(q->number, p.number);
      held = static_cast<std::int32_t>(common);
      kv_.truncate(p.number, held);
    }
  }

  // Calls f, a part of a text's drafting. Returns false if the text's drafting is over: see served_text::draft().
  template <class FunctionT>
  bool attempt_draft(place& p, const FunctionT& f) {
    bool goes_on = false;
    this->attempt(p, [&] { goes_on = p.served.draft(p.text->value, f); });
    return goes_on;
  }

  // Makes room in the caches for a text. Returns false if the text may not try again; a text that is alone then fails.
  bool make_room(place& p) {
    if (places::make_room(p)) return true;
    if (p.text == nullptr) return false;
    this->attempt(p, [&] {
      const std::int32_t n = p.text->value.written.size();
      raise<input_error>("the caches have no room for a text of ", n, " tokens, alone: others use their pages.");
    });
    return false;
  }

  // Opens the trees of all rounds. The shared budget is told what this step does: the number of texts that are written,
  // the mean number of tokens that the target sees of each before its last one, the number of other texts that are
  // served, and the rows of prompts in the same pass. Texts that are drafted for share what the pass has time for.
  void open_trees() {
    std::int32_t n = 0, n_reading = 0, n_prompt_rows = 0, n_drafted_for = 0;
    std::int64_t seen = 0;
    for (const place* p : this->in_turn()) {
      if (p->text == nullptr) continue;
      (p->draws() ? n : n_reading) += 1;
      if (p->draws()) seen += p->served.seen(p->text->value) - 1;
      n_drafted_for += drafts(*p) ? 1 : 0;
      n_prompt_rows += p->task.n_rows;
    }
    const std::int32_t context = n > 0 ? static_cast<std::int32_t>(seen / n) : 0;
    budget_.begin(n, context, n_reading, n_prompt_rows);
    std::int32_t in_time = time_.is_limited() ? time_.room(n, n_prompt_rows + n, context) : 0;
    for (place* p : this->in_turn()) {
      if (!p->draws()) continue;
      std::int32_t most = detail::time_budget::no_limit;
      if (time_.is_limited() && drafts(*p)) {
        const std::int32_t share = in_time / n_drafted_for--;
        in_time -= share;
        if (share < max_nodes_) most = share;
      }
      this->attempt(*p, [&] { p->served.open_tree(p->text->value, p->is_drafted_for, budget_.get(), most); });
    }
  }
  // Whether a text has a round in this step that may have drafted tokens.
  static bool drafts(const place& p) { return p.draws() && p.is_drafted_for && p.text->value.written.left() > 1; }

  // Goes on with the drafting of a step. Returns true if it needs a pass that is made outside, where `gives` allows it;
  // else all trees have grown, and batch_ has the rows of the target's pass.
  template <class ChancesT>
  bool draft(const ChancesT& chance_of, bool gives) {
    const double before = draft_seconds();
    const auto advance = [&] {
      return drafting_.advance(*this, drafter_, this->in_turn(), chance_of, budget_.get(), gives);
    };
    bool waits = advance();
    if (!waits && drafting_.is_reading()) {
      had_rounds_ = this->plan(limits()).n_rounds > 0;
      this->begin_pass();
      open_trees();
      drafting_.begin_growing();
      waits = advance();
    }
    step_record& record = this->record();
    record.draft_passes = drafting_.n_passes();
    if (!waits) close_trees();
    const double passes = draft_seconds() - before;
    record.seconds.draft_forward += passes;
    record.seconds.grow += watch_.lap() - passes;
    if (!waits) add_rows();
    return waits;
  }

  void close_trees() {
    for (place* p : this->in_turn()) {
      if (p->draws()) this->attempt(*p, [&] { p->served.close_tree(p->text->value); });
    }
  }

  void add_rows() {
    batch_.clear();
    for (place* p : this->in_turn()) {
      if (p->task.kind == detail::pass_task::none) continue;
      bool has_room = false;
      do {
        this->attempt(*p, [&] {
          has_room = p->draws() ? p->served.add_round(batch_, p->text->value, options_.order)
                                : p->served.add_chunk(batch_, p->text->value, p->task.n_rows);
        });
      } while (p->text != nullptr && !has_room && make_room(*p));
    }
    this->record().target_rows = batch_.n_rows();
    this->record().seconds.compile = watch_.lap();
  }

  // Takes the logits of the target's pass.
  template <class ChancesT, class PieceT>
  void take(vocab_rows<number> logits, const ChancesT& chance_of, const PieceT& piece_of) {
    this->record().seconds.target_forward += watch_.lap();
    in_pass()([&](place& p) { this->attempt(p, [&] { take(p, logits, chance_of, piece_of); }); });
  }
  template <class ChancesT, class PieceT>
  void take(place& p, vocab_rows<number> logits, const ChancesT& chance_of, const PieceT& piece_of) {
    saved_type& t = p.text->value;
    round_record& r = p.served.record();
    step_record& step = this->record();
    detail::require_pieces<PieceT>(t.written);
    if (!p.draws()) {
      p.served.finish_chunk(t, backend_, logits);
      step.prompt_rows += r.forwarded_rows;
    } else {
      auto&& chance = chance_of(p.text->id, t.written);
      const verdict v = p.served.verify(t, logits, verifier_, target_, chance);
      step.seconds.verify += watch_.lap();
      p.served.commit(t, v, backend_, target_, piece_of);
      ++step.rounds;
      step.committed += static_cast<std::int32_t>(r.committed.size());
      step.drafted += r.tree.n_draws;
      step.seconds.commit += watch_.lap();
    }
  }

  // Ends a step: tells what each text has done.
  void finish() {
    for (place* p : this->in_turn()) {
      if (p->text == nullptr || !p->has_begun()) continue;
      saved_type& t = p->text->value;
      p->served.end_if_read(t, p->is_drafted_for);
      if (p->task.kind == detail::pass_task::none && t.written.running()) continue;
      p->served.record().state = t.written.state();
      this->tell(*p, p->served.record());
    }
    budget_.end();
    this->record().seconds.commit += watch_.lap();
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  ESPALIER_NO_UNIQUE_ADDRESS ProcessorT processor_;
  VerifierT verifier_;
  KVStoreT kv_;
  BackendT backend_;
  batch_options options_;
  std::int32_t context_;
  std::int32_t max_nodes_;
  std::int32_t max_rows_;
  detail::shared_budget<TreePolicyT, drafter_type> budget_;
  detail::time_budget time_;
  drafting drafting_;
  forward_batch batch_;
  detail::target_rows<number, ProcessorT> target_;
  bool had_rounds_ = true;  // whether the last pass that was planned had rounds
  outside_pass pass_;       // under way, if any is
  stopwatch watch_;
};

//! Builds a batch_decoder of five parts, and a processor where texts have one. Policy, verifier and processor are
//! copied or moved. Drafter, store and backend are kept by reference if they are lvalues, else moved.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
requires(!detail::Mistake<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>)
    batch_decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_batch_decoder(
        DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
        batch_options options = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy),  std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), std::move(options), std::move(processor)};
}

// Parts that do not fit: the compiler says why.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
requires detail::Mistake<detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>>
auto make_batch_decoder(DrafterT&&, const TreePolicyT&, const VerifierT&, KVStoreT&&, BackendT&&,
                        const batch_options& = {}, const ProcessorT& = {})
    -> detail::mistake_of_parts<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>;
template <class... PartsT>
requires(sizeof...(PartsT) < 5) detail::too_few_parts make_batch_decoder(const PartsT&...);

}  // namespace espalier
