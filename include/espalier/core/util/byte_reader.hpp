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

#include "espalier/core/error.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/core/util/checksum.hpp"

namespace espalier {

//! Reader that loads the values of a block that a byte_writer saved.
//!
//! Complexity  O(bytes); memory at most O(bytes), also if the bytes are damaged
//! Errors      input_error if the bytes are no such block, are of another version, cut short or damaged
class byte_reader {
 public:
  static constexpr bool reads = true;

  //! Opens the block that `bytes` begin with. `what` is the name that the block must have; errors show it. Both must
  //! live as long as the reader.
  byte_reader(std::span<const std::byte> bytes, std::string_view what, std::uint32_t version)
      : what_(what), rest_(bytes) {
    const auto magic = std::as_bytes(std::span(detail::saved_magic));
    if (bytes.size() < magic.size() || !std::equal(magic.begin(), magic.end(), take(magic.size()).begin()))
      raise<input_error>("the bytes are no ", what, ": they do not begin as one.");
    std::string kind;
    std::uint32_t found = 0;
    std::uint64_t size = 0, sum = 0;
    (*this)(kind, found);
    if (kind != what) raise<input_error>("the bytes are a ", kind, ", not a ", what, ".");
    if (found != version)
      raise<input_error>("the ", what, " is of version ", found, ", but this library reads version ", version, ".");
    (*this)(size, sum);
    if (size > rest_.size())
      raise<input_error>("the ", what, " is cut short: ", size - rest_.size(), " of its bytes are missing.");
    after_ = rest_.subspan(static_cast<std::size_t>(size));
    rest_ = rest_.first(static_cast<std::size_t>(size));
    if (detail::checksum(rest_) != sum)
      raise<input_error>("the ", what, " is damaged: its checksum is not that of its bytes.");
  }

  //! Reads each value, in the order in which byte_writer wrote them.
  template <class... ValuesT>
  void operator()(ValuesT&... values) {
    (read(values), ...);
  }

  //! Reads as many numbers as the span has, which byte_writer wrote without their count.
  template <class NumberT, std::size_t Extent>
  requires std::is_arithmetic_v<NumberT>
  void operator()(std::span<NumberT, Extent> numbers) { get(std::span<NumberT>(numbers)); }

  //! Reads a number that byte_writer::expect saved, and requires that it is the given one. `of` names it in the error.
  //!
  //! Errors      input_error if another number was saved
  void expect(std::string_view of, std::int64_t number) {
    std::int64_t saved = 0;
    read(saved);
    if (saved != number)
      raise<input_error>("the ", what_, " is of ", saved, " ", of, ", but here there are ", number, ".");
  }

  //! Requires that a condition on the values that were read holds.
  //!
  //! Errors      input_error if it does not hold
  void require(bool holds) const {
    if (!holds) raise<input_error>("the ", what_, " is damaged: its values contradict each other.");
  }

  //! Ends the block and returns the bytes after it.
  //!
  //! Errors      input_error if some bytes of the block were not read
  std::span<const std::byte> finish() const {
    require(rest_.empty());
    return after_;
  }

 private:
  void require_left(std::uint64_t n, std::size_t bytes) const {
    if (n > rest_.size() / bytes) raise<input_error>("the ", what_, " is cut short: it ends where more must follow.");
  }

  std::span<const std::byte> take(std::size_t n) {
    require_left(n, 1);
    const auto taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }

  template <class ValueT>
  void read(ValueT& value) {
    if constexpr (std::is_same_v<ValueT, bool>) {
      std::uint8_t number = 0;
      read(number);
      value = number != 0;
    } else if constexpr (std::is_enum_v<ValueT>) {
      std::int32_t number = 0;
      read(number);
      value = static_cast<ValueT>(number);
    } else {
      static_assert(std::is_arithmetic_v<ValueT>, "a class is loaded by its member serialize(archive)");
      get(std::span(&value, 1));
    }
  }

  template <class ValueT>
  void read(std::vector<ValueT>& values) {
    values.resize(read_size(std::is_arithmetic_v<ValueT> ? sizeof(ValueT) : 1));
    if constexpr (std::is_arithmetic_v<ValueT>) {
      get(std::span(values));
    } else {
      for (ValueT& value : values)
        read(value);
    }
  }

  void read(std::string& text) {
    text.resize(read_size(1));
    get(std::span(text));
  }

  template <class ValueT>
  void read(std::optional<ValueT>& value) {
    bool has_value = false;
    read(has_value);
    if (has_value) {
      read(value.emplace());
    } else {
      value.reset();
    }
  }

  // Reads the saved length of a list whose elements take at least `bytes` bytes each, and checks that so many bytes are
  // left.
  std::size_t read_size(std::size_t bytes) {
    std::uint64_t size = 0;
    read(size);
    require_left(size, bytes);
    return static_cast<std::size_t>(size);
  }

  template <class NumberT>
  void get(std::span<NumberT> numbers) {
    const auto to = std::as_writable_bytes(numbers);
    const auto from = take(to.size());
    std::copy(from.begin(), from.end(), to.begin());
    if constexpr (std::endian::native != std::endian::little && sizeof(NumberT) > 1) {
      for (std::size_t i = 0; i < to.size(); i += sizeof(NumberT))
        std::reverse(to.begin() + i, to.begin() + i + sizeof(NumberT));
    }
  }

  std::string_view what_;
  std::span<const std::byte> rest_, after_;
};

}  // namespace espalier
