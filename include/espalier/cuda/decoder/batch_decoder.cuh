// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/decoder/take_round.cuh"
#include "espalier/cuda/decoder/text_place.cuh"
#include "espalier/cuda/decoder/text_rounds.cuh"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/no_pieces.hpp"
#include "espalier/decoder/step_record.hpp"
#include "espalier/decoder/stopwatch.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_event.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/decoder/text_table.hpp"

namespace espalier::cuda {

//! Tree speculative decoding of many texts at once on the device: espalier::batch_decoder with parts that live there.
//!
//! All texts' rounds are one round: each launch of a policy, a drafter, the verifier or a store works for all of them,
//! and the target makes one pass. The host enqueues one round ahead of the one whose outcome it takes in. Texts join
//! and leave between rounds, without a word to the others: prompts are read in passes of their own between two rounds,
//! batch_options::prompt_rows of them. Each text has its own sampling, seed and stop conditions; the policy's options
//! are the same for all; what it has learnt is each text's own, as long as the text keeps its place. The text in place
//! i has sequence i of both caches.
//! Where a pass of max_rows has no room for a whole tree of each text, trees are smaller, to plain decoding if need be.
//! Log-probabilities, saved texts and a shared budget are the host's alone.
//!
//! Where pages run out, the last text in turn gives up its place and is read again later. Full pages that a store
//! shares are read once.
//!
//! Complexity  a step on the host: one graph launch, two copies (outcomes, and the trees of all places), one event,
//!             O(texts); on the device as decoder's, with max_nodes() + 1 rows for each text, the number of texts
//!             rounded up to a power of two, or to max_texts. The host waits for no round but the one that it takes in,
//!             except after a failure and where rounds begin to draft again
//! Law         a text is the one that decoder writes with the same parts, prompt, stop conditions and text_options,
//!             whoever else is served, where the backends are batch-invariant; but for what max_rows cuts off trees of
//!             a text that is sampled by another verifier than target_only
//! Errors      as espalier::batch_decoder; option_error for max_rows below max_texts. What a round finds wrong in a text holds that text; what a part throws while
//!             a round is enqueued holds all texts of the round. A text that is held stands at its last committed token
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
class batch_decoder {
  using rounds_type = detail::text_rounds<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using place = detail::text_place;
  using entry = detail::text_places::entry;
  using ticket = detail::round_ticket;

 public:
  batch_decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
                batch_options options = {}, bool replay = true)
      : options_(require_options(options)),
        rounds_(
            std::forward<DrafterT>(drafter), std::move(policy), std::move(verifier), std::forward<KVStoreT>(kv),
            std::forward<BackendT>(backend),
            {.order = options.order, .max_texts = options.max_texts, .max_rows = options.max_rows, .replay = replay}),
        texts_(options),
        places_(options.max_texts) {
    rounds_.check(options.text);
    const auto n = static_cast<std::size_t>(options.max_texts);
    lanes_.reserve(n), numbers_.reserve(n), events_.reserve(n);
    for (ticket& t : under_way_)
      t.texts.reserve(n);
  }

  batch_decoder(const batch_decoder&) = delete;

  //! Adds a text, which waits for its turn: higher priorities go first.
  //!
  //! Errors      as decoder::begin(); input_error where max_waiting texts wait
  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options,
              std::int32_t priority = 0) {
    rounds_.check(options);
    entry& e = texts_.spare({}, n_running());
    e.value.written.begin(prompt, std::move(stop), options, rounds_.context(), rounds_.vocab_size());
    return texts_.add(priority);
  }
  text_id add(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return add(prompt, std::move(stop), options_.text);
  }

  //! Ends a text wherever it is, and forgets it.
  void cancel(text_id id) {
    entry& e = texts_.find(id);
    if (e.stage == espalier::detail::text_stage::served) leave(places_.at(e.place));
    texts_.forget(e);
  }

  //! Goes on with a text that has ended, with `more` tokens in between (or none), or with one that a failure holds,
  //! which keeps its stop conditions. Errors as decoder::resume(); input_error for a text that is neither.
  void resume(text_id id, std::span<const token_id> more = {}, stop_conditions stop = {}) {
    texts_.resume(texts_.find(id), more, std::move(stop), rounds_.context(), rounds_.vocab_size());
  }

  //! Another sample of a text, as it stands now: its further random numbers are those of this stream. Full pages of a
  //! store that shares them are not read again.
  //!
  //! Errors      input_error for a text that has ended, and where max_waiting texts wait
  text_id fork(text_id id, std::uint32_t stream) {
    const entry& from = texts_.find(id);
    texts_.require_running(from.value.written);
    entry& e = texts_.spare({}, n_running());
    e.value = from.value;
    e.value.written.fork(stream);
    return texts_.add(from.priority);
  }

  //! Valid until the text is cancelled, or forgotten after its end. Tokens of a round that is under way are not there.
  const text& current(text_id id) const { return texts_.find(id).value.written; }

  //! Reads prompts, has the next round under way, and takes in the one before. Tells what each text of it has written:
  //! nothing while there are only prompts to read, too. `piece_of` is for stop strings. Valid until the next step.
  template <class PieceT = no_pieces>
  std::span<const text_event> step(const PieceT& piece_of = {}) {
    events_.clear();
    record_ = {};
    watch_.lap();
    seat();
    read_prompts();
    do {
      while (rounds_.n_under_way() < 2 && enqueue()) {
      }
      if (rounds_.n_under_way() > 0) take_in(piece_of);
    } while (events_.empty() && rounds_.n_under_way() > 0);
    record_.seconds.on_device = watch_.lap();
    return events_;
  }

  //! Whether all texts have ended, or are held.
  bool idle() const { return n_running() + n_waiting() == 0; }
  std::int32_t n_running() const { return places_.n_served(); }
  std::int32_t n_waiting() const { return texts_.n_waiting(); }
  const step_record& last_step() const { return record_; }

 private:
  // Texts that wait take free places. Where pages had run out, they wait until a text has left.
  void seat() {
    texts_.sweep();
    if (is_full_ && n_running() > 0) return;
    while (place* p = places_.seat(texts_, rounds_.kv())) {
      rounds_.sample(p->number, p->text->value.written.options().sampling);
      rounds_.forget(p->number);
    }
  }

  // A text leaves its place. Its rows can be found until others need the room.
  void leave(place& p) {
    places_.leave(p);
    is_full_ = false;
  }

  void fail(place& p, std::exception_ptr error) {
    entry& e = *p.text;
    const text& written = e.value.written;
    events_.push_back({e.id, {.index = written.round(), .state = written.state()}, std::move(error)});
    leave(p);
    texts_.hold(e);
  }

  // What is under way is given up: all texts go on from where the host has them.
  void give_up() {
    rounds_.give_up();
    for (place& p : places_.all())
      p.lose_step();
  }

  // Calls f for a text, which is held if it throws.
  template <class FunctionT>
  void attempt(place& p, const FunctionT& f) {
    try {
      f();
    } catch (...) {
      fail(p, std::current_exception());
    }
  }

  // Slots of both caches; where pages have run out, others give up theirs. Whether the text still has its place.
  bool ensure(place& p, std::int32_t n_slots) {
    while (p.text != nullptr) {
      try {
        rounds_.ensure(p.number, n_slots);
        p.holds_rows = true;
        return true;
      } catch (const input_error&) {
        if (!make_room()) fail(p, std::current_exception());
      } catch (...) {
        fail(p, std::current_exception());
      }
    }
    return false;
  }

  // Whether room was made, if only by the text's own place.
  bool make_room() {
    if constexpr (!rounds_type::can_release) return false;
    bool any = false;
    for (place& free : places_.all()) {
      if (free.text != nullptr || !free.holds_rows) continue;
      release(free);
      any = true;
    }
    if (any || n_running() == 1) return any;
    place& last = *places_.in_turn().back();
    entry& e = *last.text;
    leave(last);
    release(last);
    texts_.wait(e);
    is_full_ = true;
    ++record_.preempted;
    return true;
  }

  void release(place& p) {
    rounds_.release(p.number);
    p.holds_rows = false;
  }

  // The prompts of texts that have just come, in turn, as far as a step's rows go.
  void read_prompts() {
    std::int32_t rows = options_.prompt_rows;
    lanes_.assign(places_.in_turn().begin(), places_.in_turn().end());
    for (place* p : lanes_) {
      if (rows > 0 && p->text != nullptr && !p->in_step) attempt(*p, [&] { rows -= read_prompt(*p, rows); });
    }
  }

  // Reads so many tokens of a prompt at most, and gives how many there were.
  std::int32_t read_prompt(place& p, std::int32_t most) {
    const text& t = p.text->value.written;
    const std::int32_t goal = t.size() - 1;
    if (p.is_new) rounds_.put(p.number, t);
    p.is_new = false;
    if (!p.reads) p.n_read = rounds_.adopt(p.number, t.tokens().first(static_cast<std::size_t>(goal)));
    const std::int32_t n = (std::min)(most, goal - p.n_read);
    if (!ensure(p, p.n_read + n + 1)) return 0;
    if (n > 0) {
      p.reads = true;
      rounds_.read(p.number, p.n_read, p.n_read + n);
      rounds_.remember(p.number, t.tokens(), p.n_read, p.n_read + n);
      p.n_read += n;
      record_.prompt_rows += n;
      record_.target_rows += n;
    }
    if (p.n_read < goal) return n;
    if (t.left() == 0) {
      end_unwritten(p);
    } else {
      follow(p, 0);
      p.in_step = true;
    }
    return n;
  }

  // The draft's cache follows the text from here on, of which it has the first n_known tokens.
  void follow(place& p, std::int32_t n_known) {
    const text& t = p.text->value.written;
    rounds_.begin_draft(p.number, t.tokens(), n_known);
    p.drafted = true;
    p.n_drafted = t.size() - 1;
  }

  // A text that was only to be read.
  void end_unwritten(place& p) {
    entry& e = *p.text;
    e.value.written.end();
    events_.push_back({e.id, {.state = e.value.written.state()}, {}});
    leave(p);
    texts_.end(e);
  }

  // Has a round of all texts under way that have something left to write. False where none has.
  bool enqueue() {
    lanes_.clear();
    for (place* p : places_.in_turn()) {
      // A round writes at least one token.
      if (p->in_step && p->text->value.written.left() > p->n_under_way) lanes_.push_back(p);
    }
    if (lanes_.empty()) return false;
    const bool drafts = rounds_.drafts(static_cast<std::int32_t>(lanes_.size()));
    if (drafts && std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return !p->drafted; })) {
      if (rounds_.n_under_way() > 0) return false;  // first the host learns what was written without a draft
      for (place* p : lanes_) {
        if (!p->drafted) attempt(*p, [&] { follow(*p, p->n_drafted); });
      }
    }
    std::int32_t longest = 0;
    for (place* p : lanes_) {
      if (p->text == nullptr) continue;
      const std::int32_t most = p->text->value.written.size() + (p->n_under_way + 2) * (rounds_.max_nodes() + 1);
      if (ensure(*p, (std::min)(most, rounds_.context()))) longest = (std::max)(longest, most);
    }
    // Whoever has lost its place is not there: with fewer texts rounds may draft again.
    if (std::any_of(lanes_.begin(), lanes_.end(), [](const place* p) { return p->text == nullptr; })) return enqueue();
    ticket& t = under_way_[next_ticket_];
    t.texts.clear();
    t.drafts = drafts;
    numbers_.clear();
    for (place* p : lanes_) {
      t.texts.push_back({p, p->turn});
      numbers_.push_back(p->number);
      ++p->n_under_way;
      p->drafted = p->drafted && (drafts || !rounds_type::draft_falls_behind);
    }
    try {
      rounds_.enqueue(numbers_, longest);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      give_up();
      for (place* p : lanes_)
        fail(*p, error);
      return false;
    }
    next_ticket_ = 1 - next_ticket_;
    return true;
  }

  template <class PieceT>
  void take_in(const PieceT& piece_of) {
    const ticket& t = under_way_[rounds_.n_under_way() == 2 ? next_ticket_ : 1 - next_ticket_];
    const auto arrived = rounds_.wait(t.texts.size());
    record_.target_rows += rounds_.rows_of(static_cast<std::int32_t>(t.texts.size()));
    for (std::size_t lane = 0; lane < t.texts.size(); ++lane) {
      place& p = *t.texts[lane].at;
      if (p.text == nullptr || p.turn != t.texts[lane].turn) continue;
      --p.n_under_way;
      try {
        espalier::detail::require_pieces<PieceT>(p.text->value.written);
        rounds_.raise_fault(arrived, lane);
        commit(p, arrived.tree(p.number), arrived.outcomes[lane].decision, t.drafts, piece_of);
      } catch (...) {
        fail(p, std::current_exception());
      }
    }
  }

  template <class PieceT>
  void commit(place& p, tree_view tree, verdict decision, bool drafts, const PieceT& piece_of) {
    entry& e = *p.text;
    text& t = e.value.written;
    const std::int32_t held = t.size() - 1;
    const round_record round = detail::take_round(t, tree, decision, piece_of);
    rounds_.remember(p.number, t.tokens(), held, t.size() - 1);
    if (drafts || !rounds_type::draft_falls_behind) p.n_drafted = t.size() - 1;
    ++record_.rounds;
    record_.committed += static_cast<std::int32_t>(round.committed.size());
    record_.drafted += tree.n_draws;
    events_.push_back({e.id, round, {}});
    if (t.running()) return;
    leave(p);
    texts_.end(e);
  }

  batch_options options_;
  rounds_type rounds_;
  detail::text_places::table texts_;
  detail::text_places places_;
  std::vector<place*> lanes_;          // of the round that is enqueued, or texts that are gone through
  std::vector<std::int32_t> numbers_;  // their places
  ticket under_way_[2];
  int next_ticket_ = 0;
  bool is_full_ = false;  // pages have run out, and no text has left since
  std::vector<text_event> events_;
  step_record record_;
  stopwatch watch_;
};

//! Builds a batch_decoder on the device of five parts: policy and verifier are moved, of the others lvalues are kept by
//! reference.
//!
//! Without `replay`, each round is enqueued anew: for backends that a graph cannot capture.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
batch_decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT> make_batch_decoder(
    DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
    batch_options options = {}, bool replay = true) {
  return {std::forward<DrafterT>(drafter),
          std::move(policy),
          std::move(verifier),
          std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend),
          std::move(options),
          replay};
}

}  // namespace espalier::cuda
