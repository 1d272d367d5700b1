// SPDX-License-Identifier: BSL-1.0
#include "espalier/forward/held_prefix.hpp"

#include <vector>

#include "catch.hpp"
#include "espalier/kv_store/token_kv.hpp"

using namespace espalier;

namespace {

using text_type = std::vector<token_id>;

// Commits more tokens of a text, and has the store told of them.
void write(token_kv& kv, held_prefix& held, const text_type& text, std::int32_t n) {
  const std::int32_t rows[] = {0, 1, 2, 3, 4, 5};
  const std::int32_t more = n - kv.size(0);
  kv.append(0, more);
  kv.commit(0, std::span(rows).first(static_cast<std::size_t>(more)));
  held.remember(kv, 0, text, n);
}

}  // namespace

TEST_CASE("what a sequence holds of a text is compared where it has changed, and only there") {
  token_kv kv(16);
  held_prefix held;
  const text_type text{1, 2, 3, 4, 5, 6};
  CHECK(held.of(kv, 0, text) == 0);
  write(kv, held, text, 3);
  CHECK(held.of(kv, 0, text) == 3);
  CHECK(held.of(kv, 0, text_type{1, 2}) == 2);
  // Not compared: it is the text that keep() was told of.
  CHECK(held.of(kv, 0, text_type{1, 9, 3, 4}) == 3);
  held.begin();
  CHECK(held.of(kv, 0, text_type{1, 9, 3, 4}) == 1);
  // Changed by another.
  held.keep(kv, 0);
  held_prefix other;
  kv.truncate(0, 1);
  write(kv, other, text_type{1, 2, 7, 7}, 4);
  CHECK(held.of(kv, 0, text) == 2);
  CHECK(other.of(kv, 0, text_type{1, 2, 7, 7}) == 4);
}

TEST_CASE("a store is told of the rows that it does not know, and of no others") {
  token_kv kv(16);
  held_prefix held;
  const text_type text{1, 2, 3, 4, 5, 6};
  write(kv, held, text, 2);
  write(kv, held, text, 5);
  const auto known = kv.prefix(0);
  CHECK(text_type(known.begin(), known.end()) == text_type{1, 2, 3, 4, 5});
}

TEST_CASE("a store set back to a copy and written anew is not taken for what it was") {
  token_kv kv(16);
  held_prefix held, other;
  const text_type text{1, 2, 3, 4, 5, 6};
  write(kv, held, text, 2);
  const token_kv snapshot = kv;
  write(kv, held, text, 5);
  kv = snapshot;
  CHECK(held.of(kv, 0, text) == 2);
  write(kv, other, text_type{1, 2, 9, 9, 9}, 5);
  CHECK(held.of(kv, 0, text) == 2);
}
