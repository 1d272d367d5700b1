// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama_cpp/branch_ledger.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/core/forward_batch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// An engine that knows sequences alone: the rows of each, by position. Copies of what is there already are a fault.
struct sequences {
  std::map<std::int32_t, std::set<std::pair<std::int32_t, int>>> rows;  // [id] position, number of the row
  int n_copies = 0;

  void copy(std::int32_t from, std::int32_t to, std::int32_t begin, std::int32_t end) {
    ++n_copies;
    for (const auto& one : rows[from]) {
      if (one.first >= begin && one.first < end) REQUIRE(rows[to].insert(one).second);
    }
  }
  void remove(std::int32_t id, std::int32_t begin) {
    std::erase_if(rows[id], [&](const auto& one) { return one.first >= begin; });
  }
  std::vector<int> of(std::int32_t id) {
    std::vector<int> numbers;
    for (const auto& one : rows[id])
      numbers.push_back(one.second);
    return numbers;
  }
};

// One text and what is known of its rows: `path` of committed rows, and of scratch rows their number and parent.
struct followed_text {
  std::vector<int> committed;
  std::vector<int> number;
  std::vector<std::int32_t> parent;

  std::vector<int> path_to(std::int32_t row) const {
    std::vector<int> path;
    for (; row >= 0; row = parent[static_cast<std::size_t>(row)])
      path.push_back(number[static_cast<std::size_t>(row)]);
    path.insert(path.end(), committed.rbegin(), committed.rend());
    std::reverse(path.begin(), path.end());
    return path;
  }
};

// Places rows after these parents, as an engine would: each row is written into all its ids.
struct scene {
  scene(std::int32_t n_texts, std::int32_t n_ids) : ledger(n_texts, n_ids), texts(static_cast<std::size_t>(n_texts)) {}

  followed_text& text(std::int32_t t) { return texts[static_cast<std::size_t>(t)]; }

  void add(forward_batch& batch, std::int32_t t, const std::vector<std::int32_t>& parents) {
    followed_text& x = text(t);
    const auto n = static_cast<std::int32_t>(x.committed.size());
    const auto first = static_cast<std::int32_t>(x.number.size());
    batch.begin_sequence(t, n, first + static_cast<std::int32_t>(parents.size()));
    for (std::size_t i = 0; i < parents.size(); ++i) {
      x.number.push_back(next_number++);
      x.parent.push_back(parents[i]);
      const std::int32_t row = first + static_cast<std::int32_t>(i);
      const auto depth = static_cast<std::int32_t>(x.path_to(row).size()) - 1;
      const mask_row mask = batch.add_row(1, depth, row, true);
      for (std::int32_t a = parents[i]; a >= 0; a = x.parent[static_cast<std::size_t>(a)])
        mask.set(a);
    }
  }

  void write(const forward_batch& batch) {
    const forward_batch_view view = batch.view();
    std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(view.n_rows()));
    for (const batch_sequence& s : view.sequences)
      ledger.place(engine, view, s, ids);
    for (const batch_sequence& s : view.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const std::int32_t row = view.slots[i] - s.prefix;
        for (const std::int32_t id : ids[i])
          REQUIRE(engine.rows[id]
                      .insert({view.positions[i], text(s.sequence).number[static_cast<std::size_t>(row)]})
                      .second);
      }
    }
    // The law: what the row sees.
    for (const batch_sequence& s : view.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        const auto i = static_cast<std::size_t>(r);
        std::vector<int> seen;
        for (const auto& [position, number] : engine.rows[ids[i][0]]) {
          if (position <= view.positions[i]) seen.push_back(number);
        }
        REQUIRE(seen == text(s.sequence).path_to(view.slots[i] - s.prefix));
      }
    }
  }

  void grow(std::int32_t t, const std::vector<std::int32_t>& parents) {
    forward_batch batch;
    add(batch, t, parents);
    write(batch);
  }

  // Commits the path to a row, or nothing.
  void commit(std::int32_t t, std::int32_t row) {
    followed_text& x = text(t);
    std::vector<std::int32_t> kept;
    for (std::int32_t a = row; a >= 0; a = x.parent[static_cast<std::size_t>(a)])
      kept.insert(kept.begin(), a);
    ledger.commit(engine, t, static_cast<std::int32_t>(x.committed.size()), kept);
    if (row >= 0) x.committed = x.path_to(row);
    x.number.clear(), x.parent.clear();
    require_trunk(t);
  }

  void truncate(std::int32_t t, std::int32_t n) {
    followed_text& x = text(t);
    ledger.truncate(engine, t, static_cast<std::int32_t>(x.committed.size()), n);
    x.committed.resize((std::min)(x.committed.size(), static_cast<std::size_t>(n)));
    x.number.clear(), x.parent.clear();
    require_trunk(t);
  }

  void require_trunk(std::int32_t t) { REQUIRE(engine.of(ledger.trunk(t)) == text(t).committed); }

  branch_ledger ledger;
  sequences engine;
  std::vector<followed_text> texts;
  int next_number = 0;
};

}  // namespace

TEST_CASE("branch_ledger: each leaf of a tree is a sequence, and a commit keeps one of them") {
  scene s(1, 4);
  s.grow(0, {-1, 0, 1});  // a chain takes one id, and copies nothing
  REQUIRE(s.engine.n_copies == 0);
  s.commit(0, 2);
  s.grow(0, {-1, 0, 0, 1, 1, 2});  // leaves 3, 4 and 5
  REQUIRE(s.engine.n_copies == 2);
  const std::int32_t trunk = s.ledger.trunk(0);
  s.commit(0, 4);
  REQUIRE(s.ledger.trunk(0) != trunk);
  REQUIRE(s.text(0).committed.size() == 6);
  // The old trunk kept what it shares with the new one, and gets the rest when it is needed.
  REQUIRE(s.engine.rows[trunk].size() == 5);
  s.grow(0, {-1, 0, 0});
  s.commit(0, -1);
  s.truncate(0, 2);
}

TEST_CASE("branch_ledger: a tree that grows layer by layer, and from nodes that are not at its end") {
  scene s(1, 5);
  s.grow(0, {-1});
  s.grow(0, {0, 0});
  s.grow(0, {1, 2, 2});
  s.grow(0, {0});  // a third child of the root, later
  s.grow(0, {6});
  s.commit(0, 7);
  REQUIRE(s.text(0).committed.size() == 3);
}

TEST_CASE("branch_ledger: random trees of several texts, commits and truncations") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  scene s(3, 24);
  for (int step = 0; step < 600; ++step) {
    const std::int32_t t = below(3);
    const auto n = static_cast<int>(s.text(t).number.size());
    const std::int32_t what = below(8);
    if (what < 5) {
      forward_batch batch;
      for (const std::int32_t other : {t, (t + 1) % 3}) {
        const auto rows = static_cast<int>(s.text(other).number.size());
        if (rows > 4 || (other != t && below(2) == 0)) continue;
        std::vector<std::int32_t> parents;
        for (std::int32_t i = 0; i < 1 + below(4); ++i)
          parents.push_back(below(rows + i + 1) - 1);
        s.add(batch, other, parents);
      }
      s.write(batch);
    } else if (what < 7) {
      s.commit(t, below(n + 1) - 1);
    } else {
      s.truncate(t, below(6));
    }
  }
}

TEST_CASE("branch_ledger: rows that are written anew") {
  scene s(1, 3);
  s.grow(0, {-1, 0, 1, 1});
  // The whole of it again, as one chain.
  followed_text& x = s.text(0);
  x.number.clear(), x.parent.clear();
  s.grow(0, {-1, 0, 1, 2});
  s.commit(0, 3);
  REQUIRE(s.text(0).committed.size() == 4);
}

TEST_CASE("branch_ledger: bad input") {
  REQUIRE(says(message_of<option_error>([] { branch_ledger(3, 2); }), "number of sequence ids", "2"));
  scene s(2, 3);
  s.grow(0, {-1, 0});
  const auto refused = [&](const std::vector<std::int32_t>& kept) {
    return message_of<input_error>([&] { s.ledger.commit(s.engine, 0, 0, kept); });
  };
  REQUIRE(says(refused({1}), "row 1", "does not follow"));
  REQUIRE(says(refused({0, 1, 2}), "row 2", "no pass has written it"));
  REQUIRE(says(message_of<input_error>([&] { s.ledger.trunk(2); }), "sequence 2"));

  // A trunk for each text and one more: two leaves are all that text 0 can have.
  s.commit(0, 1);
  REQUIRE(says(message_of<input_error>([&] {
                 s.grow(0, {-1, 0, 0, 0});
               }),
               "3 sequence ids for 2 texts", "more leaves"));
  s.commit(0, -1);
  s.text(0).number.clear(), s.text(0).parent.clear();
  s.grow(0, {-1, 0, 0});
  s.commit(0, 2);

  const auto placed = [&](const forward_batch& batch) {
    return message_of<input_error>([&] {
      std::vector<std::vector<std::int32_t>> ids(4);
      for (const batch_sequence& one : batch.view().sequences)
        s.ledger.place(s.engine, batch.view(), one, ids);
    });
  };
  forward_batch batch;
  batch.begin_sequence(1, 0, 4);
  batch.add_row(1, 0, 0, true);
  batch.add_row(1, 1, 1, true).set(0);
  batch.add_row(1, 1, 2, true).set(1);  // sees its parent, but not the root
  REQUIRE(says(placed(batch), "slot 2", "no path"));
  s.ledger.drop(s.engine, 1, 0);
  batch.clear();
  batch.begin_sequence(1, 0, 4);
  batch.add_row(1, 1, 0, true);
  REQUIRE(says(placed(batch), "position 1", "says 0"));
  s.ledger.drop(s.engine, 1, 0);
  batch.clear();
  batch.begin_sequence(1, 0, 4);
  batch.add_row(1, 0, 0, true);
  batch.add_row(1, 0, 0, true);
  REQUIRE(says(placed(batch), "rows 0 and 1", "same slot"));
}
