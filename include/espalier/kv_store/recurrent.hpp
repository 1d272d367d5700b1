// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/memory/serialize_rows.hpp"
#include "espalier/kv_store/recurrent_shape.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

struct recurrent_options {
  //! Number of tokens after a state that a sequence has room for; two passes must fit. The default is enough for two
  //! passes, each of 64 pending tokens and a tree of 64 nodes. A draft's cache needs twice the number of nodes that the
  //! draft is asked about, if that is more: best_first may ask about 256. If the room is too small, the decoder raises
  //! an error when it is built.
  int rows = 256;
  commit_mode commit = commit_mode::compact;

  static constexpr void describe(auto see) {
    see(option{"rows", &recurrent_options::rows, "tokens after a recurrent state, two passes of them", 2, 1 << 20});
    see(option{"commit", &recurrent_options::commit, "what is done with accepted cache rows"});
  }
};

//! A cache for models that have recurrent layers between layers of attention. The keys and values of the attention
//! layers are in a contiguous_kv. For the recurrent layers the cache holds two states of each sequence, and the rows of
//! the tokens after them.
//!
//! For a model without recurrent layers the cache does what a contiguous_kv does. A sequence that is truncated to a
//! length before all states that are held loses all its rows, and its text must be read again. Sequences do not share
//! the rows of a common beginning.
//!
//! Shapes      key, value: [row_size] floats; kept_row: [shape.row_size]; state: [shape.state_size]
//! Complexity  memory of a sequence: 2 * shape.layers * state_size floats of states, and options.rows + shape.reach
//!             rows of shape.layers * shape.row_size. commit: as contiguous_kv, and shape.layers * shape.row_size for
//!             each row that moves. Allocations are those of contiguous_kv
//! Law         as RecurrentStore; members that return memory may be called from several threads at once
//! Errors      option_error for sizes out of range; otherwise as slot_ledger
class recurrent_kv {
 public:
  recurrent_kv(int n_layers, int row_size, const recurrent_shape& shape, int n_sequences, int capacity,
               const recurrent_options& options = {})
      : shape_(checked(shape)),
        most_rows_(require_options(options).rows < capacity && shape.layers > 0 ? options.rows : capacity),
        attention_(n_layers, row_size, n_sequences, capacity, options.commit),
        slots_(most_rows_ + shape.reach) {
    const auto sequences = static_cast<std::size_t>(n_sequences);
    states_.resize(sequences, {none, none});
    first_kept_.resize(sequences, 0);
    if (shape_.layers == 0) return;
    parents_.resize(sequences * static_cast<std::size_t>(slots_), -1);
    const double floats =
        1.0 * n_sequences * shape_.layers * (2.0 * shape_.state_size + static_cast<double>(slots_) * shape_.row_size);
    require_option("cache size in bytes", floats * sizeof(float), 1.0, 1e15);
    block_ = detail::float_block(static_cast<std::size_t>(floats), true);
    const auto layers = sequences * static_cast<std::size_t>(shape_.layers);
    state_memory_ = block_.take(layers * 2 * static_cast<std::size_t>(shape_.state_size));
    rows_memory_ = state_memory_ + layers * 2 * static_cast<std::size_t>(shape_.state_size);
  }

  int n_layers() const { return attention_.n_layers(); }
  int row_size() const { return attention_.row_size(); }
  const recurrent_shape& shape() const { return shape_; }
  int n_sequences() const { return attention_.n_sequences(); }
  int capacity() const { return attention_.capacity(); }
  bool compacts() const { return attention_.compacts(); }
  int most_rows() const { return most_rows_; }

  int size(int sequence) const { return attention_.size(sequence); }

  int append(int sequence, int n) {
    if (shape_.layers == 0) return attention_.append(sequence, n);
    const int end = attention_.append(sequence, 0) + (std::max)(0, n);
    if (end - latest(sequence) > most_rows_) return -1;
    const int first = attention_.append(sequence, n);
    if (first < 0 || n == 0) return first;
    const int begin = (std::max)(first_kept(sequence), end - slots_);
    first_kept_[index(sequence)] = begin;
    for (int& state : states_[index(sequence)]) {
      if (state != none && needed(state) < begin) state = none;
    }
    return first;
  }

  int commit(int sequence, std::span<const std::int32_t> kept) {
    const int base = size(sequence), n = attention_.commit(sequence, kept);
    if (shape_.layers == 0) return n;
    int same = 0;
    for (int i = 0; i < n; ++i) {
      const int from = kept[static_cast<std::size_t>(i)];
      if (from == same) {
        ++same;
        continue;
      }
      for (int layer = 0; layer < shape_.layers; ++layer) {
        std::copy_n(kept_row(layer, sequence, base + from), shape_.row_size, kept_row(layer, sequence, base + i));
      }
    }
    drop_states(sequence, base + same);
    return n;
  }

  void truncate(int sequence, int n) {
    const bool goes_back = n < size(sequence);
    attention_.truncate(sequence, n);
    if (shape_.layers == 0) return;
    drop_states(sequence, size(sequence));
    if (latest(sequence) == none || (goes_back && size(sequence) - latest(sequence) > most_behind()))
      attention_.truncate(sequence, 0);
    if (size(sequence) > 0) return;
    drop_states(sequence, 0);
    first_kept_[index(sequence)] = 0;
  }

  int state_at(int sequence, int n) const {
    size(sequence);  // raises input_error if the sequence does not exist
    int best = first_kept(sequence) == 0 && n >= 0 ? 0 : none;
    for (const int state : states_[index(sequence)])
      if (state <= n) best = (std::max)(best, state);
    return best;
  }
  void hold_state(int sequence, int from, int n) {
    const std::size_t spare = spare_of(sequence, from);
    std::array<int, 2>& states = states_[index(sequence)];
    states[spare] = n == from ? none : n;
    if (states[1 - spare] != from) states[1 - spare] = none;
  }
  int parent(int sequence, int slot) const { return slot < size(sequence) ? slot - 1 : parents_[at(sequence, slot)]; }
  void set_parent(int sequence, int slot, int parent) { parents_[at(sequence, slot)] = parent; }

  std::span<const token_id> prefix(int sequence) const { return attention_.prefix(sequence); }
  std::uint64_t version(int sequence) const { return attention_.version(sequence); }
  void remember(int sequence, std::int32_t first, std::span<const token_id> tokens) {
    attention_.remember(sequence, first, tokens);
  }

  //! Saves or loads the rows of a sequence whose tokens are known. If the sequence that is saved has no state within
  //! these rows, it is loaded as an empty one.
  template <class ArchiveT>
  void serialize(ArchiveT& archive, int sequence) {
    for (const auto& [what, number] :
         {std::pair("recurrent layers", shape_.layers), std::pair("numbers a recurrent row", shape_.row_size),
          std::pair("numbers a recurrent state", shape_.state_size)})
      archive.expect(what, number);
    if constexpr (ArchiveT::reads) truncate(sequence, 0);
    detail::emptied_unless_finished<recurrent_kv> guard{*this, sequence, !ArchiveT::reads};
    attention_.serialize(archive, sequence);
    if (shape_.layers > 0) serialize_states(archive, sequence);
    guard.finished = true;
  }

  //! The keys, and the values, in one slot: [row_size]. The pointer is valid as long as the store lives; a commit may
  //! move the numbers to another slot.
  //!
  //! Pre         layer, sequence and slot exist
  float* key(int layer, int sequence, int slot) { return attention_.key(layer, sequence, slot); }
  float* value(int layer, int sequence, int slot) { return attention_.value(layer, sequence, slot); }
  //! The kept row of a recurrent layer: [shape.row_size].
  //!
  //! Pre         recurrent layer and sequence exist, and the row of the slot is kept
  float* kept_row(int layer, int sequence, int slot) {
    const std::ptrdiff_t of_layer = (static_cast<std::ptrdiff_t>(layer) * n_sequences() + sequence) * slots_;
    return rows_memory_ + (of_layer + slot % slots_) * shape_.row_size;
  }
  //! The state after n slots; null for n = 0, where the state is zero.
  //!
  //! Pre         the state is held
  const float* state(int layer, int sequence, int n) const {
    if (n == 0) return nullptr;
    return state_in(layer, sequence, states_[index(sequence)][0] == n ? 0 : 1);
  }
  //! Memory for the new state of a pass that begins at the state after `from` slots: see hold_state.
  float* spare_state(int layer, int sequence, int from) { return state_in(layer, sequence, spare_of(sequence, from)); }

 private:
  static constexpr int none = -1;

  static const recurrent_shape& checked(const recurrent_shape& shape) {
    shape.check();
    return shape;
  }
  static std::size_t index(int sequence) { return static_cast<std::size_t>(sequence); }
  std::size_t at(int sequence, int slot) const {
    return index(sequence) * static_cast<std::size_t>(slots_) + static_cast<std::size_t>(slot % slots_);
  }
  int first_kept(int sequence) const { return first_kept_[index(sequence)]; }
  int latest(int sequence) const { return state_at(sequence, size(sequence)); }
  // The first slot whose row is needed in addition to the state after n slots.
  int needed(int n) const { return (std::max)(0, n - shape_.reach); }

  // Number of rows that a sequence may have after its latest state and still go on: half of most_rows_, so that the
  // next pass has the other half; or all of them, if there is room for the whole capacity.
  int most_behind() const { return most_rows_ < capacity() ? most_rows_ / 2 : most_rows_; }

  void drop_states(int sequence, int beyond) {
    for (int& state : states_[index(sequence)]) {
      if (state > beyond) state = none;
    }
  }

  // Index of the state memory that a pass from the state after `from` slots writes. It is never the one that the pass
  // reads. If the pass reads neither, it is one without a state, or else the one with the longer state, which may
  // belong to a text that was given up.
  std::size_t spare_of(int sequence, int from) const {
    const std::array<int, 2>& states = states_[index(sequence)];
    if (from > 0 && states[0] == from) return 1;
    if (from > 0 && states[1] == from) return 0;
    return states[1] == none || (states[0] != none && states[1] >= states[0]) ? 1 : 0;
  }

  float* state_in(int layer, int sequence, std::size_t which) const {
    const std::ptrdiff_t number = (static_cast<std::ptrdiff_t>(layer) * n_sequences() + sequence) * 2;
    return state_memory_ + (number + static_cast<std::ptrdiff_t>(which)) * shape_.state_size;
  }

  // Saves or loads the latest state within the saved tokens, and the rows from the first one on that is needed with it.
  template <class ArchiveT>
  void serialize_states(ArchiveT& archive, int sequence) {
    const int n = static_cast<int>(prefix(sequence).size());
    std::int32_t from = ArchiveT::reads ? 0 : state_at(sequence, n);
    archive(from);
    if constexpr (ArchiveT::reads) {
      if (from < 0) return truncate(sequence, 0);
      if (from > n || n - from > most_behind())
        raise<input_error>("the saved sequence has ", n - from,
                           " rows after its recurrent state, but there is room for ", most_behind(), ".");
      first_kept_[index(sequence)] = needed(from);
      states_[index(sequence)] = {from > 0 ? from : none, none};
    }
    if (from < 0) return;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      if (from > 0) {
        const std::size_t which = states_[index(sequence)][0] == from ? 0 : 1;
        archive(std::span(state_in(layer, sequence, which), static_cast<std::size_t>(shape_.state_size)));
      }
      for (int slot = needed(from); slot < n; ++slot)
        archive(std::span(kept_row(layer, sequence, slot), static_cast<std::size_t>(shape_.row_size)));
    }
  }
  recurrent_shape shape_;
  int most_rows_;
  contiguous_kv attention_;
  int slots_;                               // rows in memory: the row of slot s is number s % slots_
  std::vector<std::array<int, 2>> states_;  // [n_sequences] number of slots that each state in memory covers, or none
  std::vector<int> first_kept_;             // [n_sequences] the first slot whose row is in memory
  std::vector<int> parents_;                // [n_sequences][slots_] parents of scratch slots
  detail::float_block block_;
  float* state_memory_ = nullptr;  // [layers][n_sequences][2][state_size]
  float* rows_memory_ = nullptr;   // [layers][n_sequences][slots_][row_size]
};

static_assert(RecurrentStore<recurrent_kv> && SavedKVStore<recurrent_kv>);

}  // namespace espalier
