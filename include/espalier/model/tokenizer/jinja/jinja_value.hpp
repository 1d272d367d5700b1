// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <utf8proc.h>

#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// A text of a template, which knows of each byte whether the template wrote it (trusted) or a message did.
class jinja_text {
 public:
  std::string bytes{};
  bool is_markup = false;  // marked by the filter safe: joined to others, it has them escaped for HTML

  jinja_text() = default;
  explicit jinja_text(std::string text, bool is_trusted) : bytes(std::move(text)) {
    if (is_trusted && !bytes.empty()) edges_.push_back(0);
  }

  bool is_trusted_at(std::size_t at) const {
    return (std::upper_bound(edges_.begin(), edges_.end(), at) - edges_.begin()) % 2 == 1;
  }
  // True if no byte is from a message.
  bool is_trusted() const { return bytes.empty() || (edges_.size() == 1 && edges_.front() == 0); }

  // Appends the bytes [begin, end) of another text.
  void append(const jinja_text& other, std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    if (other.is_trusted_at(begin) != (edges_.size() % 2 == 1)) edges_.push_back(bytes.size());
    auto edge = std::upper_bound(other.edges_.begin(), other.edges_.end(), begin);
    for (; edge != other.edges_.end() && *edge < end; ++edge)
      edges_.push_back(bytes.size() + *edge - begin);
    bytes.append(other.bytes, begin, end - begin);
  }
  void append(const jinja_text& other) { append(other, 0, other.bytes.size()); }

  jinja_text part(std::size_t begin, std::size_t end) const {
    jinja_text made;
    made.append(*this, begin, (std::min)(end, bytes.size()));
    made.is_markup = is_markup;
    return made;
  }

  // Calls with (begin, end, is_trusted) for each run of bytes of one kind, in order.
  template <class FunctionT>
  void each_run(const FunctionT& call) const {
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= edges_.size(); ++i) {
      const std::size_t end = i < edges_.size() ? edges_[i] : bytes.size();
      if (begin < end) call(begin, end, i % 2 == 1);
      begin = end;
    }
  }

 private:
  std::vector<std::size_t> edges_;  // positions at which trusted bytes begin, end, begin, ..., ascending
};

struct jinja_list;
struct jinja_dict;
struct jinja_function;
struct jinja_loop;

struct jinja_undefined {
  std::string what{};  // its name, for messages

  friend bool operator==(const jinja_undefined&, const jinja_undefined&) { return true; }
};

// The variables of a namespace. They belong to the run that made them, since they may contain themselves.
struct jinja_namespace;

// A value of a template, as in Python. Copies share what they hold, which never changes but for namespaces and loops.
struct jinja_value {
  using content =
      std::variant<jinja_undefined, std::monostate, bool, std::int64_t, double, std::shared_ptr<const jinja_text>,
                   std::shared_ptr<jinja_list>, std::shared_ptr<const jinja_dict>,
                   std::shared_ptr<const jinja_function>, std::shared_ptr<jinja_loop>, jinja_namespace*>;

  content is{};

  jinja_value() = default;
  template <class ValueT>
  requires std::is_constructible_v<content, ValueT> jinja_value(ValueT value) : is(std::move(value)) {}
  jinja_value(jinja_text text) : is(std::make_shared<const jinja_text>(std::move(text))) {}
  // A text that the template wrote.
  jinja_value(const char* text) : jinja_value(jinja_text(text, true)) {}

  bool is_undefined() const { return std::holds_alternative<jinja_undefined>(is); }
  bool is_none() const { return std::holds_alternative<std::monostate>(is); }
  bool is_number() const { return integer() || std::holds_alternative<double>(is); }
  // The value as what it is, or null.
  const jinja_text* text() const { return pointed<std::shared_ptr<const jinja_text>>(); }
  jinja_list* list() const { return pointed<std::shared_ptr<jinja_list>>(); }
  const jinja_dict* dict() const { return pointed<std::shared_ptr<const jinja_dict>>(); }
  const jinja_function* function() const { return pointed<std::shared_ptr<const jinja_function>>(); }
  jinja_loop* loop() const { return pointed<std::shared_ptr<jinja_loop>>(); }
  jinja_namespace* name_space() const {
    auto* const found = std::get_if<jinja_namespace*>(&is);
    return found ? *found : nullptr;
  }
  // True for whole numbers, which true and false are as well.
  bool integer() const { return std::holds_alternative<std::int64_t>(is) || std::holds_alternative<bool>(is); }
  // Pre         integer()
  std::int64_t to_integer() const {
    if (const bool* flag = std::get_if<bool>(&is)) return *flag ? 1 : 0;
    return std::get<std::int64_t>(is);
  }
  // Pre         is_number()
  double to_double() const {
    const double* const number = std::get_if<double>(&is);
    return number ? *number : static_cast<double>(to_integer());
  }

 private:
  template <class PointerT>
  auto pointed() const -> decltype(std::declval<PointerT>().get()) {
    auto* const found = std::get_if<PointerT>(&is);
    return found ? found->get() : nullptr;
  }
};

// A list, or what Python has in its place: a tuple, a view of a dict, or a generator, which can be read once.
struct jinja_list {
  enum class form { list, tuple, view, generator };

  std::vector<jinja_value> items;
  form is = form::list;
  int depth = 1;         // levels of lists and dicts
  std::size_t read = 0;  // items of a generator that were read
};

struct jinja_dict {
  std::vector<std::pair<jinja_value, jinja_value>> items;
  int depth = 1;

  const jinja_value* find(std::string_view key) const {
    for (const auto& [name, value] : items)
      if (name.text() && name.text()->bytes == key) return &value;
    return nullptr;
  }
};

struct jinja_namespace {
  std::vector<std::pair<std::string, jinja_value>> items;
};

// The state of a loop, for the variable `loop`.
struct jinja_loop {
  std::vector<jinja_value> items;
  std::size_t index = 0;
  jinja_value last_changed{};
};

// ---- text as Python sees it

inline bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The characters of a text; a byte that is no text counts as one.
class characters {
 public:
  explicit characters(std::string_view text) : text_(text) {}

  bool next() {
    begin = end;
    if (begin >= text_.size()) return false;
    const utf8_character c = read_utf8(text_.substr(begin));
    const bool is_valid = c.what == utf8_character::state::valid;
    code = is_valid ? c.code : 0xFFFD;
    end = begin + (is_valid ? c.bytes : 1);
    return true;
  }

  char32_t code = 0;
  std::size_t begin = 0, end = 0;

 private:
  std::string_view text_;
};

inline std::size_t length_of(std::string_view text) {
  std::size_t n = 0;
  for (characters c(text); c.next();)
    ++n;
  return n;
}

inline void append_utf8(std::string& text, char32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

// A number as Python writes it: the fewest digits that give it.
inline std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char text[64];
  const auto scientific = std::to_chars(text, text + sizeof text, number, std::chars_format::scientific);
  const std::string_view shortest(text, static_cast<std::size_t>(scientific.ptr - text));
  int exponent = 0;
  const char* digits = shortest.data() + shortest.find('e') + 1;
  std::from_chars(digits + (*digits == '+' ? 1 : 0), shortest.data() + shortest.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  char fixed[64];
  const auto end = std::to_chars(fixed, fixed + sizeof fixed, number, std::chars_format::fixed).ptr;
  std::string made(fixed, static_cast<std::size_t>(end - fixed));
  if (made.find('.') == std::string::npos) made += ".0";
  return made;
}

// A text between quotes as Python's repr writes it.
inline std::string python_quoted(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string made(1, quote);
  const auto escape = [&](char kind, int digits, char32_t code) {
    constexpr std::string_view hex = "0123456789abcdef";
    made += {'\\', kind};
    while (digits-- > 0)
      made += hex[code >> (4 * digits) & 15];
  };
  for (characters c(text); c.next();) {
    const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(c.code));
    const bool is_shown = kind != UTF8PROC_CATEGORY_CN && kind < UTF8PROC_CATEGORY_ZS;
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\') {
      made += {'\\', static_cast<char>(c.code)};
    } else if (c.code == '\n' || c.code == '\r' || c.code == '\t') {
      made += {'\\', c.code == '\n' ? 'n' : (c.code == '\r' ? 'r' : 't')};
    } else if (c.code == ' ' || is_shown) {
      made += text.substr(c.begin, c.end - c.begin);
    } else if (c.code < 0x100) {
      escape('x', 2, c.code);
    } else {
      escape(c.code < 0x10000 ? 'u' : 'U', c.code < 0x10000 ? 4 : 8, c.code);
    }
  }
  return made + quote;
}

// A text between quotes as Python's json has it, with characters beyond ASCII as they are or as escapes.
inline std::string json_quoted(std::string_view text, bool is_ascii) {
  std::string made = "\"";
  const auto escape = [&](char32_t unit) {
    made += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4)
      made += "0123456789abcdef"[unit >> shift & 15];
  };
  for (characters c(text); c.next();) {
    constexpr std::string_view plain = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
    const std::size_t at = c.code < 0x80 ? plain.find(static_cast<char>(c.code)) : plain.npos;
    if (at != plain.npos) {
      made += {'\\', letters[at]};
    } else if (c.code >= 0x20 && (!is_ascii || c.code < 0x7F)) {
      made += text.substr(c.begin, c.end - c.begin);
    } else if (c.code < 0x10000) {
      escape(c.code);
    } else {
      escape(0xD7C0 + (c.code >> 10));
      escape(0xDC00 + (c.code & 0x3FF));
    }
  }
  return made + '"';
}

}  // namespace espalier::detail
