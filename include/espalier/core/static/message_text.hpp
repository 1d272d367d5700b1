// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string_view>

namespace espalier::detail {

// A message for machines without a heap: its first 239 bytes. Numbers are written without locale and printf.
class message_text {
 public:
  void clear() {
    size_ = 0;
    text_[0] = '\0';
  }
  const char* c_str() const { return text_.data(); }
  operator std::string_view() const { return {text_.data(), size_}; }

  message_text& operator+=(std::string_view piece) {
    const std::size_t n = (std::min)(piece.size(), text_.size() - 1 - size_);
    std::copy_n(piece.begin(), n, text_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += n;
    text_[size_] = '\0';
    return *this;
  }

  message_text& operator+=(long long value) { return add_integer(value); }
  message_text& operator+=(unsigned long long value) { return add_integer(value); }

  // Appends a number with at most six significant digits, as "1.25", "-3e-07" or "6.02214e+23".
  message_text& operator+=(double value) {
    if (value != value) return *this += "nan";
    if (value < 0) {
      *this += "-";
      value = -value;
    }
    if (value == 0) return *this += "0";
    if (value > largest) return *this += "inf";
    int exponent = 0;
    for (; value >= 10; ++exponent)
      value /= 10;
    for (; value < 1; --exponent)
      value *= 10;
    auto digits = static_cast<unsigned long>(value * 1e5 + 0.5);
    if (digits == 1000000) {
      digits = 100000;
      ++exponent;
    }
    int n_digits = 6;
    for (; digits % 10 == 0; digits /= 10)
      --n_digits;
    char number[6];
    for (int i = n_digits; i-- > 0; digits /= 10)
      number[i] = static_cast<char>('0' + digits % 10);
    const bool is_scientific = exponent < -4 || exponent > 5;
    const int before_point = is_scientific ? 1 : exponent + 1;
    if (before_point <= 0) *this += "0.";
    for (int i = before_point; i < 0; ++i)
      *this += "0";
    for (int i = 0; i < (std::max)(n_digits, before_point); ++i) {
      if (i == before_point && i > 0) *this += ".";
      *this += std::string_view(i < n_digits ? number + i : "0", 1);
    }
    if (is_scientific) {
      *this += exponent < 0 ? "e-" : "e+";
      if (exponent > -10 && exponent < 10) *this += "0";
      add_integer(exponent < 0 ? -exponent : exponent);
    }
    return *this;
  }

 private:
  static constexpr double largest = 1.7976931348623157e308;

  template <class IntegerT>
  message_text& add_integer(IntegerT value) {
    char digits[24];
    const char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return *this += std::string_view(digits, static_cast<std::size_t>(end - digits));
  }

  std::array<char, 240> text_{};
  std::size_t size_ = 0;
};

}  // namespace espalier::detail
