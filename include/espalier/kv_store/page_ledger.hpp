// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/prefix_tree.hpp"

namespace espalier {

//! The bookkeeping of a pool of pages that sequences share. It does not hold the rows in them: slot i of a sequence is
//! slot i % page_size of page pages(sequence)[i / page_size].
//!
//! Several sequences may use one page; they then have the same rows in it, up to the last row that each of them holds.
//! A prefix_tree knows the pages whose tokens were remembered: full pages, and the last page that a sequence gave up.
//! The tree knows only one of two pages with the same tokens after the same beginning. Pages that follow the other one
//! become known only when the last sequence that uses them gives them up. A page that the tree knows and no sequence
//! uses is cached: its rows can be adopted until the page is needed.
//!
//! Complexity  ensure, truncate, fork: O(pages given or taken), and one prefix_tree::find for each page that is given
//!             up with known tokens; remember: O(tokens told), and one find for each page that they fill; adopt: one
//!             find, and O(pages given or taken). No allocation after construction
//! Law         after ensure(), no slot of the sequence from `first` on is used by another sequence or known to the
//!             tree; a sequence keeps its pages until it writes to them or is truncated, or until fork() or adopt()
//!             gives it others; pages that were given up first are evicted first, and of one text the last page first
//! Errors      option_error for a capacity, page size or number of pages out of range; input_error for a sequence that
//!             does not exist, for more slots than the capacity, and when the pages are used up: then nothing has
//!             changed
class page_ledger {
 public:
  //! Makes the tables. The capacity is in slots of one sequence; it is lowered to the slots of all pages together if
  //! these are fewer.
  page_ledger(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages)
      : page_size_(page_size), tree_(n_pages, page_size) {
    require_option("number of sequences", n_sequences, 1, 1 << 20);
    require_option("cache capacity", capacity, 1, 1 << 30);
    capacity_ = (std::min)(capacity, n_pages * page_size);
    max_pages_ = pages_for(capacity_);
    n_of_.resize(static_cast<std::size_t>(n_sequences), 0);
    table_.resize(static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(max_pages_), -1);
    n_users_.resize(static_cast<std::size_t>(n_pages), 0);
    free_.reserve(static_cast<std::size_t>(n_pages));
    for (std::int32_t page = n_pages - 1; page >= 0; --page)
      free_.push_back(page);
  }

  //! Number of pages that all sequences together can use.
  //!
  //! Errors      option_error for a page size, or a number of pages, out of range
  static std::int32_t enough(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size) {
    require_option("page size", page_size, 1, 1 << 20);
    const double pages = static_cast<double>(n_sequences) * ((capacity - 1) / page_size + 1);
    require_option("number of pages", pages, 1.0, static_cast<double>(1 << 30));
    return static_cast<std::int32_t>(pages);
  }

  std::int32_t n_sequences() const { return static_cast<std::int32_t>(n_of_.size()); }
  std::int32_t capacity() const { return capacity_; }
  std::int32_t page_size() const { return page_size_; }
  std::int32_t n_pages() const { return static_cast<std::int32_t>(n_users_.size()); }
  //! Number of pages that a sequence can have.
  std::int32_t max_pages() const { return max_pages_; }
  //! Number of pages that no sequence uses, cached ones included.
  std::int32_t n_free() const { return static_cast<std::int32_t>(free_.size()) + tree_.n_cached(); }

  //! The pages of a sequence, in the order of its slots.
  std::span<const std::int32_t> pages(std::int32_t sequence) const {
    const std::size_t s = checked(sequence);
    return {table_.data() + s * static_cast<std::size_t>(max_pages_), static_cast<std::size_t>(n_of_[s])};
  }

  //! True if ensure() with the same arguments would find enough pages.
  bool has_room(std::int32_t sequence, std::int32_t first, std::int32_t n_slots) const {
    return n_slots <= capacity_ && n_missing(checked(sequence), first, n_slots) <= n_free();
  }

  //! Gives the sequence pages for slots 0 to n_slots - 1, such that the slots from `first` on can be written. If
  //! another sequence uses one of these pages, or the tree knows slots of it from `first` on, the page is replaced by
  //! another one: copy(from, to, n) must copy the first n slots, those before `first`, from page to page. Only if no
  //! page is free, a page that the tree knows is dropped from the tree instead.
  template <class CopyT>
  void ensure(std::int32_t sequence, std::int32_t first, std::int32_t n_slots, const CopyT& copy) {
    const std::size_t s = checked(sequence);
    if (n_slots < 0 || n_slots > capacity_) {
      raise<input_error>("sequence ", sequence, " cannot have ", n_slots, " slots: the capacity is ", capacity_, ".");
    }
    if (!has_room(sequence, first, n_slots)) {
      raise<input_error>("sequence ", sequence, " needs ", n_missing(s, first, n_slots), " more pages of ", page_size_,
                         " slots for ", n_slots, " slots, but only ", n_free(), " of ", n_pages(),
                         " are free: release a sequence, or build the store with more pages.");
    }
    for (std::int32_t i = n_of_[s] - 1; first < n_slots && i >= first / page_size_ && !is_own(entry(s, i)); --i) {
      const std::int32_t page = entry(s, i), n_kept = before(first, i);
      if (users(page) == 1 && tree_.tokens(page).size() <= static_cast<std::size_t>(n_kept)) continue;
      if (users(page) == 1 && n_free() == 0) {
        forget(page);
        continue;
      }
      const std::int32_t to = take();
      copy(page, to, n_kept);
      entry(s, i) = to;
      drop(page);
    }
    while (n_of_[s] < pages_for(n_slots))
      entry(s, n_of_[s]++) = take();
  }

  //! Enters the tokens of the sequence's rows in the tree. `known`: the tokens of its leading rows, as far as they are
  //! known now; those from number `first` on are new.
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> known) {
    const std::size_t s = checked(sequence);
    const std::int32_t n = n_known(s, known);
    for (std::int32_t i = first / page_size_; i < n && tree_.knows(entry(s, i)); ++i) {
      const std::span<const token_id> had = tree_.tokens(entry(s, i)), has = part(known, i);
      const auto same = static_cast<std::ptrdiff_t>((std::min)(had.size(), has.size()));
      if (std::equal(had.begin(), had.begin() + same, has.begin())) continue;
      forget(entry(s, i));
      break;
    }
    for (std::int32_t i = first / page_size_; i < n && part(known, i).size() == number(page_size_); ++i) {
      if (i > 0 && !tree_.is_full(entry(s, i - 1))) break;
      tree_.enter(entry(s, i), i > 0 ? entry(s, i - 1) : tree_.none, part(known, i));
    }
  }

  //! Gives up the pages after the first n_slots slots. Pages that no other sequence uses are cached, if their tokens
  //! are among `known`, the known tokens of the sequence's leading rows; otherwise they are free.
  void truncate(std::int32_t sequence, std::int32_t n_slots, std::span<const token_id> known = {}) {
    const std::size_t s = checked(sequence);
    const std::int32_t n = pages_for((std::max)(std::int32_t{0}, n_slots));
    if (n >= n_of_[s]) return;
    std::int32_t last = give_up(s, n, known);
    while (n_of_[s] > n)
      drop(entry(s, --n_of_[s]));
    for (; last != tree_.none && users(last) == 0; last = tree_.above(last))
      tree_.cache(last);
  }

  //! Returns the number of leading tokens, of these, whose rows the tree knows. If it is greater than n_held, the
  //! sequence gets the pages with these rows, and gives up all its others as truncate() does. `known`: as in
  //! truncate().
  std::int32_t adopt(std::int32_t sequence, std::span<const token_id> tokens, std::int32_t n_held,
                     std::span<const token_id> known) {
    const std::size_t s = checked(sequence);
    const prefix_tree::beginning found = tree_.find(tokens);
    if (found.n_tokens <= n_held) return found.n_tokens;
    for (std::int32_t page = found.page; page != tree_.none; page = tree_.above(page)) {
      tree_.use(page);
      ++n_users_[number(page)];
    }
    truncate(sequence, 0, known);
    n_of_[s] = pages_for(found.n_tokens);
    std::int32_t page = found.page;
    for (std::int32_t i = n_of_[s] - 1; i >= 0; --i, page = tree_.above(page))
      entry(s, i) = page;
    return found.n_tokens;
  }

  //! Gives `to` the pages of the first n_slots slots of `from`; `to` gives up all its others as truncate() does.
  //!
  //! Pre         to != from; from has these slots
  void fork(std::int32_t from, std::int32_t to, std::int32_t n_slots, std::span<const token_id> known_of_to) {
    const std::size_t f = checked(from), t = checked(to);
    truncate(to, 0, known_of_to);
    for (std::int32_t& n = n_of_[t]; n < pages_for(n_slots); ++n) {
      entry(t, n) = entry(f, n);
      ++n_users_[number(entry(f, n))];
    }
  }

 private:
  static std::size_t number(std::int32_t n) { return static_cast<std::size_t>(n); }
  std::int32_t pages_for(std::int32_t n_slots) const { return n_slots == 0 ? 0 : (n_slots - 1) / page_size_ + 1; }
  std::size_t checked(std::int32_t sequence) const { return detail::require_sequence(sequence, n_of_.size()); }
  std::int32_t& entry(std::size_t s, std::int32_t i) { return table_[s * number(max_pages_) + number(i)]; }
  std::int32_t entry(std::size_t s, std::int32_t i) const { return table_[s * number(max_pages_) + number(i)]; }
  std::int32_t users(std::int32_t page) const { return n_users_[number(page)]; }
  // Number of slots of page number i of a sequence that come before slot `first`.
  std::int32_t before(std::int32_t first, std::int32_t i) const {
    return (std::max)(std::int32_t{0}, first - i * page_size_);
  }
  // Number of pages of a sequence that have rows of known tokens.
  std::int32_t n_known(std::size_t s, std::span<const token_id> known) const {
    return (std::min)(n_of_[s], pages_for(static_cast<std::int32_t>(known.size())));
  }
  // The known tokens of page number i.
  std::span<const token_id> part(std::span<const token_id> known, std::int32_t i) const {
    const std::span<const token_id> rest = known.subspan(number(i) * number(page_size_));
    return rest.first((std::min)(rest.size(), number(page_size_)));
  }

  // True if no other sequence reads the page, now or later: none uses it, and the tree does not know it. Such pages
  // come last among those of a sequence.
  bool is_own(std::int32_t page) const { return users(page) == 1 && !tree_.knows(page); }

  // Number of free pages that ensure() needs. A copy of a page that no other sequence uses does not count: the page
  // that is copied becomes free.
  std::int32_t n_missing(std::size_t s, std::int32_t first, std::int32_t n_slots) const {
    std::int32_t n = (std::max)(std::int32_t{0}, pages_for(n_slots) - n_of_[s]);
    for (std::int32_t i = n_of_[s] - 1; first < n_slots && i >= first / page_size_ && !is_own(entry(s, i)); --i)
      n += users(entry(s, i)) > 1 ? 1 : 0;
    return n;
  }

  // Enters the pages from number i on in the tree, as far as their tokens are known. Returns the last page of the text
  // that the tree then knows, of this sequence or another one. A sequence that uses a page that the tree knows also
  // uses the pages above it, so cached pages can all be evicted.
  std::int32_t give_up(std::size_t s, std::int32_t i, std::span<const token_id> known) {
    if (known.size() <= number(i) * number(page_size_)) return tree_.none;
    std::int32_t above = i > 0 ? entry(s, i - 1) : tree_.none;
    if (i > 0 && !tree_.is_full(above)) {
      const prefix_tree::beginning found = tree_.find(known.first(number(i) * number(page_size_)));
      if (found.n_tokens < i * page_size_) return tree_.none;
      above = found.page;
    }
    for (; i < n_known(s, known); ++i) {
      const std::span<const token_id> tokens = part(known, i);
      if (users(entry(s, i)) == 1 || i == 0 || above == entry(s, i - 1)) {
        above = tree_.enter(entry(s, i), above, tokens);
      } else {
        const prefix_tree::beginning found = tree_.find_below(above, tokens);
        if (number(found.n_tokens) < tokens.size()) break;
        above = found.page;
      }
    }
    return above;
  }

  std::int32_t take() {
    std::int32_t page = tree_.none;
    if (free_.empty()) {
      page = tree_.evict();
    } else {
      page = free_.back();
      free_.pop_back();
    }
    n_users_[number(page)] = 1;
    return page;
  }

  void drop(std::int32_t page) {
    if (--n_users_[number(page)] > 0) return;
    tree_.knows(page) ? tree_.cache(page) : free_.push_back(page);
  }

  void forget(std::int32_t page) {
    tree_.forget(page, [this](std::int32_t forgotten) {
      if (users(forgotten) == 0) free_.push_back(forgotten);
    });
  }

  std::int32_t page_size_;
  prefix_tree tree_;
  std::int32_t capacity_ = 0;
  std::int32_t max_pages_ = 0;
  std::vector<std::int32_t> n_of_;     // [sequences] number of pages of each sequence
  std::vector<std::int32_t> table_;    // [sequences][max_pages]
  std::vector<std::int32_t> n_users_;  // [pages] sequences that have the page
  std::vector<std::int32_t> free_;     // pages that nobody uses and the tree does not know
};

}  // namespace espalier
