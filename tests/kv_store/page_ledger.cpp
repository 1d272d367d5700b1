// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/page_ledger.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "raises.hpp"

using espalier::page_ledger;
using espalier::token_id;

namespace {

using text = std::vector<token_id>;
using page_list = std::vector<std::int32_t>;

// A ledger, and the tokens that its sequences hold, all of them known.
class known_sequences {
 public:
  known_sequences(std::int32_t n_sequences, std::int32_t capacity, std::int32_t page_size, std::int32_t n_pages)
      : ledger(n_sequences, capacity, page_size, n_pages), tokens_(static_cast<std::size_t>(n_sequences)) {
    for (text& tokens : tokens_)
      tokens.reserve(static_cast<std::size_t>(capacity));
  }

  const text& tokens(std::int32_t s) const { return tokens_[static_cast<std::size_t>(s)]; }
  std::int32_t length(std::int32_t s) const { return static_cast<std::int32_t>(tokens(s).size()); }
  page_list pages(std::int32_t s) const { return {ledger.pages(s).begin(), ledger.pages(s).end()}; }

  void write(std::int32_t s, const text& more) {
    ledger.ensure(s, length(s), length(s) + static_cast<std::int32_t>(more.size()),
                  [&](std::int32_t from, std::int32_t to, std::int32_t n) {
                    copies.push_back({from, to, n});
                  });
    const std::int32_t first = length(s);
    of(s).insert(of(s).end(), more.begin(), more.end());
    ledger.remember(s, first, of(s));
  }
  void truncate(std::int32_t s, std::int32_t n) {
    ledger.truncate(s, n, of(s));
    of(s).resize((std::min)(of(s).size(), static_cast<std::size_t>(n)));
  }
  std::int32_t adopt(std::int32_t s, const text& wanted) {
    const auto same = std::mismatch(of(s).begin(), of(s).end(), wanted.begin(), wanted.end()).first - of(s).begin();
    const auto held = static_cast<std::int32_t>(same);
    const std::int32_t found = ledger.adopt(s, wanted, held, of(s));
    if (found <= held) {
      truncate(s, held);
    } else {
      of(s).assign(wanted.begin(), wanted.begin() + found);
    }
    return (std::max)(found, held);
  }
  void fork(std::int32_t from, std::int32_t to) {
    ledger.fork(from, to, length(from), of(to));
    of(to) = of(from);
  }

  page_ledger ledger;
  std::vector<std::array<std::int32_t, 3>> copies;  // from, to, rows

 private:
  text& of(std::int32_t s) { return tokens_[static_cast<std::size_t>(s)]; }

  std::vector<text> tokens_;
};

text run(token_id first, std::int32_t n) {
  text tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace

TEST_CASE("A pool that is used up says so, and nothing has changed") {
  const auto no_copy = [](std::int32_t, std::int32_t, std::int32_t) { FAIL(); };
  page_ledger ledger(2, 35, 10, 4);
  ledger.ensure(0, 0, 25, no_copy);
  CHECK(says(message_of<espalier::input_error>([&] { ledger.ensure(1, 0, 11, no_copy); }),
             "sequence 1 needs 2 more pages of 10 slots", "only 1 of 4 are free"));
  CHECK(ledger.n_free() == 1);
  CHECK(ledger.pages(1).empty());
  CHECK(
      says(message_of<espalier::input_error>([&] { ledger.ensure(1, 0, 36, no_copy); }), "36 slots", "capacity is 35"));
  CHECK(says(message_of<espalier::input_error>([&] { ledger.ensure(2, 0, 1, no_copy); }), "sequence 2"));
  CHECK(ledger.has_room(1, 0, 10));
  CHECK_FALSE(ledger.has_room(1, 0, 11));
  CHECK_THROWS_AS(page_ledger(0, 10, 10, 4), espalier::option_error);
  CHECK_THROWS_AS(page_ledger(2, 0, 10, 4), espalier::option_error);
  CHECK_THROWS_AS(page_ledger(2, 10, 0, 4), espalier::option_error);
  CHECK_THROWS_AS(page_ledger(2, 10, 10, 0), espalier::option_error);
}

TEST_CASE("One sequence alone always fits") {
  CHECK(page_ledger(2, 1000, 10, 4).capacity() == 40);
  CHECK(page_ledger(2, 1000, 10, 4).max_pages() == 4);
  CHECK(page_ledger(2, 35, 10, 4).capacity() == 35);
  // What was given up, and what a page is copied for, stand in nobody's way.
  known_sequences all(2, 1000, 4, 3);
  all.write(0, run(1, 12));
  all.truncate(0, 6);
  all.write(0, run(100, 6));
  CHECK(all.length(0) == 12);
  all.truncate(0, 6);
  all.truncate(0, 5);
  all.write(0, run(200, 7));
  all.truncate(0, 0);
  CHECK(all.ledger.n_free() == 3);
}

TEST_CASE("Texts that begin alike have the pages of their beginning together") {
  known_sequences all(3, 100, 8, 20);
  all.write(0, run(1, 20));
  CHECK(all.adopt(1, run(1, 30)) == 16);
  CHECK(all.pages(1) == page_list{all.pages(0)[0], all.pages(0)[1]});
  all.write(1, run(17, 10));
  CHECK(all.copies.empty());  // whole pages
  CHECK(all.ledger.n_free() == 20 - 3 - 2);

  // Part of a page: what was written into it stays the other's.
  CHECK(all.adopt(2, run(1, 12)) == 12);
  CHECK(all.ledger.n_free() == 20 - 5);
  all.write(2, {7});
  REQUIRE(all.copies.size() == 1);
  CHECK(all.copies[0] == std::array{all.pages(0)[1], all.pages(2)[1], 4});
  CHECK(all.ledger.n_free() == 20 - 6);
  all.write(2, {7});
  all.write(0, {7});
  CHECK(all.copies.size() == 1);

  for (const std::int32_t s : {0, 1, 2})
    all.truncate(s, 0);
  CHECK(all.ledger.n_free() == 20);
  for (const std::int32_t n : {26, 20, 3, 0})
    CHECK(all.adopt(2, run(1, n)) == n);
}

TEST_CASE("A sequence that goes on after what was given up has its last page again") {
  known_sequences all(1, 100, 8, 20);
  all.write(0, run(1, 11));
  const page_list pages = all.pages(0);
  all.truncate(0, 0);
  CHECK(all.adopt(0, run(1, 50)) == 11);
  CHECK(all.pages(0) == pages);
  all.write(0, run(12, 10));  // the page fills up, and the next one
  CHECK(all.copies.empty());
  all.truncate(0, 0);
  CHECK(all.adopt(0, run(1, 50)) == 21);
  // Before its end something else is written: what was there is still found.
  all.truncate(0, 10);
  all.write(0, {100});
  REQUIRE(all.copies.size() == 1);
  CHECK(all.copies[0] == std::array{pages[1], all.pages(0)[1], 2});
  CHECK(all.adopt(0, run(1, 50)) == 21);
}

TEST_CASE("A fork takes no page until one of the two is written") {
  known_sequences all(3, 100, 8, 20);
  all.write(0, run(1, 20));
  all.fork(0, 1);
  all.fork(1, 2);
  CHECK(all.pages(2) == all.pages(0));
  CHECK(all.ledger.n_free() == 17);
  all.write(1, {100});
  all.write(0, {200});
  all.write(2, {300});
  REQUIRE(all.copies.size() == 2);  // one of three keeps the page
  CHECK(all.ledger.n_free() == 15);
  std::set<std::int32_t> last;
  for (const std::int32_t s : {0, 1, 2}) {
    CHECK(all.pages(s)[1] == all.pages(0)[1]);
    last.insert(all.pages(s)[2]);
  }
  CHECK(last.size() == 3);
  for (const std::int32_t s : {0, 1, 2})
    all.truncate(s, 0);
  for (const token_id token : {100, 200, 300}) {
    text whole = run(1, 20);
    whole.push_back(token);
    CHECK(all.adopt(0, whole) == 21);
  }
  // Where the whole page is shared, and none is left, there is no room.
  known_sequences tight(2, 24, 8, 3);
  tight.write(0, run(1, 20));
  tight.fork(0, 1);
  CHECK_FALSE(tight.ledger.has_room(0, 20, 21));
  CHECK(tight.ledger.has_room(0, 20, 20));
  CHECK(message_of<espalier::input_error>([&] { tight.write(1, {1}); }) != "");
  tight.truncate(0, 16);
  tight.write(1, {1});
  CHECK(tight.copies.empty());
}

TEST_CASE("What was given up first is evicted first, of a text the end before the beginning") {
  known_sequences all(4, 64, 4, 9);
  all.write(0, run(100, 8));
  all.write(1, run(200, 11));
  REQUIRE(all.adopt(2, run(100, 4)) == 4);
  all.write(2, run(300, 4));
  const page_list first = all.pages(0), second = all.pages(1), third = all.pages(2);
  all.truncate(1, 0);
  all.truncate(2, 0);
  all.truncate(0, 0);  // with the page that the third has, too
  CHECK(all.ledger.n_free() == 9);
  page_list expected{second[2], second[1], second[0], third[1], first[1], first[0]};
  SECTION("as they were given up") {}
  SECTION("what was adopted last is evicted last") {
    CHECK(all.adopt(2, run(200, 12)) == 11);
    all.truncate(2, 0);
    std::rotate(expected.begin(), expected.begin() + 3, expected.end());
  }
  SECTION("a part was adopted last") {
    CHECK(all.adopt(2, run(100, 6)) == 6);
    all.truncate(2, 0);
  }
  SECTION("what was computed again instead, is as new as if it had been adopted") {
    all.write(2, run(200, 8));
    all.truncate(2, 0);
    expected = {second[2], third[1], first[1], first[0], second[1], second[0]};
  }
  all.write(3, run(1000, 12));  // pages that are free
  for (const std::int32_t page : expected) {
    CHECK(all.ledger.has_room(3, all.length(3), all.length(3) + 4));
    all.write(3, run(1000 + all.length(3), 4));
    CHECK(all.pages(3).back() == page);
  }
  CHECK(all.ledger.n_free() == 0);
  CHECK_FALSE(all.ledger.has_room(3, 36, 37));
  CHECK(all.adopt(1, run(200, 12)) == 0);
  CHECK(all.adopt(1, run(100, 8)) == 0);
}

TEST_CASE("Of what is computed twice one is kept") {
  known_sequences all(3, 64, 4, 20);
  all.write(0, run(1, 9));
  all.write(1, run(1, 9));
  CHECK(all.ledger.n_free() == 14);
  all.write(1, run(10, 5));
  CHECK(all.adopt(2, run(1, 14)) == 8);
  CHECK(all.pages(2)[1] == all.pages(0)[1]);
  all.truncate(2, 0);
  // What follows is found when it is given up, after the pages of the other.
  all.truncate(1, 0);
  CHECK(all.adopt(2, run(1, 20)) == 14);
  CHECK(all.pages(2)[1] == all.pages(0)[1]);
  CHECK(all.ledger.n_free() == 20 - 3 - 2);
  all.truncate(0, 0);
  all.truncate(2, 0);
  // Who has rows of its own keeps them.
  all.write(0, run(1, 9));
  const page_list own = all.pages(0);
  CHECK(all.adopt(0, run(1, 9)) == 9);
  CHECK(all.pages(0) == own);
}

TEST_CASE("What was computed twice is found after the right pages alone") {
  known_sequences all(3, 64, 4, 20);
  text first = run(1, 4), second = run(1, 4);
  for (const token_id token : {50, 51, 9, 9})
    first.push_back(token);
  for (const token_id token : {50, 51, 52, 53})
    second.push_back(token);
  all.write(0, first);
  all.write(1, second);
  all.fork(1, 2);
  all.write(1, run(60, 4));
  all.truncate(1, 0);
  // Neither the other's next page nor none at all is what the last page followed.
  first.push_back(60);
  CHECK(all.adopt(1, first) == 8);
  CHECK(all.adopt(1, run(60, 4)) == 0);
  all.truncate(2, 0);
  CHECK(all.adopt(1, second) == 8);

  // A page that another had filled up before is followed by what follows the other's.
  known_sequences part(3, 64, 8, 20);
  part.write(0, run(1, 3));
  part.truncate(0, 0);
  REQUIRE(part.adopt(0, run(1, 3)) == 3);
  part.write(1, run(1, 8));
  part.write(0, run(4, 9));
  CHECK(part.adopt(2, run(1, 12)) == 8);
  CHECK(part.pages(2) == part.pages(1));
  part.truncate(0, 8);
  CHECK(part.adopt(2, run(1, 12)) == 12);
}

TEST_CASE("What one of several sequences gives up of a page is found while others have it") {
  known_sequences all(3, 64, 8, 20);
  all.write(0, run(1, 13));
  all.fork(0, 1);
  all.truncate(1, 0);
  CHECK(all.adopt(1, run(1, 20)) == 13);
  CHECK(all.pages(1) == all.pages(0));
  all.truncate(1, 0);
  all.write(0, run(14, 2));
  CHECK(all.copies.empty());  // it was written behind what is known
  REQUIRE(all.adopt(1, run(1, 20)) == 13);
  all.truncate(0, 0);  // more is known now
  CHECK(all.adopt(2, run(1, 20)) == 15);
  all.write(1, {99});
  REQUIRE(all.copies.size() == 1);
  CHECK(all.copies[0] == std::array{all.pages(2)[1], all.pages(1)[1], 5});
}

TEST_CASE("Rows that turn out to be of other tokens are not found as what they were") {
  known_sequences all(2, 64, 4, 20);
  all.write(0, run(1, 14));
  all.truncate(0, 10);
  text other = run(1, 10);
  other[5] = 77;
  all.ledger.remember(0, 5, std::span(other).first(6));
  CHECK(all.adopt(1, run(1, 14)) == 4);
  all.ledger.truncate(0, 0);
  all.truncate(0, 0);
  all.truncate(1, 0);
  CHECK(all.ledger.n_free() == 20);
}

TEST_CASE("Whatever is done, free pages are those that nobody uses, and what was given up is found") {
  const auto page_size = GENERATE(1, 3, 8);
  const bool evicts = GENERATE(false, true);
  constexpr std::int32_t n_sequences = 4, capacity = 20;
  const std::int32_t n_pages = evicts ? 2 * ((capacity - 1) / page_size + 1) + 1 : 20000;
  known_sequences all(n_sequences, capacity, page_size, n_pages);
  CHECK(all.ledger.capacity() == capacity);
  all.copies.reserve(10000);
  std::mt19937 random(5);
  const auto below = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  std::vector<text> given_up;
  const auto shared_beginning = [](const text& a, const text& b) {
    return static_cast<std::int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  };
  std::int32_t n_refused = 0;
  for (int step = 0; step < 4000; ++step) {
    const std::int32_t s = below(n_sequences), other = below(n_sequences);
    text more(static_cast<std::size_t>(below(7)));
    for (token_id& token : more)
      token = below(2);
    switch (below(6)) {
      case 0:
      case 1:
      case 2: {
        const std::int32_t n = all.length(s) + static_cast<std::int32_t>(more.size());
        if (n > capacity) break;
        // New pages, and one for a copy where another sequence has the last page, too.
        const auto mine = all.pages(s);
        auto needed = (n + page_size - 1) / page_size - static_cast<std::int32_t>(mine.size());
        for (std::int32_t t = 0; t < n_sequences && !more.empty() && all.length(s) % page_size != 0; ++t) {
          const auto theirs = all.pages(t);
          if (t == s || std::find(theirs.begin(), theirs.end(), mine.back()) == theirs.end()) continue;
          ++needed;
          break;
        }
        const bool fits = needed <= all.ledger.n_free();
        REQUIRE(all.ledger.has_room(s, all.length(s), n) == fits);
        n_refused += fits ? 0 : 1;
        const allocation_count count;
        if (fits) all.write(s, more);
        REQUIRE(count.so_far() == 0);
        break;
      }
      case 3: {
        const std::int32_t n = below(3) == 0 ? 0 : below(all.length(s) + 1);
        if (n == 0) given_up.push_back(all.tokens(s));
        const allocation_count count;
        all.truncate(s, n);
        REQUIRE(count.so_far() == 0);
        break;
      }
      case 4: {
        text wanted(all.tokens(other).begin(), all.tokens(other).begin() + below(all.length(other) + 1));
        wanted.insert(wanted.end(), more.begin(), more.end());
        wanted.resize((std::min)(wanted.size(), std::size_t{capacity}));
        std::int32_t least = shared_beginning(all.tokens(s), wanted);
        for (const text& tokens : given_up) {
          if (!evicts) least = (std::max)(least, shared_beginning(tokens, wanted));
        }
        const allocation_count count;
        const std::int32_t n = all.adopt(s, wanted);
        REQUIRE(count.so_far() == 0);
        REQUIRE(n >= least);
        break;
      }
      default:
        // Of a text that was computed twice, and then forked, not all is found.
        if (evicts && s != other) all.fork(other, s);
    }
    std::set<std::int32_t> used;
    for (std::int32_t t = 0; t < n_sequences; ++t) {
      const auto pages = all.pages(t);
      REQUIRE(static_cast<std::int32_t>(pages.size()) == (all.length(t) + page_size - 1) / page_size);
      used.insert(pages.begin(), pages.end());
    }
    REQUIRE(all.ledger.n_free() == n_pages - static_cast<std::int32_t>(used.size()));
  }
  CHECK((n_refused > 0) == evicts);
}
