// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/memory/serialize_rows.hpp"
#include "espalier/kv_store/paged.hpp"
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
//! layers are in an AttentionT, which is a contiguous_kv or a paged_kv. For the recurrent layers the cache holds two
//! states of each sequence, and the rows of the tokens after them. For a model without recurrent layers the cache does
//! what its AttentionT does.
//!
//! A sequence that is truncated to a length before all states that are held loses all its rows, and its text must be
//! read again. Over a contiguous_kv, sequences do not share the rows of a common beginning. Over a paged_kv they do, as
//! far as there is a state: fork() copies states, and when a sequence gives up all its rows, its latest state stays in
//! memory for adopt(). As many of these states stay as there are sequences, those that were used last.
//!
//! Shapes      key, value: [row_size] floats; kept_row: [shape.row_size]; state: [shape.state_size]
//! Complexity  memory of a sequence: 2 * shape.layers * state_size floats of states, 3 over a paged_kv, and
//!             options.rows + shape.reach rows of shape.layers * shape.row_size, over a paged_kv 3 * shape.reach more.
//!             commit: as AttentionT, and shape.layers * shape.row_size for each row that moves. adopt: as AttentionT,
//!             O(tokens) for each state that stays, and a copy of one. fork: as AttentionT, and a copy of the states
//!             and of the rows after them. Allocations are those of AttentionT
//! Law         as RecurrentStore; members that return memory may be called from several threads at once
//! Errors      option_error for sizes out of range; otherwise as slot_ledger
template <SavedKVStore AttentionT>
class basic_recurrent_kv {
 public:
  static constexpr bool is_paged = SharingKVStore<AttentionT>;

  basic_recurrent_kv(int n_layers, int row_size, const recurrent_shape& shape, int n_sequences, int capacity,
                     const recurrent_options& options = {}) requires(!is_paged)
      : basic_recurrent_kv(AttentionT(n_layers, row_size, n_sequences, capacity, require_options(options).commit),
                           shape, options) {}

  //! Makes a store with the keys and values in n_pages pages of page_size rows.
  basic_recurrent_kv(int n_layers, int row_size, const recurrent_shape& shape, int n_sequences, int capacity,
                     int page_size, int n_pages, const recurrent_options& options = {}) requires(is_paged)
      : basic_recurrent_kv(
            AttentionT(n_layers, row_size, n_sequences, capacity, page_size, n_pages, require_options(options).commit),
            shape, options) {}

  int n_layers() const { return attention_.n_layers(); }
  int row_size() const { return attention_.row_size(); }
  const recurrent_shape& shape() const { return shape_; }
  int n_sequences() const { return attention_.n_sequences(); }
  int capacity() const { return attention_.capacity(); }
  bool compacts() const { return attention_.compacts(); }
  int most_rows() const { return most_rows_; }
  int page_size() const requires(is_paged) { return attention_.page_size(); }
  int n_pages() const requires(is_paged) { return attention_.n_pages(); }
  int n_free() const requires(is_paged) { return attention_.n_free(); }

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
    if (shape_.layers == 0) return attention_.truncate(sequence, n);
    const int kept = rows_after_truncate(*this, sequence, n);
    if (kept == 0) leave_state(sequence);
    attention_.truncate(sequence, kept);
    drop_states(sequence, kept);
    if (kept == 0) first_kept_[index(sequence)] = 0;
  }

  int adopt(int sequence, std::span<const token_id> tokens) requires(is_paged) {
    if (shape_.layers == 0) return attention_.adopt(sequence, tokens);
    const std::span<const token_id> known = prefix(sequence);
    const auto same = std::mismatch(known.begin(), known.end(), tokens.begin(), tokens.end()).first - known.begin();
    truncate(sequence, static_cast<int>(same));
    const int held = size(sequence);
    for (std::size_t left = longest_left(tokens, held); left < left_.size(); left = longest_left(tokens, held)) {
      const auto n = static_cast<int>(left_[left].tokens.size());
      if (attention_.adopt(sequence, tokens.first(left_[left].tokens.size())) == n) {
        take_state(sequence, left);
        return n;
      }
      attention_.truncate(sequence, held);
      forget_state(left);  // its pages were evicted
    }
    return held;
  }

  void fork(int from, int to) requires(is_paged) {
    if (shape_.layers == 0) return attention_.fork(from, to);
    const int n = size(from);
    if (from == to) return truncate(to, n);
    truncate(to, 0);
    attention_.fork(from, to);
    first_kept_[index(to)] = first_kept(from);
    states_[index(to)] = states_[index(from)];
    drop_states(to, n);
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      if (states_[index(to)][which] == none) continue;
      std::copy_n(memory_of(blocks_[index(from)][which]), states_size(), memory_of(blocks_[index(to)][which]));
    }
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int slot = first_kept(to); slot < n; ++slot)
        std::copy_n(kept_row(layer, from, slot), shape_.row_size, kept_row(layer, to, slot));
    }
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
    detail::emptied_unless_finished<basic_recurrent_kv> guard{*this, sequence, !ArchiveT::reads};
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

  // A text that was given up, up to the state that has stayed.
  struct left_text {
    std::vector<token_id> tokens{};  // none: no state has stayed
    int block = 0;                   // the memory of the state, and of the rows that are needed with it
  };

  basic_recurrent_kv(AttentionT&& attention, const recurrent_shape& shape, const recurrent_options& options)
      : shape_(checked(shape)),
        attention_(std::move(attention)),
        most_rows_(options.rows < capacity() && shape.layers > 0 ? options.rows : capacity()),
        slots_(most_rows_ + shape.reach) {
    const auto sequences = static_cast<std::size_t>(n_sequences());
    states_.resize(sequences, {none, none});
    first_kept_.resize(sequences, 0);
    if (shape_.layers == 0) return;
    parents_.resize(sequences * static_cast<std::size_t>(slots_), -1);
    int n_blocks = 0;
    for (std::size_t i = 0; i < sequences; ++i)
      blocks_.push_back({n_blocks, n_blocks + 1}), n_blocks += 2;
    left_.resize(is_paged ? sequences : 0);
    for (left_text& text : left_) {
      text.tokens.reserve(static_cast<std::size_t>(capacity()));
      text.block = n_blocks++;
    }
    const double rows = 1.0 * n_sequences() * shape_.layers * slots_ * shape_.row_size;
    const double floats = rows + static_cast<double>(n_blocks) * static_cast<double>(block_size());
    require_option("cache size in bytes", floats * sizeof(float), 1.0, 1e15);
    block_ = detail::float_block(static_cast<std::size_t>(floats) + 16, true);
    state_memory_ = block_.take(static_cast<std::size_t>(n_blocks) * static_cast<std::size_t>(block_size()));
    rows_memory_ = block_.take(static_cast<std::size_t>(rows));
  }

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

  // Number of floats of the states of all layers, and of a block of memory: these states and, if states stay, the rows
  // that are needed with them.
  std::ptrdiff_t states_size() const { return std::ptrdiff_t{shape_.layers} * shape_.state_size; }
  std::ptrdiff_t block_size() const {
    return states_size() + (is_paged ? std::ptrdiff_t{shape_.layers} * shape_.reach * shape_.row_size : 0);
  }
  float* memory_of(int block) const { return state_memory_ + block * block_size(); }
  float* state_in(int layer, int sequence, std::size_t which) const {
    return memory_of(blocks_[index(sequence)][which]) + std::ptrdiff_t{layer} * shape_.state_size;
  }

  // Calls f(kept row, row in the block) for each row that is needed with the state after n slots.
  template <class FunctionT>
  void for_each_needed(int sequence, int n, int block, const FunctionT& f) {
    float* row = memory_of(block) + states_size();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int slot = needed(n); slot < n; ++slot, row += shape_.row_size)
        f(kept_row(layer, sequence, slot), row);
    }
  }

  // Lets the latest state of a sequence stay, in place of the state that was not used for longest.
  void leave_state(int sequence) {
    const std::span<const token_id> known = prefix(sequence);
    const int n = left_.empty() ? 0 : state_at(sequence, static_cast<int>(known.size()));
    if (n <= 0) return;
    const std::span<const token_id> tokens = known.first(static_cast<std::size_t>(n));
    auto to = std::find_if(left_.begin(), left_.end(), [&](const left_text& text) {
      return std::equal(text.tokens.begin(), text.tokens.end(), tokens.begin(), tokens.end());
    });
    if (to == left_.end()) to = left_.begin();
    to->tokens.assign(tokens.begin(), tokens.end());
    std::swap(to->block, blocks_[index(sequence)][states_[index(sequence)][0] == n ? 0 : 1]);
    for_each_needed(sequence, n, to->block,
                    [&](const float* from, float* row) { std::copy_n(from, shape_.row_size, row); });
    std::rotate(to, to + 1, left_.end());
  }

  // Number of the longest text that has left its state and is a beginning of these tokens, if it is longer than `least`
  // tokens; left_.size() if there is none.
  std::size_t longest_left(std::span<const token_id> tokens, int least) const {
    std::size_t best = left_.size(), most = static_cast<std::size_t>(least);
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const std::vector<token_id>& its = left_[i].tokens;
      if (its.size() <= most || its.size() > tokens.size() || !std::equal(its.begin(), its.end(), tokens.begin()))
        continue;
      best = i, most = its.size();
    }
    return best;
  }

  // Gives a sequence, which has the rows of this text in its pages, the state that the text has left.
  void take_state(int sequence, std::size_t left) {
    const auto n = static_cast<int>(left_[left].tokens.size());
    std::copy_n(memory_of(left_[left].block), states_size(), memory_of(blocks_[index(sequence)][0]));
    states_[index(sequence)] = {n, none};
    first_kept_[index(sequence)] = needed(n);
    for_each_needed(sequence, n, left_[left].block,
                    [&](float* to, const float* row) { std::copy_n(row, shape_.row_size, to); });
    const auto at = left_.begin() + static_cast<std::ptrdiff_t>(left);
    std::rotate(at, at + 1, left_.end());
  }
  void forget_state(std::size_t left) {
    left_[left].tokens.clear();
    const auto at = left_.begin() + static_cast<std::ptrdiff_t>(left);
    std::rotate(left_.begin(), at, at + 1);
  }

  // Saves or loads the latest state within the saved tokens, and the rows from the first one on that is needed with it.
  template <class ArchiveT>
  void serialize_states(ArchiveT& archive, int sequence) {
    const int n = static_cast<int>(prefix(sequence).size());
    std::int32_t from = ArchiveT::reads ? 0 : state_at(sequence, n);
    archive(from);
    if constexpr (ArchiveT::reads) {
      if (from < 0) return truncate(sequence, 0);
      if (from > n || n - from > detail::most_behind(*this))
        raise<input_error>("the saved sequence has ", n - from,
                           " rows after its recurrent state, but there is room for ", detail::most_behind(*this), ".");
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
  AttentionT attention_;
  int most_rows_;
  int slots_;                               // rows in memory: the row of slot s is number s % slots_
  std::vector<std::array<int, 2>> states_;  // [n_sequences] number of slots that each state in memory covers, or none
  std::vector<std::array<int, 2>> blocks_;  // [n_sequences] the memory of each of these states
  std::vector<int> first_kept_;             // [n_sequences] the first slot whose row is in memory
  std::vector<int> parents_;                // [n_sequences][slots_] parents of scratch slots
  std::vector<left_text> left_;             // in the order of their last use
  detail::float_block block_;
  float* state_memory_ = nullptr;  // [blocks][block_size()]: [layers][state_size], then [layers][reach][row_size]
  float* rows_memory_ = nullptr;   // [layers][n_sequences][slots_][row_size]
};

//! A store in one block of memory.
using recurrent_kv = basic_recurrent_kv<contiguous_kv>;
//! A store with the keys and values in pages, which sequences share.
using paged_recurrent_kv = basic_recurrent_kv<paged_kv>;

static_assert(RecurrentStore<recurrent_kv> && SavedKVStore<recurrent_kv>);
static_assert(RecurrentStore<paged_recurrent_kv> && SavedKVStore<paged_recurrent_kv> &&
              SharingKVStore<paged_recurrent_kv>);

}  // namespace espalier
