// SPDX-License-Identifier: BSL-1.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/core/util/checksum.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

enum class colour { red, green };

struct values {
  std::int32_t number = 0;
  std::uint64_t large = 0;
  float real = 0;
  double other = 0;
  bool yes = false;
  colour chosen = colour::red;
  std::string text{};
  std::vector<std::int32_t> numbers{};
  std::vector<std::string> texts{};
  std::optional<std::uint64_t> some{}, none = 1;
  float row[3] = {};

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(number, large, real, other, yes, chosen, text, numbers, texts, some, none);
    archive(std::span(row));
    archive.expect("sides", 6);
    archive.require(number < 0);
  }
};

values example() {
  values v;
  v.number = -7;
  v.large = 0x0102030405060708U;
  v.real = -0.0F;
  v.other = std::numeric_limits<double>::denorm_min();
  v.yes = true;
  v.chosen = colour::green;
  v.text = std::string("a\0b", 3);
  v.numbers = {1, -2, 3};
  v.texts = {"", "xyz"};
  v.some = 5;
  v.none = std::nullopt;
  v.row[1] = 2.5F;
  return v;
}

std::vector<std::byte> saved(values v, std::string_view what = "saved thing", std::uint32_t version = 3) {
  std::vector<std::byte> bytes;
  byte_writer write(bytes, what, version);
  v.serialize(write);
  write.finish();
  return bytes;
}

std::string message_for(std::span<const std::byte> bytes) {
  return message_of<input_error>([&] {
    values v;
    byte_reader read(bytes, "saved thing", 3);
    v.serialize(read);
    read.finish();
  });
}

}  // namespace

TEST_CASE("values that were saved are loaded bit for bit, and the bytes after them are left") {
  std::vector<std::byte> bytes = saved(example());
  const std::size_t size = bytes.size();
  byte_writer again(bytes, "another thing", 1);
  again(std::int32_t{4});
  again.finish();
  values v;
  byte_reader read(bytes, "saved thing", 3);
  v.serialize(read);
  const auto rest = read.finish();
  CHECK(rest.size() == bytes.size() - size);
  CHECK(v.number == -7);
  CHECK(v.large == 0x0102030405060708U);
  CHECK((v.real == 0 && std::signbit(v.real)));
  CHECK(v.other == std::numeric_limits<double>::denorm_min());
  CHECK(v.yes);
  CHECK(v.chosen == colour::green);
  CHECK(v.text == std::string("a\0b", 3));
  CHECK(v.numbers == std::vector<std::int32_t>{1, -2, 3});
  CHECK(v.texts == std::vector<std::string>{"", "xyz"});
  CHECK(v.some == 5U);
  CHECK_FALSE(v.none.has_value());
  CHECK(v.row[1] == 2.5F);
  std::int32_t four = 0;
  byte_reader next(rest, "another thing", 1);
  next(four);
  CHECK(four == 4);
  CHECK(next.finish().empty());
}

TEST_CASE("numbers are saved lowest byte first") {
  std::vector<std::byte> bytes;
  byte_writer write(bytes, "saved thing", 3);
  write(0x01020304);
  write.finish();
  const auto last = std::span(bytes).last(4);
  CHECK(last[0] == std::byte{4});
  CHECK(last[3] == std::byte{1});
}

TEST_CASE("bytes that are not what was saved are errors that say what is wrong") {
  const std::vector<std::byte> bytes = saved(example());
  CHECK(message_for(bytes).empty());
  CHECK(says(message_for({}), "no saved thing"));
  CHECK(says(message_for(std::vector<std::byte>(100, std::byte{7})), "no saved thing"));
  CHECK(says(message_for(saved(example(), "other thing")), "a other thing, not a saved thing"));
  CHECK(says(message_for(saved(example(), "saved thing", 4)), "of version 4", "reads version 3"));
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string message = message_for(std::span(bytes).first(n));
    CHECK(says(message, n < 8 ? "no saved thing" : "saved thing is cut short"));
  }
  // A byte that was changed anywhere is found.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    INFO("byte " << i);
    CHECK_FALSE(message_for(damaged).empty());
  }
}

TEST_CASE("values that do not fit who reads them are errors") {
  const auto message = [](const auto& write_body, const auto& read_body) {
    std::vector<std::byte> bytes;
    byte_writer write(bytes, "saved thing", 3);
    write_body(write);
    write.finish();
    return message_of<input_error>([&] {
      byte_reader read(bytes, "saved thing", 3);
      read_body(read);
      read.finish();
    });
  };
  CHECK(says(message([](auto& w) { w.expect("sides", 6); }, [](auto& r) { r.expect("sides", 7); }), "of 6 sides",
             "here there are 7"));
  const auto one_number = [](auto& w) { w(std::int32_t{5}); };
  CHECK(says(message(one_number, [](auto&) {}), "damaged", "contradict"));
  CHECK(says(message(one_number,
                     [](auto& r) {
                       std::int64_t x = 0;
                       r(x);
                     }),
             "cut short"));
  CHECK(says(message(one_number,
                     [](auto& r) {
                       std::int32_t x = 0;
                       r(x);
                       r.require(x == 6);
                     }),
             "damaged", "contradict"));
  // A list that claims to be longer than the bytes takes no memory.
  CHECK(says(message([](auto& w) { w(std::uint64_t{1} << 60); },
                     [](auto& r) {
                       std::vector<std::string> x;
                       r(x);
                     }),
             "cut short"));
}

TEST_CASE("a checksum is the FNV-1a hash of bytes, all at once or one part after another") {
  const auto of = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  CHECK(detail::digits_of(detail::checksum({})) == "cbf29ce484222325");
  CHECK(detail::digits_of(detail::checksum(of("a"))) == "af63dc4c8601ec8c");
  CHECK(detail::digits_of(detail::checksum(of("bar"), detail::checksum(of("foo")))) == "85944171f73967e8");
}
