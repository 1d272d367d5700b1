// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/processor.hpp"
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
#include "espalier/decoder/no_pieces.hpp"
#include "espalier/decoder/processed_rows.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/served_text.hpp"
#include "espalier/decoder/shared_budget.hpp"
#include "espalier/decoder/step_record.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_event.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/text_table.hpp"
#include "espalier/forward/checked_forward.hpp"

namespace espalier {

//! Tree speculative decoding of many texts at once, of the same five parts as decoder: in each step one pass of the
//! target over the rounds of all texts, and over parts of the prompts of those that have just come; the passes of a
//! SharedDrafter are shared, too.
//!
//! Texts join and leave between steps. Those that wait are served as they came, or by priority. Each text has its own
//! sampling, seed, stop conditions and copies of policy and processor, and while it is served a sequence of both
//! caches. Policy, verifier and processor are kept by value; drafter, store and backend by reference when
//! make_batch_decoder got lvalues, else by value. Drafters that are no SharedDrafter are copied, one for each text.
//!
//!     auto decode = make_batch_decoder(drafter, dynatree(), greedy(), kv, target, {.max_texts = 16});
//!     const text_id id = decode.add(prompt, {.max_tokens = 256});
//!     while (!decode.idle())
//!       for (const text_event& e : decode.step()) show(e.id, e.round.committed);
//!
//! A prompt that begins as one that is being read waits for it where the store shares rows. Where pages run out, the
//! last text in turn gives up its place and is computed again later. A round that finds no room in a pass of max_rows
//! waits for the next step, and then comes first.
//!
//! Complexity  a step: as many draft passes as the deepest tree needs, one target pass; no allocation once warm, nor
//!             where a text joins or leaves
//! Law         a text is the one that decoder writes with the same parts, prompt, stop conditions and text_options,
//!             whoever else is served, where the backends are batch-invariant (but see batch_options::share_budget)
//! Errors      input_error and option_error as decoder's; input_error for a text that is not known. What a part throws
//!             in step() is told in the events of the texts that were in that pass: they are held at their last
//!             committed token until resume(); the others go on
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class batch_decoder {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(detail::check_parts<drafter_type, TreePolicyT, VerifierT, kv_type, backend_type>());
  static_assert(detail::check_processor<ProcessorT>());
  using number = logit_number<backend_type, kv_type>;
  using drafting = detail::batch_drafting<drafter_type>;
  using served_text =
      detail::served_text<typename drafting::drafter_of_text, TreePolicyT, kv_type&, backend_type, ProcessorT>;
  using text_table = detail::text_table<TreePolicyT, ProcessorT>;
  using entry = typename text_table::entry;
  using saved_type = saved_text<TreePolicyT, ProcessorT>;
  using places = detail::batch_places<served_text, text_table>;
  using place = typename places::place;

 public:
  batch_decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
                batch_options options = {}, ProcessorT processor = {})
      : drafter_(std::forward<DrafterT>(drafter)),
        policy_(detail::without_history(std::move(policy))),
        processor_(std::move(processor)),
        verifier_(std::move(verifier)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        options_(require_options(options)),
        context_(context_length(backend_, kv_)),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        max_rows_(detail::rows_of_pass(options_, backend_, max_nodes_)),
        texts_(options_),
        budget_(policy_, options.share_budget),
        sizes_(sizes()),
        places_(options.max_texts, [&](std::int32_t i) {
          return std::make_unique<place>(drafter_for_text(drafter_, i), kv_, i, policy_, sizes_);
        }) {
    detail::require_text<VerifierT>(options.text, backend_);
    detail::require_parts<VerifierT, ProcessorT>(drafter_, policy_, backend_, max_nodes_);
    const std::int64_t all_rounds = std::int64_t{options_.max_texts} * (max_nodes_ + 1) + options_.prompt_rows;
    const auto rows = static_cast<std::int32_t>((std::min)(all_rounds, std::int64_t{max_rows_}));
    batch_.reserve(rows, sizes_.max_pending + max_nodes_, options_.max_texts);
    drafting_.reserve(options_.max_texts, rows, sizes_.max_asked);
    target_.reserve(max_nodes_ + 1, backend_.vocab_size());
    reserve_verifier(verifier_, max_nodes_, backend_.vocab_size());
    events_.reserve(static_cast<std::size_t>(options_.max_texts));
  }

  batch_decoder(const batch_decoder&) = delete;

  //! Adds a text, which waits for its turn: higher priorities go first.
  //!
  //! Errors      as decoder::begin(); input_error where max_waiting texts wait
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority = 0) {
    return add(prompt, std::move(stop), options, priority, policy_, processor_);
  }
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority, ProcessorT processor) requires(detail::processes<ProcessorT>) {
    return add(prompt, std::move(stop), options, priority, policy_, std::move(processor));
  }

  //! The same, with a policy of its own, whose costs count where no budget is shared, and perhaps a processor.
  //!
  //! Errors      also option_error for a policy with another max_nodes() than the decoder's
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority, const TreePolicyT& policy, std::optional<ProcessorT> processor = {}) {
    detail::require_text<VerifierT>(options, backend_);
    detail::require_same_size(policy, policy_);
    entry& e = spare();
    e.value.written.begin(prompt, std::move(stop), options, context_, backend_.vocab_size());
    e.value.policy = policy;
    e.value.policy_in_step = false;
    e.value.processor = processor ? std::move(*processor) : processor_;
    e.value.read_again();
    return texts_.add(priority);
  }

  text_id add(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return add(prompt, std::move(stop), options_.text);
  }

  //! Adds a text that was saved, with what its policy has learnt: it goes on.
  //!
  //! Errors      as decoder::load(); input_error for a text that has ended, and where max_waiting texts wait
  text_id add(saved_type saved, std::int32_t priority = 0) {
    detail::require_text<VerifierT>(saved.written.options(), backend_);
    entry& e = spare();
    saved.move_to(policy_, context_, backend_.vocab_size());
    texts_.require_running(saved.written);
    e.value = std::move(saved);
    return texts_.add(priority);
  }

  //! Ends a text wherever it is, and forgets it.
  void cancel(text_id id) {
    entry& e = texts_.find(id);
    if (e.stage == detail::text_stage::served) places_.leave(places_.at(e.place));
    texts_.forget(e);
  }

  //! Goes on with a text that has ended, with `more` tokens in between (or none), or with one that a failure holds,
  //! which keeps its stop conditions. Errors as decoder::resume(); input_error for a text that is neither.
  void resume(text_id id, std::span<const token_id> more = {}, stop_conditions stop = {}) {
    texts_.resume(texts_.find(id), more, std::move(stop), context_, backend_.vocab_size());
  }

  //! Another sample of a text, as it stands now: its further random numbers are those of this stream. Rows of a store
  //! that shares them are not computed again.
  //!
  //! Errors      input_error for a text that has ended, and where max_waiting texts wait
  text_id fork(text_id id, std::uint32_t stream) {
    const entry& from = texts_.find(id);
    texts_.require_running(from.value.written);
    entry& e = spare();
    e.value = from.value;
    e.value.written.fork(stream);
    return texts_.add(from.priority);
  }

  //! A text as it stands, with what its policy has learnt.
  saved_type save(text_id id) const { return texts_.find(id).value; }

  //! Valid until the text is cancelled, or forgotten after its end.
  const text& current(text_id id) const { return texts_.find(id).value.written; }

  //! A round of each text that is served, or a part of its prompt. Tells what each has done; nothing once all have
  //! ended. `piece_of` as decoder's. Valid until the next step.
  template <class PieceT = no_pieces>
  std::span<const text_event> step(const PieceT& piece_of = {}) {
    const auto chance_of = [](text_id, const text& t) {
      return philox_chance(t.seed(), t.options().stream, static_cast<std::uint32_t>(t.size()));
    };
    return step_with(chance_of, piece_of);
  }

  //! The same with chances of one's own: chance_of(id, text) gives that of a text's round.
  template <class ChancesT, class PieceT = no_pieces>
  std::span<const text_event> step_with(const ChancesT& chance_of, const PieceT& piece_of = {}) {
    events_.clear();
    record_ = {};
    watch_.lap();
    places_.seat(texts_, kv_);
    for (place* p : places_.in_turn()) {
      attempt(*p, [&] {
        if (!p->begun) places_.settle(*p, kv_);
        if (!p->begun) return;
        const text& t = p->text->value.written;
        detail::require_pieces<PieceT>(t);
        p->served.prepare(p->text->value);
        p->n_draft_unread = p->served.draft_reads() ? drafting::unread(p->served.drafter(), t.size()) : 0;
        p->drafts = budget_.worth_reading(places_.n_served(), t, p->n_draft_unread);
      });
    }
    const double before = draft_seconds();
    drafting_.read_prompts(*this, drafter_, places_.in_turn(), options_.prompt_rows);
    places_.plan(max_rows_, options_.prompt_rows, max_nodes_);
    draft(chance_of);
    record_.seconds.draft_forward = draft_seconds() - before;
    record_.seconds.grow = watch_.lap() - record_.seconds.draft_forward;
    add_rows();
    record_.seconds.compile = watch_.lap();
    forward(chance_of, piece_of);
    places_.finish(texts_, events_);
    budget_.end();
    record_.seconds.commit += watch_.lap();
    return events_;
  }

  //! Whether all texts have ended, or are held.
  bool idle() const { return n_running() + n_waiting() == 0; }
  std::int32_t n_running() const { return places_.n_served(); }
  std::int32_t n_waiting() const { return texts_.n_waiting(); }
  const step_record& last_step() const { return record_; }

 private:
  friend drafting;
  entry& spare() { return texts_.spare(policy_, places_.n_served(), processor_); }

  detail::served_sizes sizes() const {
    return {.max_nodes = max_nodes_,
            .max_asked = (std::min)(most_asked(policy_), context_),
            .max_pending = (std::min)(options_.prompt_rows, max_rows_ - max_nodes_),
            .chunk = options_.prompt_rows,
            .vocab = backend_.vocab_size()};
  }

  double draft_seconds() const { return forward_seconds_of(drafter_); }  // of passes that are shared

  // Calls f for a text. What it throws is told in the text's event, and holds it.
  template <class FunctionT>
  void attempt(place& p, const FunctionT& f) {
    attempt_all(f, [&](const auto& fail) { fail(p); });
  }

  // The same for the texts of a pass: whose(fail) calls fail(place) for each of them.
  template <class FunctionT, class WhoseT>
  void attempt_all(const FunctionT& f, const WhoseT& whose) {
#if ESPALIER_EXCEPTIONS
    try {
      f();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      whose([&](place& p) { events_.push_back(places_.fail(p, texts_, error)); });
    }
#else
    (void)whose;
    f();
#endif
  }

  // Free places give up their rows for p, or else the last text in turn. Whether p may try again: not where it was the
  // last itself.
  bool make_room(place& p) {
    if (places_.release_free()) return true;
    if (places_.n_served() == 1) {
      attempt(p, [&] {
        const std::int32_t n = p.text->value.written.size();
        raise<input_error>("the caches have no room for a text of ", n, " tokens, alone: others use their pages.");
      });
      return false;
    }
    ++record_.preempted;
    return &places_.preempt_last(texts_) != &p;
  }

  template <class ChancesT>
  void draft(const ChancesT& chance_of) {
    const auto written = places_.written();
    budget_.begin(written.n, written.context, written.n_reading, written.n_prompt_rows);
    for (place* p : places_.in_turn()) {
      if (p->draws()) attempt(*p, [&] { p->served.open_tree(p->text->value, p->drafts, budget_.get()); });
    }
    drafting_.grow(*this, drafter_, places_.in_turn(), chance_of, budget_.get());
    for (place* p : places_.in_turn()) {
      if (p->draws()) attempt(*p, [&] { p->served.close_tree(p->text->value); });
    }
    record_.draft_passes = drafting_.n_passes();
  }

  void add_rows() {
    batch_.clear();
    for (place* p : places_.in_turn()) {
      if (p->does == detail::batch_task::none) continue;
      bool has_room = false;
      do {
        attempt(*p, [&] {
          has_room = p->does == detail::batch_task::round
                         ? p->served.add_round(batch_, p->text->value, options_.order)
                         : p->served.add_chunk(batch_, p->text->value, p->n_prompt_rows);
        });
      } while (p->text != nullptr && !has_room && make_room(*p));
    }
    record_.target_rows = batch_.n_rows();
  }

  template <class ChancesT, class PieceT>
  void forward(const ChancesT& chance_of, const PieceT& piece_of) {
    if (batch_.n_rows() == 0) return;
    attempt_all(
        [&] {
          const auto logits = checked_forward(backend_, kv_, batch_.view());
          record_.seconds.target_forward = watch_.lap();
          for (place* p : places_.in_turn()) {
            if (p->does == detail::batch_task::none) continue;
            attempt(*p, [&] { take(*p, logits, chance_of, piece_of); });
          }
        },
        [&](const auto& fail) {
          for (place* p : places_.in_turn()) {
            if (p->does != detail::batch_task::none) fail(*p);
          }
        });
  }

  template <class ChancesT, class PieceT>
  void take(place& p, vocab_rows<number> logits, const ChancesT& chance_of, const PieceT& piece_of) {
    saved_type& t = p.text->value;
    round_record& r = p.served.record();
    if (p.does == detail::batch_task::chunk) {
      p.served.finish_chunk(t, backend_, logits);
      record_.prompt_rows += r.forwarded_rows;
    } else {
      auto&& chance = chance_of(p.text->id, t.written);
      const verdict v = p.served.verify(t, logits, verifier_, target_, chance);
      record_.seconds.verify += watch_.lap();
      p.served.commit(t, v, backend_, target_, piece_of);
      ++record_.rounds;
      record_.committed += static_cast<std::int32_t>(r.committed.size());
      record_.drafted += r.tree.n_draws;
      record_.seconds.commit += watch_.lap();
    }
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  [[no_unique_address]] ProcessorT processor_;
  VerifierT verifier_;
  KVStoreT kv_;
  BackendT backend_;
  batch_options options_;
  std::int32_t context_;
  std::int32_t max_nodes_;
  std::int32_t max_rows_;
  text_table texts_;
  detail::shared_budget<TreePolicyT, drafter_type> budget_;
  detail::served_sizes sizes_;
  places places_;
  drafting drafting_;
  forward_batch batch_;
  detail::target_rows<number, ProcessorT> target_;
  std::vector<text_event> events_;
  step_record record_;
  stopwatch watch_;
};

//! Builds a batch_decoder of five parts, and a processor where texts have one: policy, verifier and processor are
//! copied or moved, of the others lvalues are kept by reference.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
batch_decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_batch_decoder(
    DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
    batch_options options = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter), std::move(policy),  std::move(verifier), std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend), std::move(options), std::move(processor)};
}

}  // namespace espalier
