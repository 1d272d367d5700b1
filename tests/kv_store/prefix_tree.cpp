// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/prefix_tree.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"

using espalier::prefix_tree;
using espalier::token_id;

namespace {

using text = std::vector<token_id>;
constexpr std::int32_t none = prefix_tree::none;

// Page and number of tokens.
using place = std::pair<std::int32_t, std::int32_t>;
place find(const prefix_tree& tree, const text& tokens) {
  const auto found = tree.find(tokens);
  return {found.page, found.n_tokens};
}

text tokens_of(const prefix_tree& tree, std::int32_t page) {
  const auto tokens = tree.tokens(page);
  return {tokens.begin(), tokens.end()};
}

// Two pages of three tokens, below the first three pages, one of them not full:
//   0: 1 2 3 - 1: 4 5 6
//            - 2: 4 5 7 - 3: 8
//   4: 1 2 9
prefix_tree grown() {
  prefix_tree tree(8, 3);
  CHECK(tree.enter(0, none, text{1, 2, 3}) == 0);
  CHECK(tree.enter(1, 0, text{4, 5, 6}) == 1);
  CHECK(tree.enter(2, 0, text{4, 5, 7}) == 2);
  CHECK(tree.enter(3, 2, text{8}) == 3);
  CHECK(tree.enter(4, none, text{1, 2, 9}) == 4);
  return tree;
}

}  // namespace

TEST_CASE("The longest beginning is found, whole pages and part of the last") {
  const prefix_tree tree = grown();
  CHECK(find(tree, {}) == place{none, 0});
  CHECK(find(tree, {2, 1}) == place{none, 0});
  CHECK(find(tree, {1, 2, 3}) == place{0, 3});
  CHECK(find(tree, {1, 2, 9, 4}) == place{4, 3});
  CHECK(find(tree, {1, 2, 3, 4, 5, 6, 7}) == place{1, 6});
  CHECK(find(tree, {1, 2, 3, 4, 5, 7, 8, 9}) == place{3, 7});
  CHECK(find(tree, {1, 2, 3, 5}) == place{0, 3});
  const auto [page, n] = find(tree, {1, 2, 3, 4, 5});
  CHECK((page == 1 || page == 2));
  CHECK(n == 5);
  CHECK(find(tree, {1, 2, 8}).second == 2);
  CHECK(find(tree, {1}).second == 1);
}

TEST_CASE("A page is known by its tokens and the page above it") {
  const prefix_tree tree = grown();
  CHECK(tree.knows(3));
  CHECK_FALSE(tree.is_full(3));
  CHECK(tree.is_full(2));
  CHECK(tree.above(3) == 2);
  CHECK(tree.above(2) == 0);
  CHECK(tree.above(0) == none);
  CHECK(tokens_of(tree, 2) == text{4, 5, 7});
  CHECK_FALSE(tree.knows(5));
  CHECK(tokens_of(tree, 5).empty());
}

TEST_CASE("Of pages with the same tokens the tree knows the first") {
  prefix_tree tree = grown();
  CHECK(tree.enter(5, none, text{1, 2, 3}) == 0);
  CHECK(tree.enter(5, 2, text{8}) == 3);
  const std::int32_t begins = tree.enter(5, 0, text{4, 5});
  CHECK((begins == 1 || begins == 2));
  CHECK_FALSE(tree.knows(5));
  CHECK(tree.enter(5, 1, text{8}) == 5);  // the same after other tokens
}

TEST_CASE("A page that is not full grows") {
  prefix_tree tree = grown();
  CHECK(tree.enter(3, 2, text{8, 9}) == 3);
  CHECK(tokens_of(tree, 3) == text{8, 9});
  CHECK(find(tree, {1, 2, 3, 4, 5, 7, 8, 9, 1}) == place{3, 8});
  CHECK(tree.enter(5, 2, text{8, 9, 1}) == 5);
  CHECK(tree.enter(3, 2, text{8, 9, 1}) == 5);  // another one has grown so before
  CHECK(tokens_of(tree, 3) == text{8, 9});
  CHECK(tree.enter(6, 5, text{1}) == 6);
  CHECK(find(tree, {1, 2, 3, 4, 5, 7, 8, 9, 1, 1}) == place{6, 10});
}

TEST_CASE("With a page all below it are forgotten, and nothing else") {
  prefix_tree tree = grown();
  std::vector<std::int32_t> forgotten;
  tree.forget(0, [&](std::int32_t page) { forgotten.push_back(page); });
  CHECK(forgotten.size() == 4);
  CHECK(forgotten.back() == 0);
  CHECK(std::find(forgotten.begin(), forgotten.end(), 3) < std::find(forgotten.begin(), forgotten.end(), 2));
  CHECK(find(tree, {1, 2, 3, 4}) == place{4, 2});
  CHECK(tree.enter(0, 4, text{4}) == 0);
  CHECK(find(tree, {1, 2, 9, 4}) == place{0, 4});
}

TEST_CASE("What was cached first is evicted first") {
  prefix_tree tree = grown();
  for (const std::int32_t page : {3, 1, 2, 0, 4})
    tree.cache(page);
  CHECK(tree.n_cached() == 5);
  tree.cache(3);  // again
  tree.use(4);
  tree.use(4);
  CHECK(tree.n_cached() == 4);
  CHECK(tree.evict() == 1);
  CHECK(find(tree, {1, 2, 3, 4, 5, 6}).first == 2);
  tree.cache(2);
  tree.cache(0);
  CHECK(tree.evict() == 3);
  CHECK(tree.evict() == 2);
  CHECK(tree.evict() == 0);
  CHECK(tree.n_cached() == 0);
  CHECK(find(tree, {1, 2, 3}) == place{4, 2});
  tree.cache(4);
  tree.forget(4, [](std::int32_t) {});
  CHECK(tree.n_cached() == 0);
}

TEST_CASE("A tree finds what a list of all texts has, and allocates nothing") {
  for (const std::int32_t page_size : {1, 2, 5}) {
    INFO("pages of " << page_size);
    const std::int32_t n_pages = 60;
    prefix_tree tree(n_pages, page_size);
    std::map<std::int32_t, text> known;  // all tokens up to the end of each page
    std::deque<std::int32_t> unknown, order;
    for (std::int32_t page = 0; page < n_pages; ++page)
      unknown.push_back(page);
    std::mt19937 random(3);
    const auto some_tokens = [&](std::size_t n) {
      text tokens(n);
      for (token_id& token : tokens)
        token = static_cast<token_id>(random() % 3);
      return tokens;
    };
    for (int step = 0; step < 3000; ++step) {
      const text tokens = some_tokens(1 + random() % 12);
      std::size_t longest = 0;
      for (const auto& [page, its] : known) {
        const auto same = std::mismatch(its.begin(), its.end(), tokens.begin(), tokens.end()).first - its.begin();
        longest = (std::max)(longest, static_cast<std::size_t>(same));
      }
      const allocation_count count;
      const auto found = tree.find(tokens);
      REQUIRE(count.so_far() == 0);
      REQUIRE(found.n_tokens == static_cast<std::int32_t>(longest));
      if (longest > 0) {
        const text& its = known.at(found.page);
        REQUIRE(std::equal(tokens.begin(), tokens.begin() + found.n_tokens, its.begin()));
        REQUIRE((found.n_tokens - 1) / page_size == (static_cast<std::int32_t>(its.size()) - 1) / page_size);
      }

      // What is not known of the text's page enters, or grows.
      const std::int32_t above =
          found.n_tokens == 0 || found.n_tokens % page_size == 0 ? found.page : tree.above(found.page);
      const std::size_t first = above == none ? 0 : known.at(above).size();
      const std::size_t n = (std::min)(tokens.size() - first, static_cast<std::size_t>(page_size));
      if (n > 0) {
        const bool grows = found.page != above && known.at(found.page).size() == longest;
        if (!grows && unknown.empty()) {
          if (order.empty()) {
            // Those without others below first: numbers of tokens descend.
            std::multimap<std::size_t, std::int32_t> by_length;
            for (const auto& [page, its] : known)
              by_length.emplace(its.size(), page);
            for (auto it = by_length.rbegin(); it != by_length.rend(); ++it) {
              tree.cache(it->second);
              order.push_back(it->second);
            }
          }
          const allocation_count evictions;
          for (int i = 0; i < 20; ++i) {
            REQUIRE(tree.evict() == order.front());
            known.erase(order.front());
            unknown.push_back(order.front());
            order.pop_front();
          }
          for (const std::int32_t page : order)
            tree.use(page);
          order.clear();
          REQUIRE(tree.n_cached() == 0);
          continue;
        }
        const std::int32_t page = grows ? found.page : unknown.front();
        const auto part = std::span(tokens).subspan(first, n);
        const allocation_count entering;
        const std::int32_t has = tree.enter(page, above, part);
        REQUIRE(entering.so_far() == 0);
        if (has == page) {
          if (!grows) unknown.pop_front();
          known[page] = text(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(first + n));
        } else {
          REQUIRE(longest == first + n);
        }
      }
    }
  }
}

TEST_CASE("A tree of no pages, or of too many, is refused") {
  CHECK_THROWS_AS(prefix_tree(0, 1), espalier::option_error);
  CHECK_THROWS_AS(prefix_tree(1, 0), espalier::option_error);
  CHECK_THROWS_AS(prefix_tree(1 << 20, 1 << 11), espalier::option_error);
}
