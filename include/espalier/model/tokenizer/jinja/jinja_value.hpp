// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <utf8proc.h>
#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// A text in a run of a template. Each byte is marked as trusted or not. Trusted are the bytes that the template wrote
// and those of its own variables, of numbers and of the usual names of roles; other bytes of the input are not.
struct jinja_text {
  std::string bytes{};
  std::string marks{};     // for each byte: 1 if it is trusted, else 0
  bool is_markup = false;  // set by the filter safe: a text that + joins to this one is escaped for HTML

  jinja_text() = default;
  jinja_text(std::string text, bool is_trusted)
      : bytes(std::move(text)), marks(bytes.size(), is_trusted ? '\1' : '\0') {}

  bool is_trusted_at(std::size_t at) const { return marks[at] != '\0'; }

  // Appends the bytes [begin, end) of another text.
  void append(const jinja_text& other, std::size_t begin = 0, std::size_t end = std::string::npos) {
    if (begin >= (std::min)(end, other.bytes.size())) return;
    bytes.append(other.bytes, begin, end - begin);
    marks.append(other.marks, begin, end - begin);
  }

  jinja_text part(std::size_t begin, std::size_t end) const {
    jinja_text made;
    made.append(*this, begin, end);
    made.is_markup = is_markup;
    return made;
  }

  // Calls call(begin, end, is_trusted) for each run of bytes that are all trusted or all not trusted, in order.
  template <class FunctionT>
  void each_run(const FunctionT& call) const {
    for (std::size_t begin = 0, end = 0; begin < bytes.size(); begin = end) {
      end = (std::min)(marks.find_first_not_of(marks[begin], begin), bytes.size());
      call(begin, end, is_trusted_at(begin));
    }
  }
};

class jinja_run;
struct jinja_list;
struct jinja_dict;
struct jinja_frame;
struct jinja_arguments;
struct jinja_value;
// A function that a template can call: a method of a value, a macro of the template, or a plain function such as range.
using jinja_function = std::function<jinja_value(jinja_run&, jinja_arguments&)>;

struct jinja_undefined {
  std::string what{};  // its name, for messages

  friend bool operator==(const jinja_undefined&, const jinja_undefined&) { return true; }
};

// A value of a template, as in Python. Copies share their content. It never changes, except that variables of a
// namespace are set, and that a generator remembers that it was read. The run that made a namespace owns it, since a
// namespace may contain itself.
struct jinja_value {
  using content = std::variant<jinja_undefined, std::monostate, bool, std::int64_t, double,
                               std::shared_ptr<const jinja_text>, std::shared_ptr<jinja_list>,
                               std::shared_ptr<const jinja_dict>, std::shared_ptr<const jinja_function>, jinja_frame*>;

  content is{};

  jinja_value() = default;
  template <class ValueT>
  requires std::is_constructible_v<content, ValueT> jinja_value(ValueT value) : is(std::move(value)) {}
  jinja_value(jinja_text text) : is(std::make_shared<const jinja_text>(std::move(text))) {}

  bool is_undefined() const { return std::holds_alternative<jinja_undefined>(is); }
  bool is_none() const { return std::holds_alternative<std::monostate>(is); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(is); }
  // True for a whole number; true and false count as whole numbers, as in Python.
  bool is_integer() const { return std::holds_alternative<std::int64_t>(is) || std::holds_alternative<bool>(is); }
  // The content if it is of this type, else null.
  const jinja_text* text() const { return pointed<std::shared_ptr<const jinja_text>>(); }
  jinja_list* list() const { return pointed<std::shared_ptr<jinja_list>>(); }
  const jinja_dict* dict() const { return pointed<std::shared_ptr<const jinja_dict>>(); }
  const jinja_function* function() const { return pointed<std::shared_ptr<const jinja_function>>(); }
  jinja_frame* name_space() const { return is.index() == 9 ? std::get<jinja_frame*>(is) : nullptr; }
  // The list if it is a list or a tuple, else null.
  const jinja_list* sequence() const;
  // Number of levels of nested lists and dicts; 0 for other values.
  int depth() const;
  // Pre         is_integer()
  std::int64_t to_integer() const {
    const bool* const flag = std::get_if<bool>(&is);
    return flag ? (*flag ? 1 : 0) : std::get<std::int64_t>(is);
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

// A list, a tuple, a view of a dict, or a generator, which can be read once.
struct jinja_list {
  enum class form { list, tuple, view, generator };

  std::vector<jinja_value> items;
  form is = form::list;
  int depth = 1;
  bool was_read = false;
};

// A dict. Its items keep the order in which their keys were added.
struct jinja_dict {
  std::vector<std::pair<jinja_value, jinja_value>> items;
  int depth = 1;
};

// The arguments of a call: values in their order, and values with names.
struct jinja_arguments {
  std::vector<jinja_value> values{};
  std::vector<std::pair<std::string, jinja_value>> named{};

  const jinja_value& operator[](std::size_t i) const { return values[i]; }

  // Takes the first argument without a name or, if there is none left, the argument with this name; nothing if it is
  // not given either.
  std::optional<jinja_value> take(std::string_view name) {
    std::optional<jinja_value> taken;
    const auto found = std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == name; });
    if (!values.empty()) {
      taken = std::move(values.front());
      values.erase(values.begin());
    } else if (found != named.end()) {
      taken = std::move(found->second);
      named.erase(found);
    }
    return taken;
  }
  // Refuses arguments that were not taken.
  void finish(const jinja_run& run) const;
};

// Variables with their names: the variables of a template, of a round of a loop, of a call of a macro, or of a
// namespace.
struct jinja_frame {
  jinja_frame* around = nullptr;  // the frame in which a name is looked up that is not found here; null: none
  std::vector<std::pair<std::string, jinja_value>> variables{};

  jinja_value* find(std::string_view name) {
    const auto found = std::find_if(variables.begin(), variables.end(), [&](auto& one) { return one.first == name; });
    return found == variables.end() ? nullptr : &found->second;
  }
  void set(std::string_view name, jinja_value value) {
    if (jinja_value* const known = find(name)) {
      *known = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};

inline const jinja_list* jinja_value::sequence() const {
  const jinja_list* const found = list();
  return found && (found->is == jinja_list::form::list || found->is == jinja_list::form::tuple) ? found : nullptr;
}
inline int jinja_value::depth() const {
  return list() ? list()->depth : (dict() ? dict()->depth : 0);
}

// The state of one run of a template, and the bounds of its work. Work is counted in steps: about one for each part of
// the template that is run, for 16 bytes that are written or searched, and for an item of a list that is made.
//
// Errors      input_error that names the line, if the template calls raise_exception, does something that Python would
//             refuse, or needs more steps or levels of nesting than the bounds allow
class jinja_run {
 public:
  static constexpr int deepest_value = 200;  // nesting of lists and dicts in each other

  // Prepares a run of the template `where`; strftime_now writes the time `seconds` after the beginning of 1970.
  explicit jinja_run(std::string where, std::time_t seconds = 0) : now(seconds), where_(std::move(where)) {}
  jinja_run(const jinja_run&) = delete;

  template <class... PiecesT>
  [[noreturn]] void fail(const PiecesT&... pieces) const {
    raise<input_error>("the chat template of ", where_, " stops in line ", line_, ": ", pieces..., ".");
  }
  void spend(std::size_t steps) {
    constexpr std::size_t most_steps = 5'000'000;
    if (steps > most_steps - spent_) fail("it takes more than ", most_steps, " steps");
    spent_ += steps;
  }
  void spend_bytes(std::size_t bytes) { spend(1 + bytes / 16); }

  // A guard that lives while a part of the template runs: it takes a step, counts a level of nesting and, if `line` is
  // above 0, sets the line that messages name.
  struct part {
    part(jinja_run& of, int line) : run(of), line_before(of.line_) {
      if (line > 0) run.line_ = line;
      constexpr int deepest = 400;
      if (++run.level_ > deepest) run.fail("it calls itself more than ", deepest, " levels deep");
      run.spend(1);
    }
    ~part() {
      --run.level_;
      run.line_ = line_before;
    }
    jinja_run& run;
    int line_before;
  };

  // A guard with a frame of variables, which last as long as the guard.
  struct scope {
    explicit scope(jinja_run& of) : scope(of, *of.frame) {}
    scope(jinja_run& of, jinja_frame& around) : run(of), inner{&around, {}} { run.frame = &inner; }
    scope(const scope&) = delete;
    ~scope() { run.frame = before; }
    jinja_run& run;
    jinja_frame* before = run.frame;
    jinja_frame inner;
  };

  enum class leaving { nothing, round, loop };  // the part of the template that `continue` or `break` ends

  const std::time_t now;
  jinja_frame variables{};
  jinja_frame* frame = &variables;
  std::deque<jinja_frame> namespaces{};
  jinja_text out{};
  leaving leaves = leaving::nothing;

 private:
  std::string where_;
  std::size_t spent_ = 0;
  int line_ = 0, level_ = 0;
};

inline void jinja_arguments::finish(const jinja_run& run) const {
  if (!values.empty()) run.fail("a call has ", values.size(), " arguments too many");
  if (!named.empty()) run.fail("a call has the argument \"", named.front().first, "\", which is not known");
}

// ---- text as Python sees it

inline bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Walks over the characters of a text. A byte that is not UTF-8 counts as one character.
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

// The number that the text writes in decimal digits, rounded to the nearest, in every locale; none for any other text,
// and for a number that is too large. (libc++ has std::from_chars for double from version 20 on.)
inline std::optional<double> decimal_number(std::string text) {
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != text.npos) return std::nullopt;
  const std::size_t point = text.find('.');
  if (point != text.npos) text.replace(point, 1, std::localeconv()->decimal_point);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

// A number as Python writes it: with the fewest digits from which it can be read back.
inline std::string float_text(double number) {
  const double size = std::abs(number);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[64];
  const auto form = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  std::string made(text, std::to_chars(text, text + sizeof text, number, form).ptr);
  if (is_fixed && made.find('.') == made.npos) made += ".0";
  return made;
}

// A text between quotes as Python's repr writes it.
inline std::string python_quoted(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string made(1, quote);
  for (characters c(text); c.next();) {
    constexpr std::string_view plain = "\\\n\r\t", letters = "\\nrt";
    const std::size_t at = c.code < 0x80 ? plain.find(static_cast<char>(c.code)) : plain.npos;
    const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(c.code));
    if (c.code == static_cast<char32_t>(quote)) {
      made += {'\\', quote};
    } else if (at != plain.npos) {
      made += {'\\', letters[at]};
    } else if (c.code == ' ' || (kind != UTF8PROC_CATEGORY_CN && kind < UTF8PROC_CATEGORY_ZS)) {
      made += text.substr(c.begin, c.end - c.begin);
    } else {
      int digits = c.code < 0x100 ? 2 : (c.code < 0x10000 ? 4 : 8);
      made += {'\\', digits == 2 ? 'x' : (digits == 4 ? 'u' : 'U')};
      while (digits-- > 0)
        made += "0123456789abcdef"[c.code >> (4 * digits) & 15];
    }
  }
  return made + quote;
}

// ---- kinds of values

inline std::string_view kind_of(const jinja_value& value) {
  constexpr std::string_view names[] = {"undefined", "none",   "a boolean", "a number",   "a number",
                                        "a text",    "a list", "a dict",    "a function", "a namespace"};
  return names[value.is.index()];
}

// Returns the value; fails if it is undefined.
inline const jinja_value& defined(const jinja_run& run, const jinja_value& value) {
  if (value.is_undefined()) run.fail("\"", std::get<jinja_undefined>(value.is).what, "\" is not defined");
  return value;
}

// Returns the text of a value; fails if the value is no text.
inline const jinja_text& need_text(const jinja_run& run, const jinja_value& value) {
  if (!defined(run, value).text()) run.fail("a text is needed, not ", kind_of(value));
  return *value.text();
}

// Returns the whole number that a value is, such as a position; fails if the value is no whole number.
inline std::int64_t whole_number(const jinja_run& run, const jinja_value& value) {
  if (!defined(run, value).is_integer()) run.fail("a whole number is needed, not ", kind_of(value));
  return value.to_integer();
}

inline jinja_value undefined(std::string_view what) {
  return jinja_undefined{std::string(what)};
}

inline jinja_value trusted_text(std::string_view text) {
  return jinja_text(std::string(text), true);
}

inline bool is_true(const jinja_value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.to_double() != 0;
  if (value.text()) return !value.text()->bytes.empty();
  if (const jinja_list* list = value.list()) return list->is == jinja_list::form::generator || !list->items.empty();
  return !value.dict() || !value.dict()->items.empty();
}

inline bool are_equal(jinja_run& run, const jinja_value& a, const jinja_value& b) {
  run.spend(4);
  if (a.is_integer() && b.is_integer()) return a.to_integer() == b.to_integer();
  if (a.is_number() && b.is_number()) return a.to_double() == b.to_double();
  if (a.text() && b.text()) {
    run.spend_bytes((std::min)(a.text()->bytes.size(), b.text()->bytes.size()));
    return a.text()->bytes == b.text()->bytes;
  }
  if (const jinja_list* x = a.sequence(), *y = b.sequence(); x && y && x != y) {
    return x->is == y->is && std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                                        [&](const auto& one, const auto& other) { return are_equal(run, one, other); });
  }
  if (const jinja_dict* x = a.dict(), *y = b.dict(); x && y && x != y) {
    return x->items.size() == y->items.size() && std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
             return std::any_of(y->items.begin(), y->items.end(), [&](const auto& other) {
               return are_equal(run, item.first, other.first) && are_equal(run, item.second, other.second);
             });
           });
  }
  return a.is == b.is;
}

inline bool is_less(jinja_run& run, const jinja_value& a, const jinja_value& b) {
  run.spend(1);
  if (a.is_integer() && b.is_integer()) return a.to_integer() < b.to_integer();
  if (a.is_number() && b.is_number()) return a.to_double() < b.to_double();
  if (!defined(run, a).text() || !defined(run, b).text())
    run.fail(kind_of(a), " and ", kind_of(b), " are not put in order");
  return a.text()->bytes < b.text()->bytes;
}

// ---- lists and dicts

// A list of these items. Its depth is bounded, so that functions may call themselves for each level.
inline jinja_value make_list(jinja_run& run, std::vector<jinja_value> items,
                             jinja_list::form form = jinja_list::form::list) {
  auto made = std::make_shared<jinja_list>();
  run.spend(items.size());
  for (const jinja_value& item : items)
    made->depth = (std::max)(made->depth, 1 + item.depth());
  if (made->depth > run.deepest_value) run.fail("a list is nested more than ", run.deepest_value, " levels deep");
  made->items = std::move(items);
  made->is = form;
  return made;
}

inline const jinja_value* find_key(jinja_run& run, const jinja_dict& dict, const jinja_value& key) {
  run.spend(dict.items.size() / 4);
  for (const auto& [name, value] : dict.items) {
    const bool is_found =
        key.text() ? name.text() && name.text()->bytes == key.text()->bytes : !name.text() && are_equal(run, name, key);
    if (is_found) return &value;
  }
  return nullptr;
}

// A dict of these items; of equal keys the last one's value counts.
inline jinja_value make_dict(jinja_run& run, std::vector<std::pair<jinja_value, jinja_value>> items) {
  auto made = std::make_shared<jinja_dict>();
  for (auto& [key, value] : items) {
    if (key.depth() > 0) run.fail(kind_of(key), " cannot be a key");
    made->depth = (std::max)(made->depth, 1 + value.depth());
    if (const jinja_value* const known = find_key(run, *made, key)) {
      *const_cast<jinja_value*>(known) = std::move(value);
    } else {
      made->items.emplace_back(std::move(key), std::move(value));
    }
  }
  if (made->depth > run.deepest_value) run.fail("a dict is nested more than ", run.deepest_value, " levels deep");
  return std::shared_ptr<const jinja_dict>(std::move(made));
}

// Returns a value of JSON as a value of a template. Its texts are trusted if `is_trusted`.
inline jinja_value value_of(jinja_run& run, const nlohmann::ordered_json& from, bool is_trusted, int depth = 0) {
  if (depth > run.deepest_value) run.fail("a value is nested more than ", run.deepest_value, " levels deep");
  run.spend(1);
  if (from.is_null()) return std::monostate{};
  if (from.is_boolean()) return from.get<bool>();
  if (from.is_number_unsigned() && from.get<std::uint64_t>() >> 63 != 0)
    run.fail("the number ", from.get<std::uint64_t>(), " is too large");
  if (from.is_number_integer()) return from.get<std::int64_t>();
  if (from.is_number()) return from.get<double>();
  if (from.is_string()) return jinja_text(from.get<std::string>(), is_trusted);
  std::vector<jinja_value> values;
  for (const auto& item : from)
    values.push_back(value_of(run, item, is_trusted, depth + 1));
  if (from.is_array()) return make_list(run, std::move(values));
  auto made = std::make_shared<jinja_dict>();  // its keys are known to differ
  std::size_t i = 0;
  for (const auto& [key, item] : from.items()) {
    made->depth = (std::max)(made->depth, 1 + values[i].depth());
    made->items.emplace_back(jinja_text(key, is_trusted), std::move(values[i++]));
  }
  return std::shared_ptr<const jinja_dict>(std::move(made));
}

// The items that a loop over a value visits. Fails if the value is a generator that was read before.
inline std::vector<jinja_value> items_of(jinja_run& run, const jinja_value& value) {
  std::vector<jinja_value> items;
  if (jinja_list* const list = value.list()) {
    const bool is_generator = list->is == jinja_list::form::generator;
    if (is_generator && std::exchange(list->was_read, true)) run.fail("a list that can be read once is read again");
    items = list->items;
  } else if (const jinja_dict* dict = value.dict()) {
    for (const auto& item : dict->items)
      items.push_back(item.first);
  } else if (const jinja_text* text = value.text()) {
    run.spend(4 * text->bytes.size());
    for (characters c(text->bytes); c.next();)
      items.push_back(text->part(c.begin, c.end));
  } else if (!value.is_undefined()) {
    run.fail(kind_of(value), " cannot be gone through");
  }
  run.spend(1 + items.size());
  return items;
}

inline std::size_t length_of(jinja_run& run, const jinja_value& value) {
  if (value.text()) {
    run.spend_bytes(value.text()->bytes.size());
    return length_of(value.text()->bytes);
  }
  if (value.list() && value.list()->is != jinja_list::form::generator) return value.list()->items.size();
  if (value.dict()) return value.dict()->items.size();
  if (!value.is_undefined()) run.fail(value.list() ? "a list that is read once" : kind_of(value), " has no length");
  return 0;
}

// The position of `what` in a text from `from` on, or npos.
inline std::size_t find_in(jinja_run& run, std::string_view text, std::string_view what, std::size_t from = 0) {
  const std::size_t at = text.find(what, from);
  run.spend_bytes(((std::min)(at, text.size()) - (std::min)(from, text.size())) * (1 + what.size() / 64));
  return at;
}

inline bool contains(jinja_run& run, const jinja_value& where, const jinja_value& what) {
  if (where.text()) return find_in(run, where.text()->bytes, need_text(run, what).bytes) != std::string::npos;
  if (where.dict()) return find_key(run, *where.dict(), what) != nullptr;
  const std::vector<jinja_value> items = items_of(run, where);
  return std::any_of(items.begin(), items.end(), [&](const auto& item) { return are_equal(run, item, what); });
}

// ---- values as texts

// The form in which a value is written: as Python's str writes it or, if is_json, as json.dumps does, with
// ensure_ascii=is_ascii.
struct jinja_form {
  bool is_json = false, is_ascii = false;
  std::optional<std::string> indent{};  // the indent of one level; none: all in one line
  std::string between = ", ", after_key = ": ";
};

inline void append_written(jinja_run& run, const jinja_value& value, const jinja_form& form, std::string& to,
                           const std::string& margin = "\n") {
  const std::size_t before = to.size();
  const std::string inner = form.indent ? margin + *form.indent : std::string();
  const auto append_items = [&](std::string_view opens, const auto& items, std::string_view closes,
                                const auto& append) {
    to += opens;
    for (std::size_t i = 0; i < items.size(); ++i) {
      run.spend_bytes(form.between.size() + inner.size());
      if (i > 0) to += form.between;
      to += inner;
      append(items[i]);
    }
    if (form.indent && !items.empty()) to += margin;
    to += closes;
  };
  const auto append_value = [&](const jinja_value& item) { append_written(run, item, form, to, inner); };
  if (value.is_none()) {
    to += form.is_json ? "null" : "None";
  } else if (const bool* flag = std::get_if<bool>(&value.is)) {
    to += form.is_json ? (*flag ? "true" : "false") : (*flag ? "True" : "False");
  } else if (value.is_integer()) {
    to += std::to_string(value.to_integer());
  } else if (value.is_number()) {
    to += float_text(value.to_double());
  } else if (value.text() && form.is_json) {
    constexpr auto replace = nlohmann::json::error_handler_t::replace;
    to += nlohmann::json(value.text()->bytes).dump(-1, ' ', form.is_ascii, replace);
  } else if (value.text() && !value.text()->is_markup) {
    to += python_quoted(value.text()->bytes);
  } else if (const jinja_list* list = value.sequence()) {
    const bool is_tuple = list->is == jinja_list::form::tuple && !form.is_json;
    append_items(is_tuple ? "(" : "[", list->items, is_tuple ? (list->items.size() == 1 ? ",)" : ")") : "]",
                 append_value);
  } else if (const jinja_dict* dict = value.dict()) {
    append_items("{", dict->items, "}", [&](const auto& item) {
      if (form.is_json && !item.first.text()) run.fail(kind_of(item.first), " is no key of JSON");
      append_value(item.first);
      to += form.after_key;
      append_value(item.second);
    });
  } else if (value.is_undefined() && !form.is_json) {
    to += "Undefined";
  } else {
    run.fail(value.list() ? "a list that is read once" : kind_of(value), " cannot be written as text");
  }
  run.spend_bytes(to.size() - before);
}

// The value as text, as str() of Python.
inline jinja_text text_of(jinja_run& run, const jinja_value& value) {
  if (value.text()) {
    run.spend_bytes(value.text()->bytes.size());
    return *value.text();
  }
  if (value.is_undefined()) return {};
  std::string made;
  append_written(run, value, {}, made);
  return jinja_text(std::move(made), value.depth() == 0);
}

// The texts of values, one after the other, with `between` between any two.
inline jinja_value joined(jinja_run& run, const jinja_text& between, const std::vector<jinja_value>& items) {
  jinja_text made;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) made.append(between);
    made.append(text_of(run, items[i]));
    run.spend_bytes(between.bytes.size());
  }
  run.spend_bytes(made.bytes.size());
  return made;
}

// The text with `with` in the place of `old`, at the first `most` places; at all places if `most` is negative.
inline jinja_text replaced(jinja_run& run, const jinja_text& text, const jinja_text& old, const jinja_text& with,
                           std::int64_t most) {
  if (old.bytes.empty()) run.fail("the empty text cannot be replaced");
  jinja_text made;
  std::size_t begin = 0;
  for (std::size_t at; most-- != 0 && (at = find_in(run, text.bytes, old.bytes, begin)) != std::string::npos;) {
    made.append(text, begin, at);
    made.append(with);
    begin = at + old.bytes.size();
    run.spend_bytes(with.bytes.size());
  }
  made.append(text, begin);
  run.spend_bytes(made.bytes.size());
  return made;
}

// The text with the characters that have a meaning in HTML escaped. A text that the filter safe has marked stays as it
// is.
inline jinja_text escaped(jinja_run& run, const jinja_text& text) {
  constexpr std::pair<const char*, const char*> written[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  jinja_text made = text;
  for (const auto& [plain, escape] : written)
    if (!text.is_markup) made = replaced(run, made, {plain, false}, {escape, false}, -1);
  return made;
}

// ---- operators

// Every step-th item of a text or a list from begin to end, as in Python. A begin, end or step that the template leaves
// out is none.
inline jinja_value slice_of(jinja_run& run, const jinja_value& of, const jinja_value& begin, const jinja_value& end,
                            const jinja_value& step) {
  const jinja_list* const list = defined(run, of).sequence();
  if (!of.text() && !list) return undefined("a slice");
  std::vector<std::size_t> starts;  // bytes at which the characters of a text begin, and its end
  if (of.text()) {
    run.spend(of.text()->bytes.size() / 4);
    for (characters c(of.text()->bytes); c.next();)
      starts.push_back(c.begin);
    starts.push_back(of.text()->bytes.size());
  }
  const auto size = static_cast<std::int64_t>(of.text() ? starts.size() - 1 : list->items.size());
  const std::int64_t by = step.is_none() ? 1 : whole_number(run, step);
  if (by == 0 || by > 1 << 30 || by < -(1 << 30)) run.fail("the step of a slice is ", by);
  const auto place = [&](const jinja_value& given, std::int64_t otherwise) {
    if (given.is_none()) return otherwise;
    const std::int64_t at = whole_number(run, given);
    return std::clamp(at < 0 ? at + size : at, by > 0 ? std::int64_t{0} : std::int64_t{-1}, by > 0 ? size : size - 1);
  };
  std::int64_t at = place(begin, by > 0 ? 0 : size - 1);
  const std::int64_t last = place(end, by > 0 ? size : -1);
  const auto start = [&](std::int64_t character) { return starts[static_cast<std::size_t>(character)]; };
  if (of.text() && by == 1) return of.text()->part(start(at), start((std::max)(at, last)));
  std::vector<jinja_value> items;
  for (; by > 0 ? at < last : at > last; at += by)
    items.push_back(of.text() ? of.text()->part(start(at), start(at + 1)) : list->items[static_cast<std::size_t>(at)]);
  return of.text() ? joined(run, {}, items) : make_list(run, std::move(items), list->is);
}

// The result of + - * / // % between two numbers.
inline jinja_value computed(jinja_run& run, std::string_view op, const jinja_value& a, const jinja_value& b) {
  if ((op == "/" || op == "//" || op == "%") && b.to_double() == 0) run.fail("a number is divided by zero");
  if (a.is_integer() && b.is_integer() && op != "/") {
    const std::int64_t x = a.to_integer(), y = b.to_integer();
    std::int64_t made = 0;
    bool is_too_large = x == (std::numeric_limits<std::int64_t>::min)();
    if (op == "+") {
      is_too_large = __builtin_add_overflow(x, y, &made);
    } else if (op == "-") {
      is_too_large = __builtin_sub_overflow(x, y, &made);
    } else if (op == "*") {
      is_too_large = __builtin_mul_overflow(x, y, &made);
    } else if (!is_too_large) {
      const bool rounds_down = x % y != 0 && (x % y < 0) != (y < 0);
      made = op == "%" ? x % y + (rounds_down ? y : 0) : x / y - (rounds_down ? 1 : 0);
    }
    if (is_too_large) run.fail("a number is too large");
    return made;
  }
  const double x = a.to_double(), y = b.to_double();
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "/") return x / y;
  if (op == "//") return std::floor(x / y);
  const double rest = std::fmod(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

// The result of an operator, other than "and" and "or", between two values.
inline jinja_value operated(jinja_run& run, std::string_view op, const jinja_value& a, const jinja_value& b) {
  if (op == "==") return are_equal(run, a, b);
  if (op == "!=") return !are_equal(run, a, b);
  if (op == "in") return contains(run, b, a);
  if (op == "~") return joined(run, {}, {a, b});
  if (op == "<") return is_less(run, a, b);
  if (op == ">") return is_less(run, b, a);
  if (op == "<=") return is_less(run, a, b) || are_equal(run, a, b);
  if (op == ">=") return is_less(run, b, a) || are_equal(run, a, b);
  if (defined(run, a).is_number() && defined(run, b).is_number()) return computed(run, op, a, b);
  if (op == "+" && a.text() && b.text()) {
    const bool is_markup = a.text()->is_markup || b.text()->is_markup;
    jinja_text made = is_markup ? escaped(run, *a.text()) : *a.text();
    made.append(is_markup ? escaped(run, *b.text()) : *b.text());
    made.is_markup = is_markup;
    run.spend_bytes(made.bytes.size());
    return made;
  }
  if (op == "+" && a.sequence() && b.sequence() && a.list()->is == b.list()->is) {
    std::vector<jinja_value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(run, std::move(items), a.list()->is);
  }
  if (op == "*" && a.text() && b.is_integer()) {
    const auto times = static_cast<std::size_t>(std::clamp<std::int64_t>(b.to_integer(), 0, 1 << 30));
    run.spend(times * (1 + a.text()->bytes.size() / 16));
    jinja_text made;
    for (std::size_t i = 0; i < times; ++i)
      made.append(*a.text());
    return made;
  }
  run.fail(kind_of(a), " ", op, " ", kind_of(b), " has no result");
}

}  // namespace espalier::detail
