// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/hybrid.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/host_kv_store.hpp"

namespace espalier::detail {

// One step of the recurrence: a token of the pass, or an earlier token whose step is made once more.
struct recurrent_step {
  std::int32_t slot;
  std::int32_t row;   // row of the batch; -1: an earlier token
  std::int32_t from;  // number of the memory with the state before the step; -1: the state that the walk begins at
  std::int32_t to;    // number of the memory for the state after the step; it may be the same
};

// The steps of one sequence in a pass. They are the same in every layer.
struct recurrent_walk {
  std::int32_t sequence;
  std::int32_t begin, end;       // steps begin to end - 1 of the plan
  std::int32_t start;            // number of slots that the state at the beginning has seen
  std::int32_t hold = -1;        // after the pass, the store holds the states after `start` and after `hold` slots, and
                                 // no other; -1: its states do not change
  std::int32_t hold_after = -1;  // number of the step that gives that state, from `begin`; -1: none does
};

// The order in which a pass computes states. A walk begins at a state whose tokens all rows see and goes through the
// tree that branches from it, parents before children, each token once. The state of a node is kept in memory only
// until its last child has been computed.
class recurrent_plan {
 public:
  // Returns the slots that the convolution of a row sees, its own slot last; -1 for places before the text.
  std::span<const std::int32_t> taps_of(std::int32_t row) const {
    return std::span(taps_).subspan(static_cast<std::size_t>(row) * n_taps_, n_taps_);
  }
  std::span<const recurrent_walk> walks() const { return walks_; }
  std::span<const recurrent_step> steps_of(const recurrent_walk& walk) const {
    return std::span(steps_).subspan(static_cast<std::size_t>(walk.begin),
                                     static_cast<std::size_t>(walk.end - walk.begin));
  }
  // Tells the store, after the pass, which states it now holds.
  template <HostRecurrentStore StoreT>
  void finish(StoreT& kv) const {
    for (const recurrent_walk& walk : walks_) {
      if (walk.hold >= 0) kv.hold_state(walk.sequence, walk.start, walk.hold);
    }
  }
  // Returns the greatest number of states that are in memory at the same time.
  std::int32_t n_memories() const { return n_memories_; }

  // Plans a pass. Pre: the batch has been checked.
  // Errors: input_error if a sequence's prefix is not the number of its committed rows in the store, if slots do not
  // ascend, or if a row's mask is no path of scratch slots; nothing has changed in the store then
  template <HostRecurrentStore StoreT>
  void make(StoreT& kv, const forward_batch_view& batch, int n_taps) {
    n_taps_ = static_cast<std::size_t>(n_taps);
    walks_.clear(), steps_.clear();
    n_memories_ = 0;
    reserve(static_cast<std::size_t>(kv.most_rows()), batch.sequences.size());
    taps_.resize(batch.tokens.size() * n_taps_);
    for (const batch_sequence& s : batch.sequences)
      require_paths(kv, batch, s);
    for (const batch_sequence& s : batch.sequences) {
      if (s.row_begin < s.row_end) add(kv, batch, s);
    }
  }

 private:
  // Reserves memory for the largest pass that the store has room for.
  void reserve(std::size_t n, std::size_t n_sequences) {
    walks_.reserve(n_sequences);
    steps_.reserve(n * n_sequences);
    taps_.reserve(n * n_sequences * n_taps_);
    for (std::vector<std::int32_t>* all : {&parents_, &befores_, &children_, &free_})
      all->reserve(n);
    wanted_.reserve(n);
  }

  static constexpr std::int32_t no_row = -2;  // nothing was computed for the slot

  static std::int32_t column_of(const forward_batch_view& batch, const batch_sequence& s, std::int32_t row) {
    return batch.slots[static_cast<std::size_t>(row)] - s.prefix;
  }
  static bool sees(std::span<const std::uint32_t> mask, std::int32_t column) {
    return (mask[static_cast<std::size_t>(column / 32)] >> (column % 32) & 1U) != 0;
  }
  // Returns the column (slot minus prefix) of the last scratch slot that a row sees before its own; -1 if there is
  // none.
  static std::int32_t parent_of(std::span<const std::uint32_t> mask, std::int32_t column) {
    while (--column >= 0 && !sees(mask, column)) {
    }
    return column;
  }

  template <class StoreT>
  void require_paths(const StoreT& kv, const forward_batch_view& batch, const batch_sequence& s) {
    if (s.prefix != kv.size(s.sequence)) {
      raise<input_error>("sequence ", s.sequence, " of a pass has ", s.prefix, " committed rows, and the cache ",
                         kv.size(s.sequence), ": a recurrent state is one of all of them.");
    }
    std::int32_t last = -1;
    parents_.clear();
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      const std::int32_t column = column_of(batch, s, row);
      if (column <= last)
        raise<input_error>("row ", row, " has a cache slot that is not beyond that of the row before.");
      const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
      // The store knows the parents of columns from earlier passes.
      const std::int32_t first = column_of(batch, s, s.row_begin);
      if (row == s.row_begin) {
        for (std::int32_t i = 0; i < first; ++i) {
          const std::int32_t parent = kv.parent(s.sequence, s.prefix + i) - s.prefix;
          parents_.push_back(parent >= -1 && parent < i ? parent : no_row);
        }
      }
      parents_.resize(static_cast<std::size_t>(column), no_row);
      parents_.push_back(parent_of(mask, column));
      std::int32_t seen = 0, on_path = 0;
      for (const std::uint32_t word : mask)
        seen += std::popcount(word);
      std::int32_t at = column;
      for (; at >= 0 && sees(mask, at); at = parents_[static_cast<std::size_t>(at)])
        ++on_path;
      if (at != -1 || seen != on_path)
        raise<input_error>("row ", row, " sees tokens that are no path: a recurrent state is one of a path.");
      last = column;
    }
  }

  template <class StoreT>
  void add(StoreT& kv, const forward_batch_view& batch, const batch_sequence& s) {
    const std::int32_t base = s.prefix, first = column_of(batch, s, s.row_begin);
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      const std::int32_t parent = parent_of(batch.mask_of(s, row), column_of(batch, s, row));
      kv.set_parent(s.sequence, batch.slots[static_cast<std::size_t>(row)], base + parent);
    }
    recurrent_walk walk{
        .sequence = s.sequence, .begin = static_cast<std::int32_t>(steps_.size()), .end = 0, .start = 0};
    walk.start = kv.state_at(s.sequence, base + seen_by_all(batch, s, first));
    list_columns(batch, s);
    for (std::int32_t slot = walk.start; slot < base; ++slot)
      steps_.push_back({slot, -1, -1, -1});
    for (std::int32_t column = (std::max)(0, walk.start - base); column < first; ++column) {
      if (wanted_[static_cast<std::size_t>(column)] != 0) steps_.push_back({base + column, -1, -1, -1});
    }
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row)
      steps_.push_back({batch.slots[static_cast<std::size_t>(row)], row, -1, -1});
    walk.end = static_cast<std::int32_t>(steps_.size());
    place_states(kv, walk);
    choose_held(kv, batch, walk);
    // If slots are computed anew, the store must drop the states that have seen the old tokens in these slots.
    if (walk.hold < 0 && kv.state_at(s.sequence, kv.capacity()) > base + first) walk.hold = walk.start;
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      std::int32_t slot = batch.slots[static_cast<std::size_t>(row)];
      for (std::size_t i = n_taps_; i-- > 0;) {
        taps_[static_cast<std::size_t>(row) * n_taps_ + i] = slot;
        if (slot >= 0) slot = kv.parent(s.sequence, slot);
      }
    }
    walks_.push_back(walk);
  }

  // Returns the number of leading scratch slots, at most `most`, that all rows see.
  static std::int32_t seen_by_all(const forward_batch_view& batch, const batch_sequence& s, std::int32_t most) {
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
      std::int32_t n = 0;
      while (n < most && sees(mask, n))
        ++n;
      most = n;
    }
    return most;
  }

  // Marks in wanted_ the scratch slots of earlier passes that rows of this pass see.
  void list_columns(const forward_batch_view& batch, const batch_sequence& s) {
    const std::int32_t first = column_of(batch, s, s.row_begin);
    wanted_.assign(static_cast<std::size_t>(first), 0);
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
      for (std::int32_t column = 0; column < first; ++column)
        if (sees(mask, column)) wanted_[static_cast<std::size_t>(column)] = 1;
    }
  }

  // Chooses the memory of the state after each step: the memory of the state before it if no later step begins there,
  // else memory that is free.
  template <class StoreT>
  void place_states(const StoreT& kv, const recurrent_walk& walk) {
    const auto steps = std::span(steps_).subspan(static_cast<std::size_t>(walk.begin),
                                                 static_cast<std::size_t>(walk.end - walk.begin));
    const auto step_of = [&](std::int32_t slot) {
      const auto found = std::lower_bound(steps.begin(), steps.end(), slot,
                                          [](const recurrent_step& step, std::int32_t of) { return step.slot < of; });
      return found - steps.begin();
    };
    befores_.assign(steps.size(), -1);
    children_.assign(steps.size(), 0);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::int32_t parent = kv.parent(walk.sequence, steps[i].slot);
      if (parent < walk.start) continue;
      befores_[i] = static_cast<std::int32_t>(step_of(parent));
      ++children_[static_cast<std::size_t>(befores_[i])];
    }
    free_.clear();
    std::int32_t n = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      recurrent_step& step = steps[i];
      if (befores_[i] >= 0) {
        const auto before = static_cast<std::size_t>(befores_[i]);
        step.from = steps[before].to;
        if (--children_[before] == 0) free_.push_back(step.from);
      }
      if (free_.empty()) free_.push_back(n++);
      step.to = free_.back();
      free_.pop_back();
      if (children_[i] == 0) free_.push_back(step.to);
    }
    n_memories_ = (std::max)(n_memories_, n);
  }

  // Chooses the state that the store keeps: the state after the last token that is certain to be committed. Certain are
  // the committed tokens, and the chain after them up to the first row whose logits are wanted.
  template <class StoreT>
  void choose_held(const StoreT& kv, const forward_batch_view& batch, recurrent_walk& walk) {
    if (walk.start > kv.size(walk.sequence)) return;  // hold_state() takes only a walk that begins at committed tokens
    std::int32_t before = walk.start - 1;
    for (std::int32_t i = walk.begin; i < walk.end; ++i) {
      const recurrent_step& step = steps_[static_cast<std::size_t>(i)];
      if (step.slot != before + 1 || kv.parent(walk.sequence, step.slot) != before) return;
      before = step.slot;
      walk.hold = step.slot + 1;
      walk.hold_after = i - walk.begin;
      if (step.row >= 0 && std::binary_search(batch.outputs.begin(), batch.outputs.end(), step.row)) return;
    }
  }

  std::size_t n_taps_ = 0;
  std::vector<recurrent_walk> walks_;
  std::vector<recurrent_step> steps_;
  std::vector<std::int32_t> taps_;  // [n_rows][n_taps]
  std::int32_t n_memories_ = 0;
  std::vector<std::int32_t> parents_;   // parent of each column, while masks are checked
  std::vector<char> wanted_;            // whether a step for the column is needed
  std::vector<std::int32_t> befores_;   // number of the step at whose state each step begins; -1: the walk's beginning
  std::vector<std::int32_t> children_;  // number of steps that still begin at the state after each step
  std::vector<std::int32_t> free_;
};

}  // namespace espalier::detail
