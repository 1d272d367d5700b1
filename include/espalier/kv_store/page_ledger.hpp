// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"

namespace espalier {

//! The bookkeeping of a pool of pages that sequences share, without the rows in them: slot i of a sequence is slot i %
//! page_size of page pages(sequence)[i / page_size].
//!
//! Complexity  O(pages given or taken); no allocation after construction
//! Law         no page belongs to two sequences; a page that a sequence has stays where it is until truncate
//! Errors      option_error for a capacity, page size or number of pages out of range; input_error for a sequence that
//!             does not exist, for more slots than the capacity, and when the pages are used up: then nothing has
//!             changed
class page_ledger {
 public:
  //! Capacity in slots of one sequence.
  page_ledger(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages)
      : capacity_(capacity), page_size_(page_size), n_pages_(n_pages) {
    require_option("number of sequences", n_sequences, 1, 1 << 20);
    require_option("cache capacity", capacity, 1, 1 << 30);
    require_option("page size", page_size, 1, 1 << 20);
    require_option("number of pages", n_pages, 1, 1 << 30);
    max_pages_ = (capacity - 1) / page_size + 1;
    n_of_.resize(static_cast<std::size_t>(n_sequences), 0);
    table_.resize(static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(max_pages_), -1);
    free_.reserve(static_cast<std::size_t>(n_pages));
    for (std::int32_t page = n_pages - 1; page >= 0; --page)
      free_.push_back(page);
  }

  //! Pages that all sequences together can use.
  static std::int32_t enough(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size) {
    require_option("page size", page_size, 1, 1 << 20);
    const double pages = static_cast<double>(n_sequences) * ((capacity - 1) / page_size + 1);
    require_option("number of pages", pages, 1.0, static_cast<double>(1 << 30));
    return static_cast<std::int32_t>(pages);
  }

  std::int32_t n_sequences() const { return static_cast<std::int32_t>(n_of_.size()); }
  std::int32_t capacity() const { return capacity_; }
  std::int32_t page_size() const { return page_size_; }
  std::int32_t n_pages() const { return n_pages_; }
  //! Pages that a sequence can have.
  std::int32_t max_pages() const { return max_pages_; }
  //! Pages that no sequence has.
  std::int32_t n_free() const { return static_cast<std::int32_t>(free_.size()); }

  //! The pages of a sequence, by slot.
  std::span<const std::int32_t> pages(std::int32_t sequence) const {
    const std::size_t s = checked(sequence);
    return {table_.data() + s * static_cast<std::size_t>(max_pages_), static_cast<std::size_t>(n_of_[s])};
  }

  //! Whether slots 0 to n_slots - 1 could all have pages.
  bool has_room(std::int32_t sequence, std::int32_t n_slots) const {
    return n_slots <= capacity_ && pages_for(n_slots) - n_of_[checked(sequence)] <= n_free();
  }

  //! Slots 0 to n_slots - 1 have pages from now on.
  void ensure(std::int32_t sequence, std::int32_t n_slots) {
    const std::size_t s = checked(sequence);
    if (n_slots < 0 || n_slots > capacity_) {
      raise<input_error>("sequence ", sequence, " cannot have ", n_slots, " slots: the capacity is ", capacity_, ".");
    }
    if (!has_room(sequence, n_slots)) {
      raise<input_error>("sequence ", sequence, " needs ", pages_for(n_slots) - n_of_[s], " more pages of ", page_size_,
                         " slots for ", n_slots, " slots, but only ", n_free(), " of ", n_pages_,
                         " are free: release a sequence, or build the store with more pages.");
    }
    while (n_of_[s] < pages_for(n_slots)) {
      table_[s * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(n_of_[s]++)] = free_.back();
      free_.pop_back();
    }
  }

  //! Gives back the pages behind the first n_slots slots.
  void truncate(std::int32_t sequence, std::int32_t n_slots) {
    const std::size_t s = checked(sequence);
    while (n_of_[s] > pages_for(n_slots < 0 ? 0 : n_slots))
      free_.push_back(table_[s * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(--n_of_[s])]);
  }

 private:
  std::int32_t pages_for(std::int32_t n_slots) const { return n_slots == 0 ? 0 : (n_slots - 1) / page_size_ + 1; }
  std::size_t checked(std::int32_t sequence) const { return detail::require_sequence(sequence, n_of_.size()); }

  std::int32_t capacity_;
  std::int32_t page_size_;
  std::int32_t n_pages_;
  std::int32_t max_pages_ = 0;
  std::vector<std::int32_t> n_of_;   // [sequences] pages of each
  std::vector<std::int32_t> table_;  // [sequences][max_pages]
  std::vector<std::int32_t> free_;
};

}  // namespace espalier
