// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/decoder/text_table.hpp"

namespace espalier::cuda::detail {

// The policy is shared by all texts: of its own a text has what was learnt in its rounds, options of its own included,
// as far as they have come over; nothing where it begins as all do.
struct shared_policy {
  std::vector<std::byte> learnt;

  std::int32_t max_nodes() const { return 0; }
};

// Where a text may be served on the device, as the host sees it.
template <class ProcessorT>
struct text_place {
  using entry = espalier::detail::batch_text<shared_policy, ProcessorT>;

  std::int32_t number = 0;
  entry* text = nullptr;         // none: the place is free
  std::int32_t n_read = 0;       // leading tokens of the text in the target's cache, or about to be
  std::int32_t n_known = 0;      // of these, those that the host knows to be there
  std::int32_t n_drafted = 0;    // and of those that the host has, in the draft's
  std::int32_t n_under_way = 0;  // rounds of this text
  bool is_new = false;           // the device does not have the text yet
  bool reads = false;            // its prompt was not found whole, and is being read
  bool in_step = false;          // rounds may begin
  bool drafted = false;          // the draft's cache follows the text
  bool holds_rows = false;       // of the caches, with a text or without
  std::uint64_t turn = 0;        // another one whenever rounds under way are no longer this text's

  // The device has another text than the host, or none.
  void lose_step() {
    n_read = n_known = n_drafted = n_under_way = 0;
    ++turn;
    is_new = true;
    reads = in_step = drafted = false;
  }
};

// The texts of a round under way, by lane, unless they have left their places since: then `turn` is another.
template <class ProcessorT>
struct round_ticket {
  struct participant {
    text_place<ProcessorT>* at;
    std::uint64_t turn;
    std::int32_t n_read = 0;  // tokens of its prompt, with those of this pass
    bool is_there() const { return at->text != nullptr && at->turn == turn; }
  };
  std::vector<participant> texts;
  std::vector<participant> readers;  // whose prompts its pass reads
  std::int32_t n_rows = 0;           // of its pass
  bool drafts = false;
};

// The places of a batch_decoder, and whose turn it is.
template <class ProcessorT>
class text_places {
 public:
  using place = text_place<ProcessorT>;
  using entry = typename place::entry;
  using table = espalier::detail::text_table<shared_policy, ProcessorT>;

  explicit text_places(std::int32_t n) : places_(static_cast<std::size_t>(n)) {
    for (std::int32_t i = 0; i < n; ++i)
      places_[static_cast<std::size_t>(i)].number = i;
    in_turn_.reserve(places_.size());
  }

  place& at(std::int32_t i) { return places_[static_cast<std::size_t>(i)]; }
  std::span<place> all() { return places_; }
  // Those with a text.
  std::span<place* const> in_turn() const { return in_turn_; }
  std::int32_t n_served() const { return static_cast<std::int32_t>(in_turn_.size()); }

  // The text whose turn it is takes the free place whose rows have most in common with it; nullptr where no text waits,
  // or no place is free.
  template <class KVStoreT>
  place* seat(table& texts, const KVStoreT& kv) {
    entry* const e = texts.next();
    if (e == nullptr) return nullptr;
    const std::span<const token_id> tokens = e->value.written.tokens();
    place* best = nullptr;
    std::ptrdiff_t most = -1;
    for (place& p : places_) {
      if (p.text != nullptr) continue;
      std::ptrdiff_t common = 0;
      if constexpr (PrefixKVStore<KVStoreT>) {
        const std::span<const token_id> held = kv.prefix(p.number);
        common = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
      }
      if (common > most) most = common, best = &p;
    }
    if (best == nullptr) return nullptr;
    texts.serve_next(best->number);
    best->text = e;
    best->lose_step();
    const auto goes_before = [](const place* a, const place* b) { return a->text->before(*b->text); };
    in_turn_.insert(std::upper_bound(in_turn_.begin(), in_turn_.end(), best, goes_before), best);
    return best;
  }

  void leave(place& p) {
    std::erase(in_turn_, &p);
    p.text = nullptr;
  }

 private:
  std::vector<place> places_;
  std::vector<place*> in_turn_;
};

}  // namespace espalier::cuda::detail
