// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/files/gguf_file.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/file_bytes.hpp"

namespace espalier {

namespace detail {

// A reader of a file from its start, value after value, which keeps the bytes that it has read. It takes no memory for
// bytes that the file does not have.
class gguf_cursor {
 public:
  explicit gguf_cursor(file_bytes& file) : file_(file) {}

  const std::string& where() const { return file_.where(); }
  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }
  std::vector<char> take_bytes() {
    load();
    bytes_.resize(static_cast<std::size_t>(at_));
    bytes_.shrink_to_fit();
    return std::move(bytes_);
  }

  // Requires that `count` values of at least `bytes_each` bytes each follow, and returns count. `what` names them in
  // errors.
  std::uint64_t require(std::uint64_t count, std::uint64_t bytes_each, const char* what) const {
    if (count > left() / bytes_each) {
      raise<model_error>(where(), " is cut short or damaged: at byte ", at_, " it says that ", count, " ", what,
                         " follow, but ", left(), " bytes are left.");
    }
    return count;
  }

  void skip(std::uint64_t n) { at_ += require(n, 1, "bytes"); }

  template <class NumberT>
  NumberT number() {
    NumberT value{};
    const std::uint64_t from = at_;
    skip(sizeof value);
    load();
    std::memcpy(&value, bytes_.data() + from, sizeof value);
    return value;
  }

  std::string_view text() {
    const auto n = static_cast<std::size_t>(require(number<std::uint64_t>(), 1, "bytes of text"));
    at_ += n;
    load();
    return {bytes_.data() + at_ - n, n};
  }

 private:
  // Reads the file into bytes_, up to the end of the 64 KiB piece that the present position is in.
  void load() {
    constexpr std::size_t piece = 1U << 16;
    if (at_ <= bytes_.size()) return;
    const std::size_t had = bytes_.size();
    const auto want = static_cast<std::size_t>((std::min)(file_.size(), (std::max)(at_, at_ - at_ % piece + piece)));
    bytes_.resize(want);
    file_.read(had, bytes_.data() + had, want - had);
  }

  file_bytes& file_;
  std::uint64_t at_ = 0;
  std::vector<char> bytes_;
};

}  // namespace detail

//! The key-value pairs that a GGUF file begins with. Each value that is asked for must be of a fitting kind and in
//! range.
//!
//! Complexity  memory for the bytes of the file up to the end of its table of tensors; a value is decoded when it is
//!             asked for
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
class gguf_metadata {
 public:
  gguf_metadata() = default;

  //! Reads n pairs.
  gguf_metadata(detail::gguf_cursor& from, std::uint64_t n) : where_(from.where()) {
    from.require(n, sizeof(std::uint64_t) + sizeof(std::uint32_t) + 1, "key-value pairs");
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::string key(from.text());
      if (!values_.emplace(key, read_value(from, key)).second)
        raise<model_error>(where_, " has the key \"", key, "\" twice.");
    }
  }

  //! Takes the bytes of the file from its start to at least the end of the pairs. Must be called before a value is
  //! asked for.
  void keep(std::vector<char> bytes) { bytes_ = std::move(bytes); }

  const std::string& where() const { return where_; }
  bool has(const std::string& key) const { return values_.count(key) != 0; }
  bool is_list(const std::string& key) const { return has(key) && values_.at(key).is_list; }

  //! A whole number in [low, high].
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) const {
    const value& found = need(key);
    const std::int64_t number = !found.is_list && is_integer(found.kind) ? integer_at(found, 0) : low - 1;
    if (number < low || number > high) refuse(key, "a whole number from ", low, " to ", high);
    return number;
  }
  std::int64_t integer_or(const std::string& key, std::int64_t fallback, std::int64_t low, std::int64_t high) const {
    return has(key) ? integer(key, low, high) : fallback;
  }

  double number(const std::string& key, double low, double high) const {
    const value& found = need(key);
    const double number = !found.is_list && is_number(found.kind) ? number_at(found, 0) : low - 1;
    if (!(number >= low && number <= high)) refuse(key, "a number from ", low, " to ", high);
    return number;
  }
  double number_or(const std::string& key, double fallback, double low, double high) const {
    return has(key) ? number(key, low, high) : fallback;
  }

  bool flag_or(const std::string& key, bool fallback) const {
    if (!has(key)) return fallback;
    const value& found = need(key);
    if (found.is_list || found.kind != kind_type::boolean) refuse(key, "true or false");
    return integer_at(found, 0) != 0;
  }

  std::string text(const std::string& key) const {
    const value& found = need(key);
    if (found.is_list || found.kind != kind_type::string) refuse(key, "text");
    return std::string(text_at(found.offset));
  }
  std::string text_or(const std::string& key, const char* fallback) const { return has(key) ? text(key) : fallback; }

  std::vector<std::string> texts(const std::string& key) const {
    const value& found = need(key);
    if (!found.is_list || found.kind != kind_type::string) refuse(key, "a list of texts");
    std::vector<std::string> all;
    all.reserve(found.count);
    std::size_t offset = found.offset;
    for (std::size_t i = 0; i < found.count; ++i) {
      all.emplace_back(text_at(offset));
      offset += sizeof(std::uint64_t) + all.back().size();
    }
    return all;
  }

  //! A list of numbers of any kind, as float.
  std::vector<float> numbers(const std::string& key) const {
    const value& found = need(key);
    if (!found.is_list || !is_number(found.kind)) refuse(key, "a list of numbers");
    std::vector<float> all(found.count);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(number_at(found, i));
    return all;
  }

  //! A list of whole numbers, or of true (1) and false (0).
  std::vector<std::int64_t> integers(const std::string& key) const {
    const value& found = need(key);
    if (!found.is_list || !(is_integer(found.kind) || found.kind == kind_type::boolean))
      refuse(key, "a list of whole numbers");
    std::vector<std::int64_t> all(found.count);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = integer_at(found, i);
    return all;
  }

  template <class... PiecesT>
  [[noreturn]] void refuse(const std::string& key, const PiecesT&... allowed) const {
    raise<model_error>(where_, ": \"", key, "\" is ", shown(need(key)), ", but must be ", allowed..., ".");
  }

 private:
  // The kinds of values, numbered as in the file.
  enum class kind_type : std::uint32_t {
    uint8,
    int8,
    uint16,
    int16,
    uint32,
    int32,
    float32,
    boolean,
    string,
    array,
    uint64,
    int64,
    float64
  };

  struct value {
    kind_type kind = kind_type::uint8;  // for a list, the kind of its elements
    bool is_list = false;
    std::size_t count = 1;
    std::size_t offset = 0;  // in bytes_
  };

  static std::size_t size_of(kind_type kind) {
    constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[static_cast<std::size_t>(kind)];
  }
  static bool is_integer(kind_type kind) {
    return kind <= kind_type::int32 || kind == kind_type::uint64 || kind == kind_type::int64;
  }
  static bool is_number(kind_type kind) {
    return is_integer(kind) || kind == kind_type::float32 || kind == kind_type::float64;
  }

  value read_value(detail::gguf_cursor& from, const std::string& key) const {
    value read;
    read.kind = read_kind(from, key);
    if (read.kind == kind_type::array) {
      read.is_list = true;
      read.kind = read_kind(from, key);
      if (read.kind == kind_type::array) raise<model_error>(where_, ": \"", key, "\" is a list of lists.");
      const auto count = from.number<std::uint64_t>();
      const bool texts = read.kind == kind_type::string;
      read.count = static_cast<std::size_t>(
          from.require(count, texts ? sizeof(std::uint64_t) : size_of(read.kind), "values of a list"));
    }
    read.offset = static_cast<std::size_t>(from.at());
    if (read.kind == kind_type::string) {
      for (std::size_t i = 0; i < read.count; ++i)
        from.text();
    } else {
      from.skip(read.count * size_of(read.kind));
    }
    return read;
  }

  kind_type read_kind(detail::gguf_cursor& from, const std::string& key) const {
    const auto kind = from.number<std::uint32_t>();
    if (kind > static_cast<std::uint32_t>(kind_type::float64))
      raise<model_error>(where_, ": \"", key, "\" is of kind ", kind, ", but kinds are 0 to 12.");
    return static_cast<kind_type>(kind);
  }

  const value& need(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) raise<model_error>(where_, " lacks \"", key, "\".");
    return found->second;
  }

  template <class NumberT>
  NumberT load(std::size_t offset) const {
    NumberT number{};
    std::memcpy(&number, bytes_.data() + offset, sizeof number);
    return number;
  }

  std::string_view text_at(std::size_t offset) const {
    return {bytes_.data() + offset + sizeof(std::uint64_t), static_cast<std::size_t>(load<std::uint64_t>(offset))};
  }

  // Element i of a value as int64. A uint64 beyond the largest int64 becomes the largest int64.
  std::int64_t integer_at(const value& of, std::size_t i) const {
    const std::size_t offset = of.offset + i * size_of(of.kind);
    switch (of.kind) {
      case kind_type::uint8:
        return load<std::uint8_t>(offset);
      case kind_type::boolean:
        return load<std::uint8_t>(offset) != 0 ? 1 : 0;
      case kind_type::int8:
        return load<std::int8_t>(offset);
      case kind_type::uint16:
        return load<std::uint16_t>(offset);
      case kind_type::int16:
        return load<std::int16_t>(offset);
      case kind_type::uint32:
        return load<std::uint32_t>(offset);
      case kind_type::int32:
        return load<std::int32_t>(offset);
      case kind_type::uint64:
        return static_cast<std::int64_t>((std::min)(load<std::uint64_t>(offset), std::uint64_t{0x7FFFFFFFFFFFFFFF}));
      default:
        return load<std::int64_t>(offset);
    }
  }

  double number_at(const value& of, std::size_t i) const {
    const std::size_t offset = of.offset + i * size_of(of.kind);
    if (of.kind == kind_type::float32) return static_cast<double>(load<float>(offset));
    if (of.kind == kind_type::float64) return load<double>(offset);
    return static_cast<double>(integer_at(of, i));
  }

  std::string shown(const value& of) const {
    if (of.is_list) return "a list of " + detail::in_words(of.count);
    if (of.kind == kind_type::string) {
      const std::string_view text = text_at(of.offset);
      return '"' + std::string(text.substr(0, 60)) + (text.size() > 60 ? "...\"" : "\"");
    }
    if (of.kind == kind_type::boolean) return integer_at(of, 0) != 0 ? "true" : "false";
    return is_integer(of.kind) ? detail::in_words(integer_at(of, 0)) : detail::in_words(number_at(of, 0));
  }

  std::string where_;
  std::map<std::string, value> values_;
  std::vector<char> bytes_;
};

}  // namespace espalier
