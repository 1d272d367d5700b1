// SPDX-License-Identifier: BSL-1.0
#include "espalier/kv_store/token_ledger.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

using text_type = std::vector<token_id>;

text_type known(const token_ledger& ledger, std::int32_t sequence) {
  const auto tokens = ledger.prefix(sequence);
  return {tokens.begin(), tokens.end()};
}

}  // namespace

TEST_CASE("a ledger knows what was remembered last, sequence by sequence") {
  token_ledger ledger(2, 8);
  CHECK(known(ledger, 0).empty());
  ledger.remember(0, 0, text_type{1, 2, 3, 4});
  ledger.remember(1, 0, text_type{5});
  CHECK(known(ledger, 0) == text_type{1, 2, 3, 4});
  CHECK(known(ledger, 1) == text_type{5});
  // More of the same text, and another text: nothing is known of the rows after those that are told.
  ledger.remember(0, 4, text_type{6});
  CHECK(known(ledger, 0) == text_type{1, 2, 3, 4, 6});
  ledger.remember(0, 1, text_type{7});
  CHECK(known(ledger, 0) == text_type{1, 7});
  // Rows after unknown ones.
  ledger.remember(0, 3, text_type{8});
  CHECK(known(ledger, 0) == text_type{1, 7});
  CHECK(known(ledger, 1) == text_type{5});
}

TEST_CASE("a ledger that is cut short forgets the tokens behind, and nothing else") {
  token_ledger ledger(1, 8);
  ledger.remember(0, 0, text_type{1, 2, 3});
  ledger.truncate(0, 5);
  CHECK(known(ledger, 0) == text_type{1, 2, 3});
  ledger.truncate(0, 2);
  CHECK(known(ledger, 0) == text_type{1, 2});
  ledger.truncate(0, 0);
  CHECK(known(ledger, 0).empty());
}

TEST_CASE("a ledger's version changes with what is known, and with nothing else") {
  token_ledger ledger(2, 8);
  ledger.remember(0, 0, text_type{1, 2, 3});
  const std::uint64_t version = ledger.version(0);
  ledger.truncate(0, 3);
  ledger.remember(0, 5, text_type{1});
  ledger.remember(1, 0, text_type{1});
  CHECK(ledger.version(0) == version);
  ledger.truncate(0, 2);
  CHECK(ledger.version(0) != version);
  const std::uint64_t shorter = ledger.version(0);
  ledger.remember(0, 2, text_type{4});
  CHECK(ledger.version(0) != shorter);
}

TEST_CASE("a copied ledger takes memory of its own") {
  token_ledger ledger(1, 100);
  ledger.remember(0, 0, text_type{1, 2, 3});
  token_ledger copy(ledger);
  copy.remember(0, 3, {});
  CHECK(known(copy, 0) == text_type{1, 2, 3});
}

TEST_CASE("a ledger without such a sequence says so") {
  token_ledger ledger(3, 8);
  for (const std::int32_t bad : {-1, 3}) {
    const std::string sentence = "sequence " + std::to_string(bad) + " does not exist: the store holds 3";
    CHECK(says(message_of<input_error>([&] { (void)ledger.prefix(bad); }), sentence));
    CHECK(says(message_of<input_error>([&] { ledger.remember(bad, 0, text_type{1}); }), sentence));
    CHECK(says(message_of<input_error>([&] { ledger.truncate(bad, 0); }), sentence));
  }
}
