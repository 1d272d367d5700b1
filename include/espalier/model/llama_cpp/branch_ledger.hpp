// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"

namespace espalier {

//! A ledger that assigns an engine's sequence ids to the rows of texts, for an engine that knows a tree only as
//! sequences that share rows: the path to each leaf is one sequence, and a row sees the rows that its first id has, at
//! positions up to the row's.
//!
//! One id of each text is its trunk: it has all committed rows. A row takes the id that ends at its parent. If another
//! row has taken that id, the row gets a free id, to which the rows of the parent's path are copied first. At the
//! commit the id of the last accepted row becomes the trunk. The other ids keep the rows that they share with the
//! trunk, and are free.
//!
//! EngineT changes the engine's lists of ids, and copies no keys or values:
//!   engine.copy(from, to, begin, end)   gives the rows of `from` at positions begin to end - 1 to `to`, too
//!   engine.remove(id, begin)            takes the rows at positions from begin on away from `id`
//!
//! Complexity  place: O(rows * depth + leaves * ids), and one copy for each leaf but the first; commit and drop: at
//!             most one remove for each leaf. No allocation once warm
//! Law         after place() a row's first id has the committed rows and the row's ancestors, and nothing else at
//!             positions up to the row's; if a text has no scratch, its trunk has only the committed rows
//! Errors      option_error for fewer ids than texts; input_error for a batch whose rows are no tree, for a commit of
//!             rows that are no path, and if there are no more free ids
class branch_ledger {
 public:
  branch_ledger(std::int32_t n_sequences, std::int32_t n_ids) {
    require_option("number of sequences", n_sequences, 1, 1 << 20);
    require_option("number of sequence ids", n_ids, n_sequences, 1 << 20);
    texts_.resize(static_cast<std::size_t>(n_sequences));
    branches_.resize(static_cast<std::size_t>(n_ids));
    for (std::int32_t t = 0; t < n_sequences; ++t) {
      texts_[static_cast<std::size_t>(t)].trunk = t;
      at(t).text = t;
    }
  }

  //! The id that has the committed rows of a text, and no other rows if the text has no scratch.
  std::int32_t trunk(std::int32_t text) const { return texts_[index(text)].trunk; }

  //! Finds ids for the rows of one sequence of a batch: ids[r] gets the ids of batch row r, and the first of these ids
  //! decides which rows that row sees. A scratch row that is written anew first loses its old ids.
  //!
  //! Errors      input_error; drop() then brings the text back to its committed rows
  template <class EngineT>
  void place(EngineT&& engine, const forward_batch_view& batch, const batch_sequence& s,
             std::span<std::vector<std::int32_t>> ids) {
    std::vector<scratch_row>& rows = texts_[index(s.sequence)].rows;
    for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
      const std::int32_t column = batch.slots[static_cast<std::size_t>(r)] - s.prefix;
      if (column < 0) raise<input_error>("row ", r, " of the pass is in a committed slot.");
      if (std::ssize(rows) <= column) rows.resize(static_cast<std::size_t>(column) + 1);
      if (row(rows, column).batch_row >= s.row_begin) {
        raise<input_error>("rows ", row(rows, column).batch_row, " and ", r, " of the pass are in the same slot.");
      }
      if (row(rows, column).id != none) release(engine, s, column);
      const std::int32_t parent = parent_of(rows, batch.mask_of(s, r), column);
      const std::int32_t depth = parent == none ? 0 : row(rows, parent).depth + 1;
      if (batch.positions[static_cast<std::size_t>(r)] != s.prefix + depth) {
        raise<input_error>("row ", r, " of the pass is at position ", batch.positions[static_cast<std::size_t>(r)],
                           ", but what it sees says ", s.prefix + depth, ".");
      }
      const std::int32_t id = id_after(engine, s, parent, ids);
      at(id).tip = column;
      row(rows, column) = {parent, depth, id, r};
      ids[static_cast<std::size_t>(r)].assign(1, id);
    }
    for (scratch_row& one : rows)
      one.batch_row = none;
  }

  //! Gives up the scratch rows.
  template <class EngineT>
  void drop(EngineT&& engine, std::int32_t text, std::int32_t n_committed) {
    commit(engine, text, n_committed, {});
  }

  //! Commits the scratch rows `kept`, which must be a path that begins after the committed rows; gives up all others.
  //!
  //! Errors      input_error if they are no path, or if no pass has written them; nothing is changed then
  template <class EngineT>
  void commit(EngineT&& engine, std::int32_t text, std::int32_t n_committed, std::span<const std::int32_t> kept) {
    std::vector<scratch_row>& rows = texts_[index(text)].rows;
    std::int32_t previous = none;
    for (const std::int32_t k : kept) {
      if (k >= std::ssize(rows) || row(rows, k).id == none)
        raise<input_error>("scratch row ", k, " cannot be kept: no pass has written it.");
      if (row(rows, k).parent != previous)
        raise<input_error>("scratch row ", k, " cannot be kept: it does not follow the row that is kept before it.");
      previous = k;
    }
    for (std::int32_t id = 0; id < std::ssize(branches_); ++id) {
      branch& b = at(id);
      if (b.text != text || b.tip == none) continue;
      const std::int32_t length = row(rows, b.tip).depth + 1;
      std::int32_t last = b.tip;
      while (last != none && !is_kept(rows, kept, last))
        last = row(rows, last).parent;
      const std::int32_t shared = last == none ? 0 : row(rows, last).depth + 1;
      if (shared < length) engine.remove(id, n_committed + shared);
      b.held = n_committed + shared;
      b.tip = none;
    }
    if (!kept.empty()) texts_[index(text)].trunk = row(rows, kept.back()).id;
    rows.clear();
  }

  //! Gives up the scratch rows, and the committed rows from number n on.
  template <class EngineT>
  void truncate(EngineT&& engine, std::int32_t text, std::int32_t n_committed, std::int32_t n) {
    drop(engine, text, n_committed);
    for (std::int32_t id = 0; id < std::ssize(branches_); ++id) {
      branch& b = at(id);
      if (b.text != text || b.held <= n) continue;
      engine.remove(id, n);
      b.held = n;
    }
  }

 private:
  static constexpr std::int32_t none = -1;

  struct branch {
    std::int32_t text = none;  // the text whose committed rows it has
    std::int32_t held = 0;     // number of these rows, from the first on
    std::int32_t tip = none;   // the scratch row at its end; with none it is free, or a trunk
  };
  struct scratch_row {
    std::int32_t parent = none;  // a scratch row, or none if it follows the committed rows
    std::int32_t depth = 0;
    std::int32_t id = none;         // the sequence id that it was placed with; none: no pass has written it
    std::int32_t batch_row = none;  // its number in the batch that is being placed; none: it is not in that batch
  };
  struct text_rows {
    std::int32_t trunk = none;
    std::vector<scratch_row> rows;
  };

  std::size_t index(std::int32_t text) const { return detail::require_sequence(text, texts_.size()); }
  branch& at(std::int32_t id) { return branches_[static_cast<std::size_t>(id)]; }
  static scratch_row& row(std::vector<scratch_row>& rows, std::int32_t i) { return rows[static_cast<std::size_t>(i)]; }

  static bool is_kept(std::vector<scratch_row>& rows, std::span<const std::int32_t> kept, std::int32_t i) {
    const auto depth = static_cast<std::size_t>(row(rows, i).depth);
    return depth < kept.size() && kept[depth] == i;
  }

  // Returns the parent of scratch row `column`: the last scratch row before it whose bit is set in `mask`, its row of
  // the mask; none if there is no such row.
  //
  // Errors      input_error if the bits that are set are not exactly those of the parent's path and of `column`
  static std::int32_t parent_of(std::vector<scratch_row>& rows, std::span<const std::uint32_t> mask,
                                std::int32_t column) {
    const auto sees = [&](std::int32_t c) {
      const auto word = static_cast<std::size_t>(c / 32);
      return word < mask.size() && (mask[word] >> (c % 32) & 1U) != 0;
    };
    std::int32_t parent = none, n_seen = 0;
    for (std::size_t w = 0; w < mask.size(); ++w) {
      const auto own = static_cast<std::size_t>(column / 32);
      const std::uint32_t before = w < own ? mask[w] : w == own ? mask[w] & ((1U << (column % 32)) - 1U) : 0U;
      n_seen += std::popcount(mask[w]);
      if (before != 0)
        parent = static_cast<std::int32_t>(w) * 32 + static_cast<std::int32_t>(std::bit_width(before)) - 1;
    }
    std::int32_t n_path = sees(column) ? 1 : 0, c = parent;
    for (; c != none && row(rows, c).id != none && sees(c); c = row(rows, c).parent)
      ++n_path;
    if (c != none || n_path != n_seen) raise<input_error>("what the row in scratch slot ", column, " sees is no path.");
    return parent;
  }

  // Returns the sequence id for a row after `parent`.
  template <class EngineT>
  std::int32_t id_after(EngineT&& engine, const batch_sequence& s, std::int32_t parent,
                        std::span<std::vector<std::int32_t>> ids) {
    std::vector<scratch_row>& rows = texts_[index(s.sequence)].rows;
    const std::int32_t through = parent == none ? trunk(s.sequence) : row(rows, parent).id;
    if (at(through).tip == parent) return through;
    const std::int32_t id = free_id(engine, s.sequence);
    // Ancestors in this batch get the id when the engine runs the batch. Earlier ancestors are in the engine already:
    // there the id gets them by copy().
    std::int32_t there = parent;
    for (; there != none && row(rows, there).batch_row != none; there = row(rows, there).parent)
      ids[static_cast<std::size_t>(row(rows, there).batch_row)].push_back(id);
    const std::int32_t end = s.prefix + (there == none ? 0 : row(rows, there).depth + 1);
    const std::int32_t from = there == none ? trunk(s.sequence) : row(rows, there).id;
    if (at(id).held < end) engine.copy(from, id, at(id).held, end);
    at(id).held = s.prefix;
    return id;
  }

  // Returns a free id, which ends at no scratch row and is no text's trunk: if there is one, the id that has the most
  // committed rows of the text already, else an id that was never used, else one that another text has left.
  template <class EngineT>
  std::int32_t free_id(EngineT&& engine, std::int32_t text) {
    std::int32_t best = none;
    const auto worth = [&](const branch& b) {
      return b.text == text ? b.held : b.text == none ? -1 : (std::numeric_limits<std::int32_t>::min)();
    };
    for (std::int32_t id = 0; id < std::ssize(branches_); ++id) {
      const branch& b = at(id);
      if (b.tip != none || (b.text != none && trunk(b.text) == id)) continue;
      if (best == none || worth(b) > worth(at(best))) best = id;
    }
    if (best == none) {
      raise<input_error>("the cache has ", branches_.size(), " sequence ids for ", texts_.size(),
                         " texts, and the trees of this pass have more leaves than that: lower the policy's budget, or "
                         "the number of texts.");
    }
    if (at(best).text != text) {
      if (at(best).held > 0) engine.remove(best, 0);
      at(best) = {text, 0, none};
    }
    return best;
  }

  // Prepares a scratch row for being written anew: the ids that have the row lose it and all rows after it, and end at
  // its parent.
  template <class EngineT>
  void release(EngineT&& engine, const batch_sequence& s, std::int32_t column) {
    std::vector<scratch_row>& rows = texts_[index(s.sequence)].rows;
    const scratch_row old = row(rows, column);
    for (std::int32_t id = 0; id < std::ssize(branches_); ++id) {
      branch& b = at(id);
      if (b.text != s.sequence || b.tip == none) continue;
      std::int32_t on_path = b.tip;
      while (on_path != none && on_path != column)
        on_path = row(rows, on_path).parent;
      if (on_path == none) continue;
      for (std::int32_t i = b.tip; i != old.parent; i = row(rows, i).parent)
        row(rows, i).id = none;
      engine.remove(id, s.prefix + old.depth);
      b.tip = old.parent;
    }
  }

  std::vector<text_rows> texts_;
  std::vector<branch> branches_;
};

}  // namespace espalier
