// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/backend.hpp"
#include "espalier/core/forward_batch.hpp"
#include "random_tree.hpp"

// The laws of Backend, for one that is bitwise batch-invariant. make_kv(n_sequences) gives an empty store of at least 64
// rows; read_row(kv, sequence, slot) gives what the store holds there, as something with ==.
template <class BackendT, class MakeKVT, class ReadRowT>
class backend_laws {
 public:
  backend_laws(BackendT& backend, MakeKVT make_kv, ReadRowT read_row)
      : backend_(backend), make_kv_(std::move(make_kv)), read_row_(std::move(read_row)) {}

  void check() {
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      a_node_equals_plain_decoding_along_its_path(seed);
      sequences_do_not_meet(seed);
    }
    only_what_is_asked_for();
    a_chain_at_once_or_in_parts();
  }

 private:
  using row_type = std::vector<float>;

  std::vector<espalier::token_id> random_text(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<espalier::token_id> text(n);
    for (espalier::token_id& t : text)
      t = static_cast<espalier::token_id>(random() % static_cast<unsigned>(backend_.vocab_size()));
    return text;
  }

  static row_type copy(std::span<const float> row) { return {row.begin(), row.end()}; }

  // Commits a text, `step` tokens a pass, and gives the logits of its last token.
  template <class KVStoreT>
  row_type write(KVStoreT& kv, std::int32_t s, std::span<const espalier::token_id> text, std::int32_t step) {
    row_type last;
    for (std::int32_t done = 0; done < static_cast<std::int32_t>(text.size()); done += step) {
      const std::int32_t n = std::min(step, static_cast<std::int32_t>(text.size()) - done);
      espalier::forward_batch batch;
      batch.begin_sequence(s, done, n);
      batch.add_chain(text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)), done, 1);
      REQUIRE(kv.append(s, n) == done);
      const espalier::logits_view logits = backend_.forward(kv, batch.view());
      REQUIRE(logits.n_rows == 1);
      REQUIRE(logits.vocab == backend_.vocab_size());
      last = copy(logits.row(0));
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      REQUIRE(kv.commit(s, all) == n);
    }
    return last;
  }

  row_type plain(std::vector<espalier::token_id> text) {
    auto kv = make_kv_(1);
    return write(kv, 0, text, 1);
  }

  void a_node_equals_plain_decoding_along_its_path(std::uint32_t seed) {
    const espalier::tree<> t = random_tree(14, seed, backend_.vocab_size(), 0.5);
    const espalier::tree_view view = t;
    std::vector<espalier::token_id> text = random_text(9, seed + 100);
    for (const espalier::node_order which : {espalier::node_order::insertion, espalier::node_order::heavy_path}) {
      for (const std::int32_t pending : {1, 4}) {
        auto kv = make_kv_(1);
        std::vector<espalier::token_id> committed = text;
        std::vector<espalier::token_id> chain = random_text(static_cast<std::size_t>(pending - 1), seed);
        chain.push_back(view.token[0]);
        write(kv, 0, committed, 3);
        espalier::tree_order order(view.n_nodes);
        order.compute(view, which);
        const std::int32_t prefix = kv.size(0);
        const std::int32_t rows = pending + view.n_nodes - 1;
        espalier::forward_batch batch;
        batch.begin_sequence(0, prefix, rows);
        batch.add_chain(chain, prefix, 1);
        batch.add_tree(view, order, pending - 1);
        REQUIRE(kv.append(0, rows) == prefix);
        const espalier::logits_view logits = backend_.forward(kv, batch.view());
        REQUIRE(logits.n_rows == view.n_nodes);
        std::vector<row_type> tree_rows;
        for (espalier::node_id u = 0; u < view.n_nodes; ++u)
          tree_rows.push_back(copy(logits.row(order.rows()[static_cast<std::size_t>(u)])));
        committed.insert(committed.end(), chain.begin(), chain.end() - 1);
        for (espalier::node_id u = 0; u < view.n_nodes; ++u) {
          std::vector<espalier::token_id> along = committed;
          for (const espalier::node_id a : path_to(view, u))
            along.push_back(view.token[a]);
          REQUIRE(tree_rows[static_cast<std::size_t>(u)] == plain(along));
        }
        // Committing the deepest path leaves what plain decoding would have left.
        const auto deepest =
            static_cast<espalier::node_id>(std::max_element(view.depth, view.depth + view.n_nodes) - view.depth);
        std::vector<std::int32_t> kept(static_cast<std::size_t>(pending));
        std::iota(kept.begin(), kept.end(), 0);
        std::vector<espalier::token_id> full = committed;
        for (const espalier::node_id a : path_to(view, deepest)) {
          full.push_back(view.token[a]);
          if (a != 0) kept.push_back(pending - 1 + order.rows()[static_cast<std::size_t>(a)]);
        }
        std::sort(kept.begin(), kept.end());
        const std::int32_t n = kv.commit(0, kept);
        full.resize(static_cast<std::size_t>(prefix + n));
        auto fresh = make_kv_(1);
        write(fresh, 0, full, 1);
        for (std::int32_t i = 0; i < kv.size(0); ++i)
          REQUIRE(read_row_(kv, 0, i) == read_row_(fresh, 0, i));
      }
    }
  }

  void sequences_do_not_meet(std::uint32_t seed) {
    auto kv = make_kv_(3);
    const std::vector<espalier::token_id> a = random_text(5, seed), b = random_text(8, seed + 50);
    write(kv, 2, std::span(a).first(4), 4);
    write(kv, 0, std::span(b).first(6), 6);
    const auto before = read_row_(kv, 0, 5);
    espalier::forward_batch batch;
    batch.begin_sequence(2, 4, 1);
    batch.add_chain(std::span(a).last(1), 4, 1);
    batch.begin_sequence(0, 6, 2);
    batch.add_chain(std::span(b).last(2), 6, 1);
    kv.append(2, 1);
    kv.append(0, 2);
    const espalier::logits_view logits = backend_.forward(kv, batch.view());
    REQUIRE(logits.n_rows == 2);
    const row_type first = copy(logits.row(0)), second = copy(logits.row(1));
    REQUIRE(first == plain(a));
    REQUIRE(second == plain(b));
    REQUIRE(read_row_(kv, 0, 5) == before);
  }

  void only_what_is_asked_for() {
    auto kv = make_kv_(1);
    const std::vector<espalier::token_id> text = random_text(6, 9);
    espalier::forward_batch batch;
    batch.begin_sequence(0, 0, 6);
    batch.add_chain(text, 0, 0);
    kv.append(0, 6);
    REQUIRE(backend_.forward(kv, batch.view()).n_rows == 0);
    // Again, with logits of two rows in the middle.
    batch.clear();
    batch.begin_sequence(0, 0, 6);
    for (std::int32_t i = 0; i < 6; ++i)
      batch.add_row(text[static_cast<std::size_t>(i)], i, i, i == 2 || i == 4).include_first(i);
    const espalier::logits_view logits = backend_.forward(kv, batch.view());
    REQUIRE(logits.n_rows == 2);
    const row_type first = copy(logits.row(0)), second = copy(logits.row(1));
    REQUIRE(first == plain({text.begin(), text.begin() + 3}));
    REQUIRE(second == plain({text.begin(), text.begin() + 5}));
    REQUIRE(first != second);
  }

  void a_chain_at_once_or_in_parts() {
    const std::vector<espalier::token_id> text = random_text(40, 4);
    const row_type expected = plain(text);
    for (const std::int32_t step : {2, 7, 33, 40}) {
      auto kv = make_kv_(1);
      REQUIRE(write(kv, 0, text, step) == expected);
    }
  }

  BackendT& backend_;
  MakeKVT make_kv_;
  ReadRowT read_row_;
};
