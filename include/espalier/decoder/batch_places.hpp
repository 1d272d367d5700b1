// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/schedule.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_table.hpp"

namespace espalier::detail {

// How far a text has come in its place of the batch.
enum class place_stage {
  arrived,  // the rows of the place in the caches are not the text's yet
  waits,    // another text computes rows that both begin with
  begun,    // the prompt is being read, or the text is being written
};

// One text's place in a batch: the data that the decoders of host and device both need. The place with number i has
// sequence i of each cache.
template <class EntryT>
struct batch_place {
  using entry = EntryT;

  std::int32_t number = 0;
  EntryT* text = nullptr;  // none: the place is free
  place_stage stage = place_stage::arrived;
  seat_task task{};                // in the pass that was planned last
  std::int32_t n_passed_over = 0;  // number of consecutive passes, the latest ones, that had no room for the text

  bool has_begun() const { return stage == place_stage::begun; }
  bool draws() const { return text != nullptr && task.kind == pass_task::round; }
  std::span<const token_id> tokens() const { return text->value.written.tokens(); }
};

#if ESPALIER_EXCEPTIONS
// Returns the sentence of an exception.
inline std::string sentence_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    if (*known.what() != '\0') return known.what();
  } catch (...) {
  }
  return "a part has thrown an exception without a message.";
}
#endif

// The texts of a batch decoder and their places: which texts are served, whose turn it is, which text gives up its
// place or fails, and the events of a step. Base of the batch decoders of host and device, which settle texts in their
// places, make passes, and take the results.
//
// PlaceT is a batch_place with
//   arrive()                  its text has just taken the place
//   leave()                   its text is about to leave; the caches' rows may be found again
//   holds_rows(), release()   whether the caches hold rows of the place; gives them up, if releases_rows is true
//   as_seat()                 the text as plan_step() sees it; called once the place has begun
//   as_reading()              the text as waits_for() sees it; called at any time
//   page_size()               rows of a page: a text waits for whole pages of another text's rows
template <class PlaceT, class TableT>
class batch_places {
 public:
  batch_places(const batch_places&) = delete;

  //! Ends a text, whether it waits, is served, is held or has ended, and forgets it. Between two halves of a step a
  //! served text keeps its place, and its rows of the caches, until the pass under way ends.
  void cancel(text_id id) {
    entry& e = texts_.find(id);
    const bool is_served = e.stage == text_stage::served;
    if (is_served && is_pass_outside_) return texts_.hide(e);
    if (is_served) leave(at(e.place));
    texts_.forget(e);
  }

  //! Adds another sample of a text, as it stands now, and returns its number. Its further random numbers are those of
  //! this stream; its priority is the text's, unless another one is given. Rows of a store that shares them are not
  //! computed again.
  //!
  //! Errors      input_error for a text that is not known or has ended, and if too many texts wait: see
  //!             batch_options::max_waiting
  text_id fork(text_id id, std::uint32_t stream, std::optional<std::int32_t> priority = {}) {
    const entry& from = texts_.find(id);
    texts_.require_running(from.value.written);
    entry& e = texts_.spare(from.value.policy, n_running(), from.value.processor);
    e.value = from.value;
    e.value.written.fork(stream);
    return texts_.add(priority.value_or(from.priority));
  }

  //! Returns a text as the host has it: tokens of a round that is under way are not there. Valid until the text is
  //! cancelled, or forgotten after its end.
  const text& current(text_id id) const { return texts_.find(id).value.written; }

  //! The events of the step under way so far, or of the last step; valid until the next step.
  std::span<const text_event> events() const { return events_; }

  //! Whether all texts have ended, or are held.
  bool idle() const { return n_running() + n_waiting() == 0; }
  //! Number of texts that have a place.
  std::int32_t n_running() const {
    return static_cast<std::int32_t>(
        std::count_if(in_turn_.begin(), in_turn_.end(), [](const place* p) { return p->text != nullptr; }));
  }
  //! Number of texts that wait for a place.
  std::int32_t n_waiting() const { return texts_.n_waiting(); }
  //! Times and counts of the last step.
  const step_record& last_step() const { return record_; }

 protected:
  using place = PlaceT;
  using table = TableT;
  using entry = typename table::entry;

  // Makes an object that has no places: add_place() adds them.
  explicit batch_places(const batch_options& options) : texts_(options), limit_{.n_places = options.max_texts} {
    const auto n = static_cast<std::size_t>(options.max_texts);
    in_turn_.reserve(n), seats_.reserve(n), tasks_.reserve(n), events_.reserve(n);
  }
  ~batch_places() = default;

  // Makes one more place of these arguments.
  template <class... ArgumentsT>
  void add_place(ArgumentsT&&... arguments) {
    const auto number = static_cast<std::int32_t>(places_.size());
    places_.emplace_back(std::forward<ArgumentsT>(arguments)...).number = number;
  }

  table& texts() { return texts_; }
  const table& texts() const { return texts_; }
  step_record& record() { return record_; }
  std::deque<place>& all_places() { return places_; }
  // The places with a text, in turn; during a step also the places whose text has left in this step.
  std::span<place* const> in_turn() const { return in_turn_; }
  place& at(std::int32_t i) { return places_[static_cast<std::size_t>(i)]; }

  // Forgets what the last step told, and gives free places to texts that wait, in turn: to each the place whose rows
  // have most in common with it. If pages have run out, no more texts are seated than can go on (seat_limit), except a
  // text of a higher priority than the last text in turn: the last text would then give way to it.
  template <class KVStoreT>
  void seat_texts(const KVStoreT& kv) {
    events_.clear();
    record_ = {};
    texts_.sweep();
    std::erase_if(in_turn_, [](const place* p) { return p->text == nullptr; });
    while (entry* e = texts_.next()) {
      if (std::ssize(in_turn_) >= limit_.most && e->priority <= in_turn_.back()->text->priority) return;
      place* const p = best_place(kv, e->value.written.tokens());
      if (p == nullptr) return;
      texts_.serve_next(p->number);
      p->text = e;
      p->stage = place_stage::arrived;
      p->task = {};
      p->n_passed_over = 0;
      const auto goes_before = [](const place* a, const place* b) { return a->text->before(*b->text); };
      in_turn_.insert(std::upper_bound(in_turn_.begin(), in_turn_.end(), p, goes_before), p);
      p->arrive();  // which may throw
    }
  }

  // True if a text is to wait for a text before it, which computes rows with which both begin. Pre: the text has taken
  // the rows that other sequences hold of it
  bool waits(const place& p) const {
    const reading own = p.as_reading();
    for (const place* q : in_turn_) {
      if (q == &p) return false;
      if (q->text != nullptr && waits_for(own, q->as_reading(), p.page_size())) return true;
    }
    return false;
  }

  // Plans the next pass: each place has its task then.
  pass_plan plan(const pass_limits& limits) {
    seats_.clear();
    for (const place* p : in_turn_) {
      seats_.push_back(p->text != nullptr && p->has_begun() ? p->as_seat() : seat());
      seats_.back().n_passed_over = p->n_passed_over;
    }
    tasks_.resize(seats_.size());
    const pass_plan planned = plan_step(seats_, limits, tasks_);
    for (std::size_t i = 0; i < in_turn_.size(); ++i)
      in_turn_[i]->task = tasks_[i];
    return planned;
  }
  // Notes that the planned pass is made: texts that found no room in it have been passed over once more.
  void begin_pass() {
    for (place* p : in_turn_)
      p->n_passed_over = p->task.is_passed_over ? p->n_passed_over + 1 : 0;
  }

  // Notes that a pass with rows of texts is made outside (true), or is over (false): texts that were cancelled in the
  // meantime then leave their places.
  void set_pass_outside(bool outside) {
    is_pass_outside_ = outside;
    if (outside) return;
    for (place* p : in_turn_) {
      if (p->text == nullptr || p->text->stage != text_stage::cancelled) continue;
      entry& e = *p->text;
      leave(*p);
      texts_.forget(e);
    }
  }

  // require_no_pass() checks that no pass is made outside, require_pass() that one is.
  //
  // Errors      input_error if it is not so
  void require_no_pass() const {
    if (is_pass_outside_)
      raise<input_error>(
          "a pass is under way: end_step(), fail_pass() or give_up() comes before another step of this decoder.");
  }
  void require_pass() const {
    if (!is_pass_outside_) raise<input_error>("no pass is under way: begin_step() comes first.");
  }

  // Adds an event: what a text has done. A text that has ended leaves its place.
  void tell(place& p, const round_record& round) {
    entry& e = *p.text;
    events_.push_back({e.id, round, {}, {}});
    if (e.value.written.running()) return;
    leave(p);
    texts_.end(e);
    limit_.end();
  }

  // Adds an event: a text has failed. The text is held.
  void fail(place& p, std::exception_ptr error, std::string message) {
    entry& e = *p.text;
    const text& written = e.value.written;
    const round_record round{.index = written.round(), .state = written.state()};
    events_.push_back({e.id, round, std::move(error), std::move(message)});
    leave(p);
    texts_.hold(e);
  }

#if ESPALIER_EXCEPTIONS
  void fail(place& p, const std::exception_ptr& error) {
    fail(p, error, sentence_of(error));
  }
#endif

  // Calls f for a text. If f raises an error, the text fails with it.
  template <class FunctionT>
  void attempt(place& p, const FunctionT& f) {
    attempt_all(f, [&](const auto& fail) { fail(p); });
  }
  // Calls f for the texts of a pass. If f raises an error, whose(fail) is called, which calls fail(place) for each of
  // them.
  template <class FunctionT, class WhoseT>
  void attempt_all(const FunctionT& f, const WhoseT& whose) {
#if ESPALIER_EXCEPTIONS
    try {
      f();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      whose([&](place& p) { fail(p, error); });
    }
#else
    std::string message;
    if (!detail::attempt(f, message)) whose([&](place& p) { fail(p, {}, message); });
#endif
  }

  // Makes room in the caches for a text: places without a text give up their rows; if none of them has rows, the last
  // text in turn gives up its place and its rows. Returns false where the text may not try again: it was the last, it
  // is alone, or caches cannot release rows.
  bool make_room(place& p) {
    if constexpr (!PlaceT::releases_rows) return false;
    bool any = false;
    for (place& free : places_) {
      if (free.text != nullptr || !free.holds_rows()) continue;
      free.release();
      any = true;
    }
    if (any || n_running() == 1) return any;
    const auto is_served = [](const place* q) { return q->text != nullptr; };
    place& last = **std::find_if(in_turn_.rbegin(), in_turn_.rend(), is_served);
    entry& e = *last.text;
    leave(last);
    last.release();
    texts_.wait(e);
    limit_.run_out(n_running());
    ++record_.preempted;
    return &last != &p;
  }

 private:
  // Takes a text from its place. Its rows can be found until others need the room.
  void leave(place& p) {
    p.leave();
    p.text = nullptr;
    p.task = {};
  }

  // Returns the free place whose rows have most in common with a text; nullptr where all are taken.
  template <class KVStoreT>
  place* best_place(const KVStoreT& kv, std::span<const token_id> tokens) {
    place* best = nullptr;
    std::ptrdiff_t most = -1;
    for (place& p : places_) {
      if (p.text != nullptr) continue;
      std::ptrdiff_t common = 0;
      if constexpr (RemembersTokens<KVStoreT>) {
        const std::span<const token_id> held = kv.prefix(p.number);
        common = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
      }
      if (common > most) most = common, best = &p;
    }
    return best;
  }

  table texts_;
  std::deque<place> places_;  // a deque, so that places do not move
  std::vector<place*> in_turn_;
  std::vector<seat> seats_;       // [in_turn_] the texts as the plan of the next pass sees them
  std::vector<seat_task> tasks_;  // [in_turn_] the plan
  std::vector<text_event> events_;
  step_record record_;
  seat_limit limit_;
  bool is_pass_outside_ = false;  // see set_pass_outside()
};

}  // namespace espalier::detail
