// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/util/bytes.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "espalier/core/util/checksum.hpp"

namespace espalier {

namespace detail {

inline constexpr std::string_view saved_magic = "espalier";

}  // namespace detail

//! Writer that saves values as bytes, the same on every machine. Values that are saved together form a block, which
//! begins with the word espalier and the block's name, version, length and checksum.
//!
//!     byte_writer write(bytes, "saved text", 1);
//!     write(tokens, temperature);
//!     write.finish();
//!
//! A class that is saved has a member serialize(archive), which calls the archive, a byte_writer or a byte_reader, with
//! each value.
//!
//! Complexity  O(bytes)
//! Law         a byte_reader that is called with variables of the same types, in the same order, gives them these
//!             values
class byte_writer {
 public:
  static constexpr bool reads = false;

  //! Begins a block after the present end of `bytes`, which must live as long as the writer. `what` is the block's
  //! name, which its reader compares and errors show.
  byte_writer(std::vector<std::byte>& bytes, std::string_view what, std::uint32_t version) : bytes_(bytes) {
    put(std::span(detail::saved_magic));
    (*this)(std::string(what), version);
    sizes_ = bytes_.size();
    (*this)(std::uint64_t{0}, std::uint64_t{0});
  }

  //! Writes values: numbers of a fixed size, enumerations, strings, and vectors and optionals of these.
  template <class... ValuesT>
  void operator()(const ValuesT&... values) {
    (write(values), ...);
  }

  //! Writes numbers without their count, which the reader must know.
  template <class NumberT, std::size_t Extent>
  requires std::is_arithmetic_v<NumberT>
  void operator()(std::span<NumberT, Extent> numbers) { put(std::span<const NumberT>(numbers)); }

  //! Writes a number that the reader's own number must equal, such as a size of the vocabulary.
  void expect(std::string_view, std::int64_t number) { write(number); }

  //! Does nothing; byte_reader::require checks that the values read so far do not contradict each other.
  void require(bool) const {}

  //! Ends the block: fills in its length and checksum.
  void finish() {
    const std::size_t body = sizes_ + 2 * sizeof(std::uint64_t);
    const auto at = bytes_.begin() + static_cast<std::ptrdiff_t>(sizes_);
    std::vector<std::byte> sizes;
    byte_writer other(sizes);
    other(static_cast<std::uint64_t>(bytes_.size() - body), detail::checksum(std::span(bytes_).subspan(body)));
    std::copy(sizes.begin(), sizes.end(), at);
  }

 private:
  explicit byte_writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <class ValueT>
  void write(const ValueT& value) {
    if constexpr (std::is_same_v<ValueT, bool>) {
      write(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_enum_v<ValueT>) {
      write(static_cast<std::int32_t>(value));
    } else {
      static_assert(std::is_arithmetic_v<ValueT>, "a class is saved by its member serialize(archive)");
      put(std::span(&value, 1));
    }
  }

  template <class ValueT>
  void write(const std::vector<ValueT>& values) {
    write(static_cast<std::uint64_t>(values.size()));
    if constexpr (std::is_arithmetic_v<ValueT>) {
      put(std::span(values));
    } else {
      for (const ValueT& value : values)
        write(value);
    }
  }

  void write(const std::string& text) {
    write(static_cast<std::uint64_t>(text.size()));
    put(std::span(text));
  }

  template <class ValueT>
  void write(const std::optional<ValueT>& value) {
    write(value.has_value());
    if (value) write(*value);
  }

  template <class NumberT>
  void put(std::span<const NumberT> numbers) {
    const auto from = std::as_bytes(numbers);
    if constexpr (std::endian::native == std::endian::little || sizeof(NumberT) == 1) {
      bytes_.insert(bytes_.end(), from.begin(), from.end());
    } else {
      for (std::size_t i = 0; i < from.size(); i += sizeof(NumberT)) {
        const auto number = from.subspan(i, sizeof(NumberT));
        bytes_.insert(bytes_.end(), number.rbegin(), number.rend());
      }
    }
  }

  std::vector<std::byte>& bytes_;
  std::size_t sizes_ = 0;  // position in bytes_ of the block's length; its checksum comes next
};

}  // namespace espalier
