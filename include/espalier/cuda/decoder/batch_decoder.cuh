// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/decoder/served_texts.cuh"
#include "espalier/cuda/decoder/take_round.cuh"
#include "espalier/cuda/decoder/text_place.cuh"
#include "espalier/cuda/decoder/text_rounds.cuh"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/no_pieces.hpp"
#include "espalier/decoder/step_record.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_event.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/text_table.hpp"

namespace espalier::cuda {

//! Tree speculative decoding of many texts at once on the device: espalier::batch_decoder with parts that live there.
//!
//! All texts' rounds are one round: each launch of a policy, a drafter, the verifier or a store works for all of them,
//! and the target makes one pass. The host enqueues one round ahead of the one whose outcome it takes in. Texts join
//! and leave between rounds, without a word to the others. Each has its own sampling, seed and stop conditions, its own
//! processor where there is one, called as decoder says, and may have its own options of a TextwisePolicy. What is
//! learnt of a text is its own, and comes with it where it takes another place. The text in place i has sequence i of
//! both caches.
//!
//! Up to batch_options::prompt_rows tokens of prompts are read in each round's pass, beside the trees, which leave them
//! a quarter of max_rows if need be; in passes of their own where no text is written, and where max_rows has none to
//! spare. A drafter reads prompts in passes of its own.
//!
//! Where a pass of max_rows has no room for a whole tree of each text, its rows go to those nodes, whosever they are,
//! that are expected to gain most, by the draft's probabilities and by what was lately accepted of each text; trees
//! shrink to plain decoding if need be. With costs the host chooses, one round behind, how many rows a pass has: as
//! many as are expected to pay. Trees that are drawn get their shares before anything is drawn, from earlier rounds
//! alone. Rows are divided evenly with batch_options::share_budget = false, and where trees would be cut but the
//! drafter is no RenumberingDrafter. Log-probabilities and saved texts are the host's alone.
//!
//! Where pages run out, the last text in turn gives up its place and is read again later. Full pages that a store
//! shares are read once.
//!
//! Complexity  a step on the host: one graph launch, two copies (outcomes, and the trees of all places), one event,
//!             O(texts); on the device as decoder's, with max_nodes() + 1 rows for each text or as many as they
//!             share, the number of texts rounded up to a power of two, or to max_texts. The host waits for no round
//!             but the one that it takes in, except after a failure, where rounds begin to draft again, and for models
//!             of the host that read prompts
//! Law         a text is the one that decoder writes with the same parts, prompt, stop conditions and text_options,
//!             whoever else is served, where the backends are batch-invariant. Where rows are short, or costs are
//!             given, its trees depend on the other texts: with greedy and target_only its words are the same bit for
//!             bit all the same, with other verifiers they are another draw of the same distribution
//! Errors      as espalier::batch_decoder; option_error for max_rows below max_texts. What a round finds wrong in a
//!             text, or its processor throws, holds that text; what a part throws while a round is enqueued, or a
//!             model of the host in its pass, holds all texts of the round, those whose prompts it reads included. A
//!             text that is held stands at its last committed token
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class batch_decoder {
  using rounds_type = detail::text_rounds<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using place = detail::text_place<ProcessorT>;
  using entry = typename place::entry;
  using ticket = detail::round_ticket<ProcessorT>;

 public:
  batch_decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
                batch_options options = {}, bool replay = true, std::optional<cost_model> costs = {},
                ProcessorT processor = {})
      : options_(require_options(options)),
        processor_(std::move(processor)),
        rounds_(std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
                std::forward<BackendT>(backend),
                {.order = options.order,
                 .max_texts = options.max_texts,
                 .max_rows = options.max_rows,
                 .prompt_rows = options.prompt_rows,
                 .share_rows = options.share_budget,
                 .costs = options.share_budget ? std::move(costs) : std::nullopt,
                 .keeps_learnt = true,
                 .replay = replay}),
        served_(rounds_, options) {
    rounds_.check(options.text);
    const auto n = static_cast<std::size_t>(options.max_texts);
    lanes_.reserve(n), numbers_.reserve(n), chunks_.reserve(n);
    for (ticket& t : under_way_)
      t.texts.reserve(n), t.readers.reserve(n);
  }

  batch_decoder(const batch_decoder&) = delete;

  //! Adds a text, which waits for its turn: higher priorities go first.
  //!
  //! Errors      as decoder::begin(); input_error where max_waiting texts wait
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority = 0) {
    rounds_.check(options);
    entry& e = served_.texts().spare({}, n_running(), processor_);
    e.value.written.begin(prompt, std::move(stop), options, rounds_.context(), rounds_.vocab_size());
    e.value.policy.learnt.clear();
    e.value.processor = processor_;
    return served_.texts().add(priority);
  }

  //! The same, with a processor of its own.
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority, ProcessorT processor) requires(espalier::detail::processes<ProcessorT>) {
    const text_id id = add(prompt, std::move(stop), options, priority);
    served_.texts().find(id).value.processor = std::move(processor);
    return id;
  }

  //! The same, drafted for with options of its own, where the policy has them by text (TextwisePolicy), and perhaps
  //! with a processor of its own.
  //!
  //! Errors      also option_error for options that would make larger trees than the decoder's
  template <class PolicyT = TreePolicyT>
  requires TextwisePolicy<PolicyT> text_id add(std::span<const token_id> prompt, stop_conditions stop,
                                               const text_options& options, std::int32_t priority,
                                               const typename PolicyT::options_type& policy_options,
                                               std::optional<ProcessorT> processor = {}) {
    std::vector<std::byte> learnt = rounds_.learnt_with(policy_options);
    const text_id id = add(prompt, std::move(stop), options, priority);
    auto& added = served_.texts().find(id).value;
    added.policy.learnt = std::move(learnt);
    if (processor) added.processor = std::move(*processor);
    return id;
  }

  text_id add(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return add(prompt, std::move(stop), options_.text);
  }

  //! Ends a text wherever it is, and forgets it.
  void cancel(text_id id) {
    entry& e = served_.texts().find(id);
    if (e.stage == espalier::detail::text_stage::served) served_.leave(served_.places().at(e.place));
    served_.texts().forget(e);
  }

  //! Goes on with a text that has ended, with `more` tokens in between (or none), or with one that a failure holds,
  //! which keeps its stop conditions. Errors as decoder::resume(); input_error for a text that is neither.
  void resume(text_id id, std::span<const token_id> more = {}, stop_conditions stop = {}) {
    auto& texts = served_.texts();
    texts.resume(texts.find(id), more, std::move(stop), rounds_.context(), rounds_.vocab_size());
  }

  //! Another sample of a text, as it stands now: its further random numbers are those of this stream. Full pages of a
  //! store that shares them are not read again.
  //!
  //! Errors      input_error for a text that has ended, and where max_waiting texts wait
  text_id fork(text_id id, std::uint32_t stream) {
    auto& texts = served_.texts();
    const entry& from = texts.find(id);
    texts.require_running(from.value.written);
    entry& e = texts.spare({}, n_running());
    e.value = from.value;
    e.value.written.fork(stream);
    return texts.add(from.priority);
  }

  //! Valid until the text is cancelled, or forgotten after its end. Tokens of a round that is under way are not there.
  const text& current(text_id id) const { return served_.texts().find(id).value.written; }

  //! Reads prompts, has the next round under way, and takes in the one before. Tells what each text of it has written:
  //! nothing while there are only prompts to read, too. `piece_of` is for stop strings. Valid until the next step.
  template <class PieceT = no_pieces>
  std::span<const text_event> step(const PieceT& piece_of = {}) {
    served_.begin_step();
    watch_.lap();
    if (find_lanes(); lanes_.empty() || rounds_.prompt_rows_beside(n_lanes()) == 0)
      served_.read_prompts(options_.prompt_rows);
    do {
      while (rounds_.n_under_way() < 2 && enqueue()) {
      }
      if (rounds_.n_under_way() > 0) take_in(piece_of);
    } while (served_.events().empty() && rounds_.n_under_way() > 0);
    served_.record().seconds.on_device = watch_.lap();
    return served_.events();
  }

  //! Whether all texts have ended, or are held.
  bool idle() const { return n_running() + n_waiting() == 0; }
  std::int32_t n_running() const { return served_.places().n_served(); }
  std::int32_t n_waiting() const { return served_.texts().n_waiting(); }
  const step_record& last_step() const { return served_.record(); }

 private:
  // The texts that have something left to write: a round writes at least one token.
  void find_lanes() {
    lanes_.clear();
    for (place* p : served_.places().in_turn()) {
      if (p->in_step && p->text->value.written.left() > p->n_under_way) lanes_.push_back(p);
    }
  }
  std::int32_t n_lanes() const { return static_cast<std::int32_t>(lanes_.size()); }

  // Has a round of all texts under way that have something left to write, and parts of others' prompts. False where
  // none has.
  bool enqueue() {
    find_lanes();
    if (lanes_.empty()) return false;
    auto plan = rounds_.plan(n_lanes(), mean_size(), served_.reads());
    const bool drafts = plan.drafts();
    if (drafts && std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return !p->drafted; })) {
      if (rounds_.n_under_way() > 0) return false;  // first the host learns what was written without a draft
      for (place* p : lanes_) {
        if (!p->drafted) served_.attempt(*p, [&] { served_.follow(*p, p->n_drafted); });
      }
    }
    chunks_.clear();
    if (plan.n_prompt_rows > 0) served_.plan_chunks(plan.n_prompt_rows, chunks_);
    std::int32_t longest = 0;
    for (place* p : lanes_) {
      if (p->text == nullptr) continue;
      const std::int32_t most = p->text->value.written.size() + (p->n_under_way + 2) * (rounds_.max_nodes() + 1);
      if (served_.ensure(*p, (std::min)(most, rounds_.context()))) longest = (std::max)(longest, most);
    }
    // Whoever has lost its place is not there: with fewer texts rounds may draft again.
    if (std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return p->text == nullptr; })) return enqueue();
    const auto at = [&](const prompt_chunk& c) -> place& { return served_.places().at(c.place); };
    std::erase_if(chunks_, [&](const prompt_chunk& c) { return at(c).text == nullptr; });
    if (chunks_.empty()) plan.n_prompt_rows = 0;
    ticket& t = under_way_[next_ticket_];
    t.texts.clear(), t.readers.clear();
    for (const prompt_chunk& c : chunks_) {
      t.readers.push_back({&at(c), at(c).turn, c.first + c.n});
      longest = (std::max)(longest, c.first + c.n);
    }
    t.n_rows = plan.n_rows + plan.n_prompt_rows;
    t.drafts = drafts;
    numbers_.clear();
    for (place* p : lanes_) {
      t.texts.push_back({p, p->turn});
      numbers_.push_back(p->number);
      ++p->n_under_way;
      p->drafted = p->drafted && (drafts || !rounds_type::draft_falls_behind);
    }
    try {
      rounds_.enqueue(numbers_, longest, plan, chunks_);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      served_.give_up();
      for (place* p : lanes_)
        served_.fail(*p, error);
      for (const typename ticket::participant& r : t.readers)
        served_.fail(*r.at, error);
      return false;
    }
    for (const prompt_chunk& c : chunks_)
      served_.attempt(at(c), [&] { served_.reads_on(at(c), c.n); });
    next_ticket_ = 1 - next_ticket_;
    return true;
  }

  // Tokens of a text, of those that take part.
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
    served_.record().target_rows += t.n_rows;
    for (std::size_t lane = 0; lane < t.texts.size(); ++lane) {
      if (!t.texts[lane].is_there()) continue;
      place& p = *t.texts[lane].at;
      --p.n_under_way;
      try {
        espalier::detail::require_pieces<PieceT>(p.text->value.written);
        arrived.raise_fault(lane);
        commit(p, arrived, arrived.outcomes[lane], t.drafts, piece_of);
      } catch (...) {
        served_.fail(p, std::current_exception());
      }
    }
    for (const typename ticket::participant& r : t.readers) {
      if (!r.is_there()) continue;
      arrived.failure ? served_.fail(*r.at, arrived.failure) : served_.has_read(*r.at, r.n_read);
    }
    // Of several failures the first alone is told: whether the pass behind this one has read its prompts is not known.
    if (arrived.failure && rounds_.n_under_way() > 0 && !under_way_[1 - next_ticket_].readers.empty())
      served_.give_up();
  }

  template <class PieceT>
  void commit(place& p, const typename rounds_type::arrival& arrived, const detail::round_outcome& outcome, bool drafts,
              const PieceT& piece_of) {
    const tree_view tree = arrived.tree(p.number);
    entry& e = *p.text;
    text& t = e.value.written;
    const std::int32_t held = t.size() - 1;
    const round_record round = detail::take_round(t, tree, outcome.decision, outcome.ends, piece_of);
    rounds_.remember(p.number, t.tokens(), held, t.size() - 1);
    if (drafts || !rounds_type::draft_falls_behind) p.n_drafted = t.size() - 1;
    served_.tell(p, round, tree.n_draws, arrived.learnt_at(p.number));
  }

  batch_options options_;
  [[no_unique_address]] ProcessorT processor_;
  rounds_type rounds_;
  detail::served_texts<rounds_type> served_;
  std::vector<place*> lanes_;          // of the round that is enqueued
  std::vector<std::int32_t> numbers_;  // their places
  std::vector<prompt_chunk> chunks_;   // of prompts that its pass reads
  ticket under_way_[2];
  int next_ticket_ = 0;
  stopwatch watch_;
};

//! Builds a batch_decoder on the device of five parts, and a processor where texts have one: policy, verifier and
//! processor are moved, of the others lvalues are kept by reference.
//!
//! Without `replay`, each round is enqueued anew: for backends that a graph cannot capture. With `costs`, rounds have
//! as many rows as pay.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
batch_decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT, ProcessorT> make_batch_decoder(
    DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
    batch_options options = {}, bool replay = true, std::optional<cost_model> costs = {}, ProcessorT processor = {}) {
  return {std::forward<DrafterT>(drafter),
          std::move(policy),
          std::move(verifier),
          std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend),
          std::move(options),
          replay,
          std::move(costs),
          std::move(processor)};
}

}  // namespace espalier::cuda
