// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/decoder/text_place.cuh"
#include "espalier/decoder/batch_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/step_record.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_event.hpp"
#include "espalier/decoder/text_table.hpp"

namespace espalier::cuda::detail {

// The texts of a batch_decoder on the device: who has a place, whose prompt is read, who has failed or has to give way,
// and what a step tells of it all. RoundsT is text_rounds, which must stay.
template <class RoundsT>
class served_texts {
  using all_places = text_places<typename RoundsT::processor_type>;
  using place = typename all_places::place;
  using entry = typename all_places::entry;
  using table = typename all_places::table;

 public:
  served_texts(RoundsT& rounds, const batch_options& options)
      : rounds_(&rounds), texts_(options), places_(options.max_texts) {
    events_.reserve(static_cast<std::size_t>(options.max_texts));
    readers_.reserve(events_.capacity()), reading_.reserve(events_.capacity());
  }

  table& texts() { return texts_; }
  const table& texts() const { return texts_; }
  all_places& places() { return places_; }
  const all_places& places() const { return places_; }
  std::span<const text_event> events() const { return events_; }
  step_record& record() { return record_; }
  const step_record& record() const { return record_; }

  // Forgets what was told, and seats those whose turn it is.
  void begin_step() {
    events_.clear();
    record_ = {};
    seat();
  }

  // A round of a text was taken in, with what is known of the text since: its event, and its end if this was the last.
  void tell(place& p, const round_record& round, std::int32_t n_drafted, std::span<const std::byte> learnt) {
    entry& e = *p.text;
    e.value.policy.learnt.assign(learnt.begin(), learnt.end());
    ++record_.rounds;
    record_.committed += static_cast<std::int32_t>(round.committed.size());
    record_.drafted += n_drafted;
    events_.push_back({e.id, round, {}});
    if (e.value.written.running()) return;
    leave(p);
    texts_.end(e);
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

  // What is under way is given up: all texts go on from where the host has them, with rows that it knows to be there.
  void give_up() {
    rounds_->give_up();
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
        rounds_->ensure(p.number, n_slots);
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

  // Whether a prompt is to be read.
  bool reads() const {
    const auto in_turn = places_.in_turn();
    return std::any_of(in_turn.begin(), in_turn.end(), [](const place* p) { return !p->in_step; });
  }

  // The prompts of texts that have just come, in turn, as far as so many rows go, in passes of their own.
  void read_prompts(std::int32_t rows) {
    const auto is_known = [](const place& p) { return p.n_read == p.n_known; };  // or else it waits for its round
    each_chunk(rows, places_.all().size(), is_known, [&](place& p, std::int32_t n) {
      if (n > 0) rounds_->read(p.number, p.n_read, p.n_read + n);
      record_.target_rows += n;
      reads_on(p, n);
      has_read(p, p.n_read);
    });
  }

  // The same as chunks of a round's pass: reads_on() is to be called for each once the round is under way, and
  // has_read() when it has come over.
  void plan_chunks(std::int32_t rows, std::vector<prompt_chunk>& chunks) {
    const auto most = static_cast<std::size_t>(rounds_->max_chunks(rows));
    const auto any = [](const place&) { return true; };
    each_chunk(rows, most, any, [&](place& p, std::int32_t n) {
      if (n > 0) {
        chunks.push_back({.place = p.number, .first = p.n_read, .n = n});
      } else {
        reads_on(p, 0);
        has_read(p, p.n_read);
      }
    });
  }

  // The next n tokens of a prompt are about to be read, in the stream's order: rounds may begin once all are.
  void reads_on(place& p, std::int32_t n) {
    const text& t = p.text->value.written;
    p.reads = p.reads || n > 0;
    p.n_read += n;
    record_.prompt_rows += n;
    if (p.n_read < t.size() - 1) return;
    if (t.left() > 0) follow(p, 0);
    p.in_step = true;
  }

  // The first n_read tokens of a text have been read: no sooner does another text begin with their rows. A text that
  // was only to be read has ended then.
  void has_read(place& p, std::int32_t n_read) {
    entry& e = *p.text;
    text& t = e.value.written;
    if (p.n_known < n_read) rounds_->remember(p.number, t.tokens(), p.n_known, n_read);
    p.n_known = n_read;
    if (n_read < t.size() - 1 || t.left() > 0) return;
    t.end();
    events_.push_back({e.id, {.state = t.state()}, {}});
    leave(p);
    texts_.end(e);
  }

  // The draft's cache follows the text from here on, of which it has the first n_known tokens.
  void follow(place& p, std::int32_t n_known) {
    const text& t = p.text->value.written;
    rounds_->begin_draft(p.number, t.tokens(), n_known);
    p.drafted = true;
    p.n_drafted = t.size() - 1;
  }

 private:
  // Texts that wait take free places. Where pages had run out, they wait until a text has left.
  void seat() {
    texts_.sweep();
    if (is_full_ && places_.n_served() > 0) return;
    while (place* p = places_.seat(texts_, rounds_->kv())) {
      rounds_->sample(p->number, p->text->value.written.options().sampling);
    }
  }

  // Whether room was made, if only by the text's own place.
  bool make_room() {
    if constexpr (!RoundsT::can_release) return false;
    bool any = false;
    for (place& free : places_.all()) {
      if (free.text != nullptr || !free.holds_rows) continue;
      release(free);
      any = true;
    }
    if (any || places_.n_served() == 1) return any;
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
    rounds_->release(p.number);
    p.holds_rows = false;
  }

  // Calls take(place, n) for those texts that have not begun and are wanted(place), in turn: the next n tokens of each,
  // `rows` in all and of `most` texts at most, for which both caches have room. A text that begins like one before it
  // waits, and then begins with its rows.
  template <class WantedT, class FunctionT>
  void each_chunk(std::int32_t rows, std::size_t most, const WantedT& wanted, const FunctionT& take) {
    readers_.assign(places_.in_turn().begin(), places_.in_turn().end());
    std::vector<place*>& now = reading_;
    now.clear();
    for (place* p : readers_) {
      if (rows == 0 || now.size() == most) return;
      if (p->text == nullptr || p->in_step || !wanted(*p)) continue;
      attempt(*p, [&] {
        const text& t = p->text->value.written;
        const std::int32_t goal = t.size() - 1;
        if (p->is_new) {
          rounds_->put(p->number, t);
          rounds_->follow(p->number, t, p->text->value.processor);
          rounds_->learn(p->number, p->text->value.policy.learnt);
        }
        p->is_new = false;
        if (!p->reads) {
          p->n_read = p->n_known = rounds_->adopt(p->number, t.tokens().first(static_cast<std::size_t>(goal)));
          const auto is_read = [&](const place* q) { return q->n_read > q->n_known && has_more_of(*q, *p); };
          const auto is_to_be_read = [&](const place* q) { return !q->in_step && has_more_of(*q, *p); };
          const auto in_turn = places_.in_turn();
          if (std::any_of(in_turn.begin(), in_turn.end(), is_read)) return;
          if (std::any_of(now.begin(), now.end(), is_to_be_read)) return;
        }
        const std::int32_t n = (std::min)(rows, goal - p->n_read);
        if (!ensure(*p, p->n_read + n + 1)) return;
        rows -= n;
        if (n > 0) now.push_back(p);
        take(*p, n);
      });
    }
  }

  // Whether a text that is being read has more of another one's beginning than that one has found.
  bool has_more_of(const place& reader, const place& p) const {
    if constexpr (!RoundsT::shares_rows) return false;
    if (reader.text == nullptr) return false;
    const auto its = reader.text->value.written.tokens(), own = p.text->value.written.tokens();
    const auto common = std::mismatch(own.begin(), own.end(), its.begin(), its.end()).first - own.begin();
    return common > p.n_read + 1 && common > reader.n_known;
  }

  RoundsT* rounds_;
  table texts_;
  all_places places_;
  std::vector<place*> readers_, reading_;  // that are gone through, and that read
  bool is_full_ = false;                   // pages have run out, and no text has left since
  std::vector<text_event> events_;
  step_record record_;
};

}  // namespace espalier::cuda::detail
