// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/random_tree.hpp"

namespace espalier::testing {

namespace detail {

template <class BackendT, class MakeKVT, class ReadRowT>
class backend_laws {
 public:
  backend_laws(BackendT& backend, MakeKVT make_kv, ReadRowT read_row, float tolerance)
      : backend_(backend), make_kv_(std::move(make_kv)), read_row_(std::move(read_row)), tolerance_(tolerance) {}

  coverage check() {
    covered_.n_sequences = 2;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      a_node_equals_plain_decoding_along_its_path(seed);
      sequences_do_not_meet(seed);
    }
    only_what_is_asked_for();
    a_chain_at_once_or_in_parts();
    return covered_;
  }

 private:
  using row_type = std::vector<float>;
  using text_type = std::vector<token_id>;

  text_type random_text(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    text_type text(n);
    for (token_id& t : text)
      t = static_cast<token_id>(random() % static_cast<unsigned>(backend_.vocab_size()));
    return text;
  }

  bool same(const row_type& a, const row_type& b) {
    ++covered_.n_logits_rows;
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](float x, float y) { return tolerance_ > 0 ? std::abs(x - y) <= tolerance_ : x == y; });
  }

  static row_type copy(std::span<const float> row) { return {row.begin(), row.end()}; }

  template <class KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch& batch, std::int32_t n_rows) {
    const logits_view logits = backend_.forward(kv, batch.view());
    require_law(logits.n_rows == n_rows, "forward() gives ", logits.n_rows, " rows of logits; ", n_rows,
                " were asked for.");
    require_law(n_rows == 0 || logits.vocab == backend_.vocab_size(), "forward() gives rows of ", logits.vocab,
                " logits, but vocab_size() is ", backend_.vocab_size(), ".");
    return logits;
  }

  // Commits a text, `step` tokens a pass. Returns the logits of its last token.
  template <class KVStoreT>
  row_type write(KVStoreT& kv, std::int32_t s, std::span<const token_id> text, std::int32_t step) {
    row_type last;
    for (std::int32_t done = 0; done < static_cast<std::int32_t>(text.size()); done += step) {
      const std::int32_t n = (std::min)(step, static_cast<std::int32_t>(text.size()) - done);
      forward_batch batch;
      batch.begin_sequence(s, done, n);
      batch.add_chain(text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)), done, 1);
      require_law(kv.append(s, n) == done,
                  "make_kv gives a store that is not empty, or too small: 64 rows are needed.");
      last = copy(forward(kv, batch, 1).row(0));
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      require_law(kv.commit(s, all) == n, "the store does not keep a chain of ", n, " rows.");
    }
    return last;
  }

  row_type plain(const text_type& text) {
    auto kv = make_kv_(1);
    return write(kv, 0, text, 1);
  }

  void a_node_equals_plain_decoding_along_its_path(std::uint32_t seed) {
    const tree<> t = random_tree(14, seed, backend_.vocab_size(), 0.5);
    const tree_view view = t;
    const text_type text = random_text(9, seed + 100);
    for (const node_order which : {node_order::insertion, node_order::heavy_path}) {
      for (const std::int32_t pending : {1, 4}) {
        auto kv = make_kv_(1);
        text_type committed = text;
        text_type chain = random_text(static_cast<std::size_t>(pending - 1), seed);
        chain.push_back(view.token[0]);
        write(kv, 0, committed, 3);
        tree_order order(view.n_nodes);
        order.compute(view, which);
        const std::int32_t prefix = kv.size(0);
        const std::int32_t rows = pending + view.n_nodes - 1;
        forward_batch batch;
        batch.begin_sequence(0, prefix, rows);
        batch.add_chain(chain, prefix, 1);
        batch.add_tree(view, order, pending - 1);
        require_law(kv.append(0, rows) == prefix, "the store has no room for a tree of ", rows,
                    " rows: 64 are needed.");
        const logits_view logits = forward(kv, batch, view.n_nodes);
        std::vector<row_type> tree_rows;
        for (node_id u = 0; u < view.n_nodes; ++u)
          tree_rows.push_back(copy(logits.row(order.rows()[static_cast<std::size_t>(u)])));
        committed.insert(committed.end(), chain.begin(), chain.end() - 1);
        for (node_id u = 0; u < view.n_nodes; ++u) {
          text_type along = committed;
          for (const node_id a : path_to(view, u))
            along.push_back(view.token[a]);
          require_law(same(tree_rows[static_cast<std::size_t>(u)], plain(along)), "the logits of node ", u, ", depth ",
                      view.depth[u], ", of a tree of ", view.n_nodes, " nodes after ", prefix,
                      " committed rows are not those of plain decoding along its path.");
        }
        const std::int32_t depth = *std::max_element(view.depth, view.depth + view.n_nodes);
        covered_.drawn_depth = (std::max)(covered_.drawn_depth, depth);
        // Committing the deepest path leaves the same cache rows as plain decoding.
        const auto deepest = static_cast<node_id>(std::max_element(view.depth, view.depth + view.n_nodes) - view.depth);
        std::vector<std::int32_t> kept(static_cast<std::size_t>(pending));
        std::iota(kept.begin(), kept.end(), 0);
        text_type full = committed;
        for (const node_id a : path_to(view, deepest)) {
          full.push_back(view.token[a]);
          if (a != root_node) kept.push_back(pending - 1 + order.rows()[static_cast<std::size_t>(a)]);
        }
        std::sort(kept.begin(), kept.end());
        full.resize(static_cast<std::size_t>(prefix + kv.commit(0, kept)));
        auto fresh = make_kv_(1);
        write(fresh, 0, full, 1);
        for (std::int32_t i = 0; i < kv.size(0); ++i) {
          require_law(read_row_(kv, 0, i) == read_row_(fresh, 0, i), "after a path of a tree was committed, slot ", i,
                      " does not hold what plain decoding would have left there.");
        }
      }
    }
  }

  void sequences_do_not_meet(std::uint32_t seed) {
    auto kv = make_kv_(3);
    const text_type a = random_text(5, seed), b = random_text(8, seed + 50);
    write(kv, 2, std::span(a).first(4), 4);
    write(kv, 0, std::span(b).first(6), 6);
    const auto before = read_row_(kv, 0, 5);
    forward_batch batch;
    batch.begin_sequence(2, 4, 1);
    batch.add_chain(std::span(a).last(1), 4, 1);
    batch.begin_sequence(0, 6, 2);
    batch.add_chain(std::span(b).last(2), 6, 1);
    kv.append(2, 1);
    kv.append(0, 2);
    const logits_view logits = forward(kv, batch, 2);
    const row_type first = copy(logits.row(0)), second = copy(logits.row(1));
    require_law(same(first, plain(a)) && same(second, plain(b)),
                "two sequences in one pass do not give what each gives alone.");
    require_law(read_row_(kv, 0, 5) == before, "a pass has changed a committed row.");
  }

  void only_what_is_asked_for() {
    auto kv = make_kv_(1);
    const text_type text = random_text(6, 9);
    forward_batch batch;
    batch.begin_sequence(0, 0, 6);
    batch.add_chain(text, 0, 0);
    kv.append(0, 6);
    forward(kv, batch, 0);
    // Once more, with logits of two rows in the middle.
    batch.clear();
    batch.begin_sequence(0, 0, 6);
    for (std::int32_t i = 0; i < 6; ++i)
      batch.add_row(text[static_cast<std::size_t>(i)], i, i, i == 2 || i == 4).include_first(i);
    const logits_view logits = forward(kv, batch, 2);
    const row_type first = copy(logits.row(0)), second = copy(logits.row(1));
    require_law(
        same(first, plain({text.begin(), text.begin() + 3})) && same(second, plain({text.begin(), text.begin() + 5})),
        "the logits of rows 2 and 4 of a chain, asked for alone, are not those of plain decoding.");
    require_law(!same(first, second), "the logits do not depend on the text.");
  }

  void a_chain_at_once_or_in_parts() {
    const text_type text = random_text(40, 4);
    const row_type expected = plain(text);
    for (const std::int32_t step : {2, 7, 33, 40}) {
      auto kv = make_kv_(1);
      require_law(same(write(kv, 0, text, step), expected), "40 tokens, ", step,
                  " a pass, do not give the logits of one a pass.");
    }
  }

  BackendT& backend_;
  MakeKVT make_kv_;
  ReadRowT read_row_;
  float tolerance_;
  coverage covered_;
};

}  // namespace detail

//! Checks the laws of Backend. Each node of a tree has the logits of plain decoding along its path, and the cache rows
//! of a committed path equal those of plain decoding; sequences of one pass do not influence each other; only the rows
//! that are asked for have logits; a chain may come in parts. Logits are compared bit for bit, or may differ by
//! `tolerance`; cache rows are compared by == whatever the tolerance.
//!
//!     std::cout << testing::check_backend(my_model, make_kv, read_row);
//!
//! Pre         logits of float; make_kv(n_sequences) returns an empty store of at least 64 rows; read_row(kv, sequence,
//!             slot) returns the contents of that slot as a value that == compares; max_rows() is at least 40
//! Errors      law_error with what is wrong. A backend whose rounding depends on the shape of a pass keeps the laws
//!             only to its tolerance; decoding is then lossless for the distributions that its passes over trees give
template <class BackendT, class MakeKVT, class ReadRowT>
coverage check_backend(BackendT& backend, MakeKVT make_kv, ReadRowT read_row, float tolerance = 0) {
  return detail::backend_laws(backend, std::move(make_kv), std::move(read_row), tolerance).check();
}

}  // namespace espalier::testing
