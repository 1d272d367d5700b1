// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/text_counts.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "raises.hpp"

using namespace espalier;
using text_type = std::vector<token_id>;

static_assert(RenumberingDrafter<text_counts>);

namespace {

constexpr std::int32_t vocab = 5;

// The row of text_counts, from lists of whole contexts.
class reference {
 public:
  std::vector<float> row(const text_type& text, const text_type& path) {
    counts_.clear();
    shares_.clear();
    for (std::size_t i = 0; i < text.size(); ++i)
      learn(text_type(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i)), text[i]);
    text_type all = text;
    all.insert(all.end(), path.begin(), path.end());
    std::vector<float> row(vocab, 0.0F);
    double left = 1, mass = 0;
    text_type last;
    for (const auto& [length, after] : known(all)) {
      text_type fresh;
      double total = 0;
      for (const auto& [token, count] : *after) {
        if (row[static_cast<std::size_t>(token)] > 0) continue;
        fresh.push_back(token);
        total += count;
      }
      if (fresh.empty()) continue;
      mass = left * trust(length, *after);
      for (const token_id t : fresh)
        row[static_cast<std::size_t>(t)] =
            static_cast<float>(static_cast<double>(static_cast<float>(after->at(t))) * (mass / total));
      left -= mass;
      last = fresh;
      if (left <= 1e-2) break;
    }
    for (const token_id t : last)
      row[static_cast<std::size_t>(t)] = static_cast<float>(row[static_cast<std::size_t>(t)] * ((mass + left) / mass));
    return row;
  }

 private:
  using continuations = std::map<token_id, int>;

  // The contexts at the end of a text that something followed, the longest first, with their lengths.
  std::vector<std::pair<int, const continuations*>> known(const text_type& text) const {
    std::vector<std::pair<int, const continuations*>> found;
    for (const int n : {32, 20, 12, 8, 6, 5, 4, 3, 2, 1, 0}) {
      if (n > std::ssize(text)) continue;
      const auto at = counts_.find(text_type(text.end() - n, text.end()));
      if (at != counts_.end()) found.emplace_back(n, &at->second);
    }
    return found;
  }

  static std::vector<int> kind_of(int length, const continuations& after) {
    const int total = std::accumulate(after.begin(), after.end(), 0, [](int sum, auto& c) { return sum + c.second; });
    const int kinds = static_cast<int>(after.size());
    return {length, total < 3 ? total : total < 6 ? 3 : total < 16 ? 4 : 5, kinds < 3 ? kinds : kinds < 6 ? 3 : 4};
  }

  double trust(int length, const continuations& after) {
    static const std::vector<int> lengths{0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 32};
    const auto i = std::find(lengths.begin(), lengths.end(), length) - lengths.begin();
    const auto [right, seen] = shares_[kind_of(length, after)];
    return (right + 4 * std::min(0.95, 0.18 + 0.07 * static_cast<double>(i))) / (seen + 4);
  }

  void learn(const text_type& before, token_id token) {
    std::vector<bool> had(vocab, false);
    for (const auto& [length, after] : known(before)) {
      const bool is_new =
          std::any_of(after->begin(), after->end(), [&](auto& c) { return !had[static_cast<std::size_t>(c.first)]; });
      for (const auto& [t, count] : *after)
        had[static_cast<std::size_t>(t)] = true;
      const bool is_right = after->count(token) > 0;
      if (is_new) {
        auto& [right, seen] = shares_[kind_of(length, *after)];
        right += is_right ? 1 : 0;
        seen += 1;
      }
      if (is_right) break;
    }
    for (const int n : {0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 32}) {
      if (n <= std::ssize(before)) ++counts_[text_type(before.end() - n, before.end())][token];
    }
  }

  std::map<text_type, continuations> counts_;
  std::map<std::vector<int>, std::pair<double, double>> shares_;
};

// The drafter's row after a text.
std::vector<float> row_after(text_counts& drafter, const text_type& text) {
  drafter.reserve(1);
  drafter.begin(text);
  tree<> t(1);
  t.reset(text.empty() ? 2 : text.back());
  const node_id root[] = {root_node};
  drafter.propose(t.view(), root);
  const auto row = drafter.rows().row(root_node);
  return {row.begin(), row.end()};
}

// A text in which passages come back with changes.
text_type long_text(int n, unsigned seed, std::int32_t of = vocab) {
  text_type text;
  for (unsigned x = seed; std::ssize(text) < n;) {
    x = x * 1103515245U + 12345U;
    const std::size_t from = text.empty() ? 0 : (x >> 8U) % text.size();
    for (std::size_t i = from; i < from + (x >> 20U) % 40 && i < text.size(); ++i)
      text.push_back(text[i]);
    text.push_back(static_cast<token_id>((x >> 16U) % static_cast<unsigned>(of)));
  }
  text.resize(static_cast<std::size_t>(n));
  return text;
}

// Grows a policy's tree after a text.
template <class PolicyT>
tree<> grown(text_counts& drafter, PolicyT policy, const text_type& text) {
  drafter.reserve(most_asked(policy));
  drafter.begin(text);
  tree<> t(most_asked(policy));
  t.reset(text.back());
  philox_chance chance(7, 0, 1);
  for (auto wanted = policy.begin(t); !wanted.empty();) {
    drafter.propose(t.view(), wanted);
    wanted = policy.take(t, drafter.rows(), chance);
  }
  return t;
}

// text_counts whose rows do not list their tokens.
struct unlisted : text_counts {
  using text_counts::text_counts;
  node_rows<float> rows() const {
    node_rows<float> r = text_counts::rows();
    r.listed = nullptr;
    return r;
  }
};

}  // namespace

TEST_CASE("Drafter laws: text_counts, against counts of whole contexts") {
  reference expected;
  testing::check_step_drafter([] { return text_counts(vocab); },
                              [&](const text_type& text, const text_type& path) { return expected.row(text, path); });
}

TEST_CASE("text_counts: rows after long texts, token by token and at once") {
  reference expected;
  for (const unsigned seed : {1U, 2U, 3U}) {
    const text_type text = long_text(400, seed);
    text_counts drafter(vocab), at_once(vocab);
    for (std::size_t n = 40; n <= text.size(); n += 40) {
      const text_type part(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n));
      const std::vector<float> row = row_after(drafter, part);
      CHECK(row == expected.row(part, {}));
      CHECK(row == row_after(at_once, part));
      CHECK(std::accumulate(row.begin(), row.end(), 0.0) == Approx(1).epsilon(1e-5));
      row_after(at_once, {1});  // another text between
    }
  }
}

TEST_CASE("text_counts: a long match outweighs frequency, and a row lists its tokens above 0") {
  // 1 is followed by 2 most often; after 3 4 1, once, by 0.
  text_type text{3, 4, 1, 0};
  for (int i = 0; i < 6; ++i)
    text.insert(text.end(), {1, 2});
  text.insert(text.end(), {3, 4, 1});
  text_counts drafter(vocab);
  const std::vector<float> row = row_after(drafter, text);
  CHECK(row[0] > row[2]);
  CHECK(row[2] > 0);
  const auto rows = drafter.rows();
  text_type above;
  for (token_id t = 0; t < vocab; ++t) {
    if (row[static_cast<std::size_t>(t)] > 0) above.push_back(t);
  }
  const auto listed = rows.listed_tokens(root_node);
  CHECK(text_type(listed.begin(), listed.end()) == above);
}

TEST_CASE("text_counts: policies grow the same trees from lists of tokens as from whole rows") {
  const text_type text = long_text(3000, 5, 900);
  text_counts listed(1000);
  unlisted whole(1000);
  const auto same = [&](const auto& policy) {
    const tree<> a = grown(listed, policy, text), b = grown(whole, policy, text);
    return a.size() > 1 && a.size() == b.size() &&
           std::equal(a.view().token, a.view().token + a.size(), b.view().token) &&
           std::equal(a.view().parent, a.view().parent + a.size(), b.view().parent);
  };
  CHECK(same(best_first({.budget = 24})));
  CHECK(same(chain({.length = 7})));
  CHECK(same(eagle2({.budget = 20})));
  CHECK(same(dynatree()));
  CHECK(same(cost_aware()));
}

TEST_CASE("text_counts: a memory tells what other texts said, and forgets the oldest") {
  const text_type said{1, 2, 3, 4, 0, 3};
  text_memory memory(16);
  text_counts alone(vocab), remembers(vocab, {}, &memory);
  CHECK(row_after(alone, {1, 2}) == row_after(remembers, {1, 2}));
  memory.add(said);
  CHECK(row_after(remembers, {1, 2})[3] > 0.3F);
  CHECK(row_after(alone, {1, 2})[3] == 0);
  CHECK(remembers.for_text(0).capacity() == remembers.capacity());
  for (int i = 0; i < 3; ++i)
    memory.add(text_type{0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(row_after(remembers, {1, 2})[3] == 0);
  text_memory held(400), same(400);
  const text_type first = long_text(150, 4), second = long_text(90, 8);
  held.add(first);
  held.add({});
  held.add(second);
  const text_type texts = held.texts();
  CHECK(std::count(texts.begin(), texts.end(), -1) == 2);
  CHECK(std::ssize(texts) == 242);
  for (auto begin = texts.begin(); begin != texts.end();) {
    const auto end = std::find(begin, texts.end(), -1);
    same.add(std::span(begin, end));
    begin = end + 1;
  }
  text_counts over_held(vocab, {}, &held), over_same(vocab, {}, &same);
  CHECK(row_after(over_held, second) == row_after(over_same, second));
  // Two texts that are added in parts, in turns, are the same two texts.
  text_memory growing(1000), whole(1000);
  whole.add(first);
  whole.add(second);
  const std::int64_t numbers[] = {growing.open(), growing.open()};
  for (std::size_t n = 0; n < first.size(); n += 7) {
    for (const auto& [number, text] : {std::pair(numbers[0], std::span(first)), {numbers[1], std::span(second)}})
      growing.add(number, text.first((std::min)(n + 7, text.size())), (std::min)(n, text.size()));
  }
  CHECK(growing.texts() == texts);
  text_counts over_growing(vocab, {}, &growing), over_whole(vocab, {}, &whole);
  CHECK(row_after(over_growing, second) == row_after(over_whole, second));
  for (int i = 0; i < 3; ++i)
    held.add(long_text(200, 6));
  CHECK(std::ssize(held.texts()) <= 404);
  // Of an odd capacity, too.
  for (const std::int32_t capacity : {2, 3, 4, 5, 9}) {
    text_memory few(capacity);
    for (std::ptrdiff_t n = 1; n <= 40; ++n) {
      few.add(text_type{static_cast<token_id>(n % 5)});
      const text_type all = few.texts();
      const std::ptrdiff_t tokens = std::ssize(all) - std::count(all.begin(), all.end(), -1);
      CAPTURE(capacity, n);
      REQUIRE(tokens <= capacity);
      REQUIRE(2 * tokens >= (std::min<std::ptrdiff_t>)(2 * n, capacity));
    }
  }
  for (const std::int32_t capacity : {1, 0, -1, -5, (1 << 28) + 1, INT32_MAX}) {
    CHECK(says(message_of<option_error>([&] { text_memory refused(capacity); }),
               "capacity of " + std::to_string(capacity) + " tokens", "at least 2", "at most 268435456"));
  }
}

TEST_CASE("text_counts: a context of very many continuations keeps the frequent ones") {
  text_type text;
  for (token_id t = 2; t < 200; ++t)
    text.insert(text.end(), {t, 0, 1, t, 0, t});
  text.insert(text.end(), {1, 0});
  text_counts drafter(200);
  const std::vector<float> row = row_after(drafter, text);
  CHECK(row[1] > 0.3F);  // half of what followed 0
  CHECK(std::accumulate(row.begin(), row.end(), 0.0) == Approx(1).epsilon(1e-5));
  CHECK(std::count_if(row.begin(), row.end(), [](float p) { return p > 0; }) <= 32);
}

TEST_CASE("text_counts: rows pass through a processor, which forbids tokens and prescribes one") {
  struct rule {
    std::vector<token_id> forbidden{};
    std::optional<token_id> likely{};

    void process(tree_view, node_id, std::span<const float>, std::span<float>) {}
    std::optional<token_id> only(tree_view, node_id) { return std::nullopt; }
    std::optional<token_id> prescribed(tree_view, node_id) { return likely; }
    bool allows(tree_view, node_id, token_id t) {
      return std::find(forbidden.begin(), forbidden.end(), t) == forbidden.end();
    }
  };
  const text_type text = long_text(200, 3);
  const auto row_under = [&](rule with) {
    text_counts drafter(vocab);
    drafter.process_rows(row_processor<float>(with));
    return row_after(drafter, text);
  };
  text_counts free(vocab);
  const std::vector<float> as_it_was = row_after(free, text);
  const std::vector<float> without = row_under({.forbidden = {1, 3}});
  CHECK((as_it_was[1] > 0 && as_it_was[3] > 0));
  CHECK((without[1] == 0 && without[3] == 0));
  CHECK(std::accumulate(without.begin(), without.end(), 0.0) == Approx(1).epsilon(1e-5));
  CHECK(row_under({.likely = 2})[2] == Approx(0.9));
  CHECK(row_under({.forbidden = {0, 1, 3, 4}, .likely = 2})[2] == Approx(1));
  CHECK(row_under({.forbidden = {0, 1, 2, 3, 4}}) == as_it_was);
}

TEST_CASE("text_counts: empty texts, full texts, tokens that the vocabulary does not have") {
  text_counts drafter(vocab, {.capacity = 4});
  CHECK(row_after(drafter, {})[2] == 1);
  CHECK(row_after(drafter, {3})[3] == 1);
  CHECK(drafter.capacity() == 4);
  const std::vector<float> full = row_after(drafter, {1, 2, 1, 2});
  drafter.begin(text_type{1, 2, 1, 2, 3, 3, 3});
  CHECK(row_after(drafter, {1, 2, 1, 2}) == full);
  CHECK(says(message_of<input_error>([&] { drafter.begin(text_type{1, 5}); }), "token 5", "5 tokens"));
  CHECK(says(message_of<input_error>([&] { drafter.begin(text_type{-1}); }), "token -1"));
  CHECK(says(message_of<option_error>([] { text_counts(0); }), "0 tokens"));
  CHECK(says(message_of<option_error>([] { text_counts(vocab, {.capacity = 0}); }), "capacity"));
}

TEST_CASE("text_counts: no allocation after reserve()") {
  const text_type text = long_text(900, 9);
  text_memory memory(600);
  text_counts drafter(vocab, {.capacity = 1000}, &memory);
  best_first policy({.budget = 16});
  drafter.reserve(most_asked(policy));
  tree<> t(most_asked(policy));
  philox_chance chance(7, 0, 1);
  const auto before = total_allocations();
  drafter.begin(std::span(text).first(300));
  for (std::size_t i = 300; i < text.size(); ++i) {
    t.reset(text[i - 1]);
    for (auto wanted = policy.begin(t); !wanted.empty();) {
      drafter.propose(t.view(), wanted);
      wanted = policy.take(t, drafter.rows(), chance);
    }
    drafter.commit(t.view(), {root_node, text[i]});
  }
  memory.add(text);
  CHECK(total_allocations() == before);
}
