// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/batch_decoder.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/saved_text.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier::detail {

// The stage of a text's life in a batch.
enum class text_stage {
  waiting,  // the text waits for a place
  served,   // it has a place
  held,     // a part has failed: the text waits for resume()
  ended,
  cancelled,  // the text is forgotten, but a pass under way has rows of it: it keeps its place until the pass ends
};

// One text of a batch.
template <class PolicyT, class ProcessorT = no_processor>
struct batch_text {
  saved_text<PolicyT, ProcessorT> value;
  text_id id = -1;
  std::int32_t priority = 0;
  text_stage stage = text_stage::waiting;
  std::int32_t place = -1;  // number of the place where it is served

  // Whether the text comes before another one in turn: by priority, then in the order of arrival.
  bool before(const batch_text& other) const {
    return priority != other.priority ? priority > other.priority : id < other.id;
  }
};

// The texts that a batch_decoder knows, by number and by turn. Memory of texts that are forgotten is used again.
template <class PolicyT, class ProcessorT = no_processor>
class text_table {
 public:
  using entry = batch_text<PolicyT, ProcessorT>;

  // Makes an empty table for as many waiting and ended texts as the options say.
  explicit text_table(const batch_options& options)
      : max_ended_(static_cast<std::size_t>(options.max_ended)),
        max_waiting_(options.max_waiting),
        max_texts_(options.max_texts) {}

  std::int32_t n_waiting() const { return static_cast<std::int32_t>(waiting_.size()); }

  // Returns the text with this number. Errors: input_error if there is none.
  entry& find(text_id id) const {
    const auto at =
        std::lower_bound(known_.begin(), known_.end(), id, [](const entry* e, text_id i) { return e->id < i; });
    if (at == known_.end() || (*at)->id != id) {
      raise<input_error>("text ", id, " is not known: ",
                         id >= 0 && id < next_ ? "it was cancelled, or has ended, and later ones after it."
                                               : "add() and fork() give the numbers of texts.");
    }
    return **at;
  }

  static void require_running(const text& t) {
    if (!t.running())
      raise<input_error>("the text has not begun, or has ended: resume() goes on with one that has ended.");
  }

  // Returns memory for a text, which add() then makes known. Errors: input_error if too many wait already.
  entry& spare(const PolicyT& policy, std::int32_t n_served, const ProcessorT& processor = {}) {
    if (n_waiting() >= max_waiting_ + max_texts_ - n_served) {
      raise<input_error>(n_waiting(), " texts wait already, and no more than max_waiting (", max_waiting_,
                         ") may, besides those for which there are free places (", max_texts_ - n_served,
                         "): add the text later, or raise max_waiting.");
    }
    if (!spare_) {
      if (free_.empty()) {
        all_.push_back({{{}, policy, false, processor}});
        known_.reserve(all_.size()), free_.reserve(all_.size()), waiting_.reserve(all_.size());
        ended_.reserve(all_.size() + 1);
        free_.push_back(&all_.back());
      }
      spare_ = free_.back();
      free_.pop_back();
    }
    return *spare_;
  }

  // Makes the text in the memory of spare() known: it then waits for a place. Returns the text's number.
  text_id add(std::int32_t priority) {
    entry& e = *std::exchange(spare_, nullptr);
    e.id = next_++;
    e.priority = priority;
    known_.push_back(&e);
    wait(e);
    return e.id;
  }

  void wait(entry& e) {
    if (e.stage == text_stage::ended) std::erase(ended_, &e);
    e.stage = text_stage::waiting;
    e.place = -1;
    // The text whose turn is next stands last.
    waiting_.insert(std::lower_bound(waiting_.begin(), waiting_.end(), &e,
                                     [](const entry* a, const entry* b) { return b->before(*a); }),
                    &e);
  }

  // Goes on with a text that has ended, or that a failure holds. Errors: as batch_decoder::resume().
  void resume(text_id id, std::span<const token_id> more, stop_conditions stop, std::int32_t context,
              std::int32_t vocab_size) {
    entry& e = find(id);
    if (e.stage == text_stage::held) {
      if (more.empty() && stop == stop_conditions()) return wait(e);
      raise<input_error>("text ", e.id, " cannot take more tokens or other stop conditions: a failure holds it.");
    }
    if (e.stage != text_stage::ended) raise<input_error>("text ", e.id, " is still written.");
    e.value.written.resume(more, std::move(stop), context, vocab_size);
    e.value.policy_in_step = false;
    e.value.read_again();
    wait(e);
  }

  // Returns the text that is to be served next, or nullptr if none waits.
  entry* next() const { return waiting_.empty() ? nullptr : waiting_.back(); }
  void serve_next(std::int32_t place) {
    entry& e = *waiting_.back();
    waiting_.pop_back();
    e.stage = text_stage::served;
    e.place = place;
  }

  void hold(entry& e) {
    e.stage = text_stage::held;
    e.place = -1;
  }

  void end(entry& e) {
    e.stage = text_stage::ended;
    e.place = -1;
    ended_.push_back(&e);
  }

  // Forgets the texts that ended first, as long as more have ended than are kept.
  void sweep() {
    while (ended_.size() > max_ended_)
      forget(*ended_.front());
  }

  void forget(entry& e) {
    if (e.stage == text_stage::waiting) std::erase(waiting_, &e);
    if (e.stage == text_stage::ended) std::erase(ended_, &e);
    if (e.stage != text_stage::cancelled) std::erase(known_, &e);
    free_.push_back(&e);
  }

  // Makes a text unknown, though it keeps its place for a while: forget() comes later.
  void hide(entry& e) {
    e.stage = text_stage::cancelled;
    std::erase(known_, &e);
  }

 private:
  std::size_t max_ended_;
  std::int32_t max_waiting_, max_texts_;
  text_id next_ = 0;
  std::deque<entry> all_;
  std::vector<entry*> known_, free_, waiting_, ended_;
  entry* spare_ = nullptr;
};

}  // namespace espalier::detail
