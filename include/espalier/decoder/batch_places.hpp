// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_event.hpp"
#include "espalier/decoder/text_table.hpp"

namespace espalier::detail {

enum class batch_task {
  none,
  chunk,  // a part of the prompt is read
  round,
};

// Where a text may be served: in one sequence of the caches.
template <class ServedT, class TableT>
struct batch_place {
  template <class... PartsT>
  explicit batch_place(PartsT&&... parts) : served(std::forward<PartsT>(parts)...) {}

  ServedT served;
  typename TableT::entry* text = nullptr;  // none: the place is free
  batch_task does = batch_task::none;      // in this step
  std::int32_t n_prompt_rows = 0;          // that the text wants, or gets
  bool is_new = false;                     // it has just taken the place
  bool waits = false;                      // for another text to read what both begin with
  bool begun = false;                      // whether its caches follow it
  bool passed_over = false;                // the last pass had no room for it
  std::int32_t n_draft_unread = 0;         // tokens that its drafter has still to read
  bool drafts = true;                      // whether it is drafted for
  bool reads = false;                      // whether its drafter reads a prompt in this step
  bool asked = false;                      // whether its drafter is asked in the pass under way

  bool draws() const { return text != nullptr && does == batch_task::round; }
};

// The places of a batch_decoder, and whose turn it is.
template <class ServedT, class TableT>
class batch_places {
 public:
  using place = batch_place<ServedT, TableT>;
  using table = TableT;
  using entry = typename table::entry;

  template <class MakeT>
  batch_places(std::int32_t n, const MakeT& make) {
    for (std::int32_t i = 0; i < n; ++i)
      places_.push_back(make(i));
    in_turn_.reserve(places_.size());
  }

  // Those with a text, and during a step those that have just lost it.
  std::span<place* const> in_turn() const { return in_turn_; }
  place& at(std::int32_t i) { return *places_[static_cast<std::size_t>(i)]; }
  std::int32_t n_served() const {
    return static_cast<std::int32_t>(
        std::count_if(in_turn_.begin(), in_turn_.end(), [](const place* p) { return p->text != nullptr; }));
  }
  std::int32_t n_free() const { return static_cast<std::int32_t>(places_.size()) - n_served(); }

  // Texts that wait take free places. Where pages had run out, they wait until a text has left.
  template <class KVStoreT>
  void seat(table& texts, const KVStoreT& kv) {
    texts.sweep();
    std::erase_if(in_turn_, [](const place* p) { return p->text == nullptr; });
    if (is_full_ && !in_turn_.empty()) return;
    while (entry* t = texts.next()) {
      const std::int32_t i = best_place(kv, t->value.written.tokens());
      if (i < 0) return;
      place& p = at(i);
      texts.serve_next(i);
      p.text = t;
      p.is_new = true;
      p.begun = p.waits = p.passed_over = false;
      const auto goes_before = [](const place* a, const place* b) { return a->text->before(*b->text); };
      in_turn_.insert(std::upper_bound(in_turn_.begin(), in_turn_.end(), &p, goes_before), &p);
    }
  }

  // A text that has not begun takes the rows that others have of it. It waits where another one that begins alike is
  // being read, or will be: what both begin with is computed once.
  template <class KVStoreT>
  void settle(place& p, KVStoreT& kv) {
    const std::span<const token_id> tokens = p.text->value.written.tokens();
    if (p.is_new) p.served.begin(p.text->value);
    if constexpr (SharingKVStore<KVStoreT>) {
      if (p.is_new || p.waits) take_rows(kv, p, tokens.first(tokens.size() - 1));
      const auto end = std::find(in_turn_.begin(), in_turn_.end(), &p);
      p.waits = ServedT::adopts_prompts && !p.text->value.written.scores_prompt() &&
                std::any_of(in_turn_.begin(), end, [&](const place* q) { return reads_for(*q, p); });
    }
    p.is_new = false;
    p.begun = !p.waits;
  }

  // A text leaves its place. Its rows can be found until others need the room.
  void leave(place& p) {
    p.served.give_up(p.text->value);
    p.served.release(false);
    p.text = nullptr;
    p.does = batch_task::none;
    is_full_ = false;
  }

  // A failure holds a text.
  text_event fail(place& p, table& texts, std::exception_ptr error) {
    entry& t = *p.text;
    const text& written = t.value.written;
    leave(p);
    texts.hold(t);
    return {t.id, {.index = written.round(), .state = written.state()}, std::move(error)};
  }

  // A step is over: tells what each text has done. Those that have ended leave.
  void finish(table& texts, std::vector<text_event>& events) {
    for (place* p : in_turn_) {
      if (p->text == nullptr || !p->begun) continue;
      entry& t = *p->text;
      p->served.end_if_read(t.value, p->drafts);
      const bool runs = t.value.written.running();
      if (p->does == batch_task::none && runs) continue;
      p->served.record().state = t.value.written.state();
      events.push_back({t.id, p->served.record(), {}});
      if (runs) continue;
      leave(*p);
      texts.end(t);
    }
  }

  // What is written in this step: so many texts, the tokens before the last that the target sees of each, on average;
  // how many others are served, and the rows of prompts in the same pass.
  struct writing {
    std::int32_t n = 0, context = 0, n_reading = 0, n_prompt_rows = 0;
  };
  writing written() const {
    writing w;
    std::int64_t held = 0;
    for (const place* p : in_turn_) {
      if (p->text == nullptr) continue;
      const bool writes = p->does == batch_task::round;
      (writes ? w.n : w.n_reading) += 1;
      held += writes ? p->served.seen(p->text->value) - 1 : 0;
      if (writes) w.n_prompt_rows += p->served.unread(p->text->value);
      if (p->does == batch_task::chunk) w.n_prompt_rows += p->n_prompt_rows;
    }
    if (w.n > 0) w.context = static_cast<std::int32_t>(held / w.n);
    return w;
  }

  // Whether places without a text held rows, which they have given up now.
  bool release_free() {
    bool any = false;
    for (const auto& p : places_) {
      if (p->text != nullptr || p->served.held() == 0) continue;
      p->served.release(true);
      any = true;
    }
    return any;
  }

  // The last text in turn gives up its place and its rows.
  place& preempt_last(table& texts) {
    const auto last =
        std::find_if(in_turn_.rbegin(), in_turn_.rend(), [](const place* p) { return p->text != nullptr; });
    place& p = **last;
    entry& t = *p.text;
    leave(p);
    p.served.release(true);
    texts.wait(t);
    is_full_ = true;
    return p;
  }

  // Who does what in a step whose pass takes so many rows, so many of them of prompts. A round is taken to need as many
  // rows as it may. Texts that are not drafted for do not wait for their drafters to read.
  void plan(std::int32_t rows, std::int32_t prompt_rows, std::int32_t max_nodes) {
    for (const bool passed_over : {true, false}) {
      for (place* p : in_turn_) {
        if (p->text != nullptr && p->passed_over == passed_over) plan(*p, rows, prompt_rows, max_nodes);
      }
    }
    for (place* p : in_turn_)
      p->passed_over = p->text != nullptr && p->does == batch_task::none && p->n_prompt_rows > 0;
  }

 private:
  void plan(place& p, std::int32_t& rows, std::int32_t& prompt_rows, std::int32_t max_nodes) {
    const auto& t = p.text->value;
    p.does = batch_task::none;
    p.n_prompt_rows = 0;
    if (p.waits) return;
    const bool writes = p.served.writes(t, p.drafts);
    const std::int32_t unread = p.served.unread(t);
    // What a store has dropped of the last round is no prompt.
    const std::int32_t of_prompt = unread > max_nodes ? unread : 0;
    p.n_prompt_rows = writes ? (std::max)(unread, std::int32_t{1}) : p.served.left(t);
    if (writes && of_prompt <= prompt_rows) {
      const std::int32_t n = unread + 1 + (p.drafts ? max_nodes : 0);
      if (n > rows) return;
      rows -= n;
      prompt_rows -= of_prompt;
      p.does = batch_task::round;
      return;
    }
    const std::int32_t n = (std::min)({p.n_prompt_rows, prompt_rows, rows});
    if (n <= 0) return;
    rows -= n;
    prompt_rows -= n;
    p.n_prompt_rows = n;
    p.does = batch_task::chunk;
  }

  // Whether q is about to compute full pages of rows that p lacks.
  static bool reads_for(const place& q, const place& p) {
    if (q.text == nullptr) return false;
    const std::span<const token_id> a = q.text->value.written.tokens(), b = p.text->value.written.tokens();
    const auto common = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    const std::int32_t page = q.served.page_size();
    const std::int32_t shared = static_cast<std::int32_t>((std::min)(common, std::ssize(b) - 1)) / page * page;
    if (!q.begun) return shared > p.served.held();
    return shared > 0 && ((q.drafts && q.n_draft_unread >= page) || q.served.held() < shared);
  }

  // Those in full pages, and those that the sequence of another text holds in a page that is not full, as where this
  // text was forked from it.
  template <class KVStoreT>
  void take_rows(KVStoreT& kv, const place& p, std::span<const token_id> wanted) const {
    const std::int32_t sequence = p.text->place;
    std::int32_t held = kv.adopt(sequence, wanted);
    for (const place* q : in_turn_) {
      if (q->text == nullptr || q == &p) continue;
      const std::span<const token_id> theirs = kv.prefix(q->text->place);
      const auto common =
          std::mismatch(theirs.begin(), theirs.end(), wanted.begin(), wanted.end()).first - theirs.begin();
      if (common <= held) continue;
      kv.fork(q->text->place, sequence);
      held = static_cast<std::int32_t>(common);
      kv.truncate(sequence, held);
    }
  }

  // A free place, the one whose rows have most in common with the text.
  template <class KVStoreT>
  std::int32_t best_place(const KVStoreT& kv, std::span<const token_id> tokens) const {
    std::int32_t best = -1;
    std::ptrdiff_t most = -1;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i]->text != nullptr) continue;
      std::ptrdiff_t common = 0;
      if constexpr (PrefixKVStore<KVStoreT>) {
        const std::span<const token_id> held = kv.prefix(static_cast<std::int32_t>(i));
        common = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
      }
      if (common > most) most = common, best = static_cast<std::int32_t>(i);
    }
    return best;
  }

  std::vector<std::unique_ptr<place>> places_;
  std::vector<place*> in_turn_;
  bool is_full_ = false;  // pages have run out, and no text has left since
};

}  // namespace espalier::detail
