// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/model/tokenizer/jinja/jinja_value.hpp"

namespace espalier::detail {

// The work of a run so far, and the line it is at, for messages. A step is a part of the template that is run, 16 bytes
// that are written or searched, or an item of a list that is made.
class jinja_work {
 public:
  explicit jinja_work(std::string where) : where_(std::move(where)) {}

  int line = 0;

  template <class... PiecesT>
  [[noreturn]] void fail(const PiecesT&... pieces) const {
    raise<input_error>("the chat template of ", where_, " stops in line ", line, ": ", pieces..., ".");
  }

  void spend(std::size_t steps) {
    if (steps > left_) fail("it takes more than ", most_steps, " steps");
    left_ -= steps;
  }
  void spend_bytes(std::size_t bytes) { spend(1 + bytes / 16); }

 private:
  static constexpr std::size_t most_steps = 5'000'000;

  std::string where_;
  std::size_t left_ = most_steps;
};

// Nesting of lists and dicts in each other.
inline constexpr int deepest_value = 200;

// The arguments of a call.
struct jinja_arguments {
  std::vector<jinja_value> values{};
  std::vector<std::pair<std::string, jinja_value>> named{};
  std::size_t taken = 0;

  // The next argument, which may be given by name, too; nothing if it is not given.
  std::optional<jinja_value> take(std::string_view name) {
    if (taken < values.size()) return values[taken++];
    const auto found = std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == name; });
    if (found == named.end()) return std::nullopt;
    jinja_value value = std::move(found->second);
    named.erase(found);
    return value;
  }
  jinja_value take_or(std::string_view name, jinja_value otherwise) {
    return take(name).value_or(std::move(otherwise));
  }
  void finish(const jinja_work& work) const {
    if (taken < values.size()) work.fail("a call has ", values.size(), " arguments, but at most ", taken, " are known");
    if (!named.empty()) work.fail("a call has the argument \"", named.front().first, "\", which is not known");
  }
};

// A function that a template can call: a method of a value, a macro of the template, or one that is always there.
struct jinja_node;
struct jinja_frame;
struct jinja_function {
  std::string name;
  jinja_value (*method)(jinja_work&, const jinja_value& self, jinja_arguments&) = nullptr;
  jinja_value self{};
  const jinja_node* macro = nullptr;
  std::weak_ptr<jinja_frame> around{};  // variables where the macro stands
};

using jinja_method = decltype(jinja_function::method);

inline std::string_view kind_of(const jinja_value& value) {
  constexpr std::string_view names[] = {"undefined", "none",   "a boolean",  "a number", "a number",   "a text",
                                        "a list",    "a dict", "a function", "a loop",   "a namespace"};
  return names[value.is.index()];
}

[[noreturn]] inline void fail_undefined(const jinja_work& work, const jinja_value& value) {
  work.fail("\"", std::get<jinja_undefined>(value.is).what, "\" is not defined");
}

inline jinja_value undefined(std::string_view what) {
  return jinja_undefined{std::string(what)};
}

inline jinja_value trusted_text(std::string text) {
  return jinja_text(std::move(text), true);
}

// A list of these items. Its depth is bounded, so that functions may call themselves for each level.
inline jinja_value make_list(jinja_work& work, std::vector<jinja_value> items,
                             jinja_list::form form = jinja_list::form::list) {
  auto made = std::make_shared<jinja_list>();
  work.spend(items.size());
  for (const jinja_value& item : items)
    made->depth =
        (std::max)(made->depth, 1 + (item.list() ? item.list()->depth : (item.dict() ? item.dict()->depth : 0)));
  if (made->depth > deepest_value) work.fail("a list is nested more than ", deepest_value, " levels deep");
  made->items = std::move(items);
  made->is = form;
  return made;
}

inline bool is_true(const jinja_value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.to_double() != 0;
  if (value.text()) return !value.text()->bytes.empty();
  if (const jinja_list* list = value.list()) return list->is == jinja_list::form::generator || !list->items.empty();
  if (value.dict()) return !value.dict()->items.empty();
  return true;
}

inline bool are_equal(jinja_work& work, const jinja_value& a, const jinja_value& b) {
  work.spend(4);
  if (a.integer() && b.integer()) return a.to_integer() == b.to_integer();
  if (a.is_number() && b.is_number()) return a.to_double() == b.to_double();
  if (a.is.index() != b.is.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.text()) {
    work.spend_bytes((std::min)(a.text()->bytes.size(), b.text()->bytes.size()));
    return a.text()->bytes == b.text()->bytes;
  }
  if (const jinja_list* x = a.list(), *y = b.list(); x) {
    if (x == y) return true;
    const bool comparable = x->is == y->is && (x->is == jinja_list::form::list || x->is == jinja_list::form::tuple);
    if (!comparable || x->items.size() != y->items.size()) return false;
    for (std::size_t i = 0; i < x->items.size(); ++i)
      if (!are_equal(work, x->items[i], y->items[i])) return false;
    return true;
  }
  if (const jinja_dict* x = a.dict(), *y = b.dict(); x) {
    if (x->items.size() != y->items.size()) return false;
    for (const auto& [key, value] : x->items) {
      const auto found = std::find_if(y->items.begin(), y->items.end(),
                                      [&, &key = key](const auto& item) { return are_equal(work, item.first, key); });
      if (found == y->items.end() || !are_equal(work, value, found->second)) return false;
    }
    return true;
  }
  return a.is == b.is;
}

inline bool is_less(jinja_work& work, const jinja_value& a, const jinja_value& b) {
  work.spend(1);
  for (const jinja_value* value : {&a, &b})
    if (value->is_undefined()) fail_undefined(work, *value);
  if (a.integer() && b.integer()) return a.to_integer() < b.to_integer();
  if (a.is_number() && b.is_number()) return a.to_double() < b.to_double();
  if (a.text() && b.text()) return a.text()->bytes < b.text()->bytes;
  const jinja_list *x = a.list(), *y = b.list();
  if (!x || !y || x->is != y->is || x->is == jinja_list::form::generator || x->is == jinja_list::form::view)
    work.fail(kind_of(a), " and ", kind_of(b), " have no order");
  for (std::size_t i = 0; i < x->items.size() && i < y->items.size(); ++i)
    if (!are_equal(work, x->items[i], y->items[i])) return is_less(work, x->items[i], y->items[i]);
  return x->items.size() < y->items.size();
}

inline void append_repr(jinja_work& work, const jinja_value& value, std::string& to);

// The value as text, as str() of Python.
inline jinja_text text_of(jinja_work& work, const jinja_value& value) {
  if (value.text()) {
    work.spend_bytes(value.text()->bytes.size());
    return *value.text();
  }
  if (value.is_undefined()) return {};
  std::string made;
  append_repr(work, value, made);
  return jinja_text(std::move(made), !value.list() && !value.dict());
}

inline void append_repr(jinja_work& work, const jinja_value& value, std::string& to) {
  const std::size_t before = to.size();
  const auto append_items = [&](std::string_view opens, const auto& items, std::string_view closes, auto append) {
    to += opens;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) to += ", ";
      append(items[i]);
    }
    to += closes;
  };
  if (value.is_undefined()) {
    to += "Undefined";
  } else if (value.is_none()) {
    to += "None";
  } else if (const bool* flag = std::get_if<bool>(&value.is)) {
    to += *flag ? "True" : "False";
  } else if (value.integer()) {
    to += std::to_string(value.to_integer());
  } else if (value.is_number()) {
    to += float_text(value.to_double());
  } else if (value.text() && !value.text()->is_markup) {
    to += python_quoted(value.text()->bytes);
  } else if (const jinja_dict* dict = value.dict()) {
    append_items("{", dict->items, "}", [&](const auto& item) {
      append_repr(work, item.first, to);
      to += ": ";
      append_repr(work, item.second, to);
    });
  } else if (const jinja_list* list = value.list();
             list && (list->is == jinja_list::form::list || list->is == jinja_list::form::tuple)) {
    const bool is_tuple = list->is == jinja_list::form::tuple;
    append_items(is_tuple ? "(" : "[", list->items, is_tuple ? (list->items.size() == 1 ? ",)" : ")") : "]",
                 [&](const jinja_value& item) { append_repr(work, item, to); });
  } else {
    work.fail(list ? "a list that is read once" : kind_of(value), " cannot be written as text");
  }
  work.spend_bytes(to.size() - before);
}

// How tojson writes a value: the options of json.dumps of Python, with ensure_ascii=False by default.
struct json_form {
  std::optional<std::string> indent{};  // what a level is indented by; none: all in one line
  std::string between = ", ", after_key = ": ";
  bool is_ascii = false, sorts_keys = false;
};

inline void append_json(jinja_work& work, const jinja_value& value, const json_form& form, std::string& to,
                        const std::string& margin = "\n") {
  const std::size_t before = to.size();
  const std::string inner = form.indent ? margin + *form.indent : std::string();
  const auto append_items = [&](char opens, const auto& items, char closes, auto append) {
    to += opens;
    for (std::size_t i = 0; i < items.size(); ++i) {
      work.spend_bytes(form.between.size() + inner.size());
      if (i > 0) to += form.between;
      to += inner;
      append(items[i]);
    }
    if (form.indent && !items.empty()) to += margin;
    to += closes;
  };
  if (value.is_none()) {
    to += "null";
  } else if (const bool* flag = std::get_if<bool>(&value.is)) {
    to += *flag ? "true" : "false";
  } else if (value.is_number()) {
    append_repr(work, value, to);
  } else if (value.text()) {
    to += json_quoted(value.text()->bytes, form.is_ascii);
  } else if (const jinja_list* list = value.list();
             list && (list->is == jinja_list::form::list || list->is == jinja_list::form::tuple)) {
    append_items('[', list->items, ']', [&](const jinja_value& item) { append_json(work, item, form, to, inner); });
  } else if (const jinja_dict* dict = value.dict()) {
    auto items = dict->items;
    if (form.sorts_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return is_less(work, a.first, b.first); });
    append_items('{', items, '}', [&](const auto& item) {
      if (item.first.text()) {
        append_json(work, item.first, form, to, inner);
      } else {
        std::string key;
        append_json(work, item.first, form, key, inner);
        if (item.first.list()) work.fail("a key that is a list has no form in JSON");
        to += '"' + key + '"';
      }
      to += form.after_key;
      append_json(work, item.second, form, to, inner);
    });
  } else {
    work.fail(kind_of(value), " has no form in JSON");
  }
  work.spend_bytes(to.size() - before);
}

// The items that a loop over a value has. A generator gives those that were not read.
inline std::vector<jinja_value> items_of(jinja_work& work, const jinja_value& value) {
  std::vector<jinja_value> items;
  if (jinja_list* list = value.list()) {
    items.assign(list->items.begin() + static_cast<std::ptrdiff_t>(list->read), list->items.end());
    if (list->is == jinja_list::form::generator) list->read = list->items.size();
  } else if (const jinja_dict* dict = value.dict()) {
    for (const auto& item : dict->items)
      items.push_back(item.first);
  } else if (const jinja_text* text = value.text()) {
    work.spend(4 * text->bytes.size());
    for (characters c(text->bytes); c.next();)
      items.push_back(text->part(c.begin, c.end));
  } else if (!value.is_undefined()) {
    work.fail(kind_of(value), " cannot be gone through");
  }
  work.spend(1 + items.size());
  return items;
}

inline std::size_t length_of(jinja_work& work, const jinja_value& value) {
  if (value.text()) {
    work.spend_bytes(value.text()->bytes.size());
    return length_of(value.text()->bytes);
  }
  if (value.list() && value.list()->is != jinja_list::form::generator) return value.list()->items.size();
  if (value.dict()) return value.dict()->items.size();
  if (!value.is_undefined()) work.fail(value.list() ? "a list that is read once" : kind_of(value), " has no length");
  return 0;
}

inline const jinja_value* find_key(jinja_work& work, const jinja_dict& dict, const jinja_value& key) {
  work.spend(dict.items.size() / 4);
  if (key.text()) return dict.find(key.text()->bytes);
  for (const auto& [name, value] : dict.items)
    if (are_equal(work, name, key)) return &value;
  return nullptr;
}

// A dict of these items; of equal keys the last one's value counts.
inline jinja_value make_dict(jinja_work& work, std::vector<std::pair<jinja_value, jinja_value>> items) {
  auto made = std::make_shared<jinja_dict>();
  for (auto& [key, value] : items) {
    if (key.dict() || (key.list() && key.list()->is == jinja_list::form::list))
      work.fail(kind_of(key), " cannot be a key");
    if (const jinja_value* known = find_key(work, *made, key)) {
      *const_cast<jinja_value*>(known) = std::move(value);
    } else {
      made->items.emplace_back(std::move(key), std::move(value));
    }
  }
  std::vector<jinja_value> values;
  for (const auto& item : made->items)
    values.push_back(item.second);
  made->depth = make_list(work, std::move(values)).list()->depth;
  return std::shared_ptr<const jinja_dict>(std::move(made));
}

// The position of `what` in a text from `from` on, or npos.
inline std::size_t find_in(jinja_work& work, std::string_view text, std::string_view what, std::size_t from = 0) {
  const std::size_t at = text.find(what, from);
  work.spend_bytes(((std::min)(at, text.size()) - (std::min)(from, text.size())) * (1 + what.size() / 64));
  return at;
}

inline bool contains(jinja_work& work, const jinja_value& where, const jinja_value& what) {
  if (where.text()) {
    if (!what.text()) work.fail("a text contains texts, not ", kind_of(what));
    return find_in(work, where.text()->bytes, what.text()->bytes) != std::string::npos;
  }
  if (where.dict()) return find_key(work, *where.dict(), what) != nullptr;
  if (jinja_list* list = where.list(); list && list->is == jinja_list::form::generator) {
    while (list->read < list->items.size())
      if (are_equal(work, list->items[list->read++], what)) return true;
    return false;
  }
  for (const jinja_value& item : items_of(work, where))
    if (are_equal(work, item, what)) return true;
  return false;
}

// The whole number of a value, such as a position.
inline std::int64_t whole_number(const jinja_work& work, const jinja_value& value) {
  if (value.is_undefined()) fail_undefined(work, value);
  if (!value.integer()) work.fail("a whole number is needed, not ", kind_of(value));
  return value.to_integer();
}

// The bytes at which the characters of a text begin, and its end.
inline std::vector<std::size_t> starts_of(jinja_work& work, std::string_view text) {
  work.spend(text.size() / 4);
  std::vector<std::size_t> starts;
  for (characters c(text); c.next();)
    starts.push_back(c.begin);
  starts.push_back(text.size());
  return starts;
}

// Every step-th item of a sequence from begin to end, as in Python; none stands for the whole.
inline jinja_value slice_of(jinja_work& work, const jinja_value& of, const jinja_value& begin, const jinja_value& end,
                            const jinja_value& step) {
  if (of.is_undefined()) fail_undefined(work, of);
  const bool is_list =
      of.list() && (of.list()->is == jinja_list::form::list || of.list()->is == jinja_list::form::tuple);
  if (!of.text() && !is_list) return undefined("a slice");
  const std::vector<std::size_t> starts = of.text() ? starts_of(work, of.text()->bytes) : std::vector<std::size_t>();
  const auto size = static_cast<std::int64_t>(of.text() ? starts.size() - 1 : of.list()->items.size());
  const std::int64_t by = step.is_none() ? 1 : whole_number(work, step);
  if (by == 0 || by == (std::numeric_limits<std::int64_t>::min)()) work.fail("the step of a slice is ", by);
  const auto place = [&](const jinja_value& given, std::int64_t otherwise) {
    if (given.is_none()) return otherwise;
    const std::int64_t at = whole_number(work, given);
    return std::clamp(at < 0 ? at + size : at, by > 0 ? std::int64_t{0} : std::int64_t{-1}, by > 0 ? size : size - 1);
  };
  std::int64_t at = place(begin, by > 0 ? 0 : size - 1);
  const std::int64_t last = place(end, by > 0 ? size : -1);
  if (of.text() && by == 1)
    return of.text()->part(starts[static_cast<std::size_t>(at)],
                           starts[static_cast<std::size_t>((std::max)(at, last))]);
  jinja_text text;
  std::vector<jinja_value> items;
  while (by > 0 ? at < last : at > last) {
    const auto i = static_cast<std::size_t>(at);
    if (of.text()) {
      text.append(*of.text(), starts[i], starts[i + 1]);
    } else {
      items.push_back(of.list()->items[i]);
    }
    if (by > 0 ? by >= size - at : -by > at) break;
    at += by;
  }
  if (of.text()) return text;
  return make_list(work, std::move(items), of.list()->is);
}

// A text in which characters that mean something in HTML are written out, as it is joined to one marked as safe.
inline jinja_text escaped(const jinja_text& text) {
  if (text.is_markup) return text;
  jinja_text made;
  for (std::size_t i = 0; i < text.bytes.size(); ++i) {
    constexpr std::string_view plain = "&<>'\"";
    constexpr std::string_view written[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const std::size_t at = plain.find(text.bytes[i]);
    if (at == plain.npos) {
      made.append(text, i, i + 1);
    } else {
      made.append(jinja_text(std::string(written[at]), text.is_trusted_at(i)));
    }
  }
  made.is_markup = true;
  return made;
}

// Two texts, one after the other. A text joined to one marked as safe is escaped.
inline jinja_value joined_texts(jinja_work& work, const jinja_text& left, const jinja_text& right) {
  const bool is_markup = left.is_markup || right.is_markup;
  jinja_text made = is_markup ? escaped(left) : left;
  made.append(is_markup ? escaped(right) : right);
  work.spend_bytes(made.bytes.size());
  return made;
}

inline jinja_value repeated(jinja_work& work, const jinja_value& of, std::int64_t times) {
  const auto n = static_cast<std::size_t>(std::clamp<std::int64_t>(times, 0, 1 << 30));
  const std::size_t size = of.text() ? of.text()->bytes.size() : of.list()->items.size();
  work.spend(1 + n * (of.text() ? size / 16 + 1 : size));
  jinja_text text;
  std::vector<jinja_value> items;
  for (std::size_t i = 0; i < n && size > 0; ++i) {
    if (of.text()) {
      text.append(*of.text());
    } else {
      items.insert(items.end(), of.list()->items.begin(), of.list()->items.end());
    }
  }
  if (!of.text()) return make_list(work, std::move(items), of.list()->is);
  text.is_markup = of.text()->is_markup;
  return text;
}

// The result of an operator between two values: + - * / // %.
inline jinja_value computed(jinja_work& work, std::string_view op, const jinja_value& a, const jinja_value& b) {
  const auto is_sequence = [](const jinja_value& value) {
    return value.list() && (value.list()->is == jinja_list::form::list || value.list()->is == jinja_list::form::tuple);
  };
  for (const jinja_value* value : {&a, &b})
    if (value->is_undefined()) fail_undefined(work, *value);
  if (op == "+" && a.text() && b.text()) return joined_texts(work, *a.text(), *b.text());
  if (op == "+" && is_sequence(a) && is_sequence(b) && a.list()->is == b.list()->is) {
    std::vector<jinja_value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(work, std::move(items), a.list()->is);
  }
  if (op == "*" && (a.text() || is_sequence(a)) && b.integer()) return repeated(work, a, b.to_integer());
  if (op == "*" && (b.text() || is_sequence(b)) && a.integer()) return repeated(work, b, a.to_integer());
  if (!a.is_number() || !b.is_number()) work.fail(kind_of(a), " ", op, " ", kind_of(b), " has no result");
  if ((op == "/" || op == "//" || op == "%") && b.to_double() == 0) work.fail("a number is divided by zero");
  if (a.integer() && b.integer() && op != "/") {
    const std::int64_t x = a.to_integer(), y = b.to_integer();
    std::int64_t made = 0;
    bool is_too_large = false;
    if (op == "+") is_too_large = __builtin_add_overflow(x, y, &made);
    if (op == "-") is_too_large = __builtin_sub_overflow(x, y, &made);
    if (op == "*") is_too_large = __builtin_mul_overflow(x, y, &made);
    if (op == "//" || op == "%") {
      is_too_large = y == -1 && x == (std::numeric_limits<std::int64_t>::min)();
      if (!is_too_large) {
        const bool rounds_down = x % y != 0 && (x % y < 0) != (y < 0);
        made = op == "%" ? x % y + (rounds_down ? y : 0) : x / y - (rounds_down ? 1 : 0);
      }
    }
    if (is_too_large) work.fail("a number is too large");
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

// The value of JSON. `is_trusted` says of its texts whether the template may take them for its own.
inline jinja_value value_of(jinja_work& work, const nlohmann::ordered_json& from, bool is_trusted, int depth = 0) {
  if (depth > deepest_value) work.fail("a value is nested more than ", deepest_value, " levels deep");
  work.spend(1);
  if (from.is_null()) return std::monostate{};
  if (from.is_boolean()) return from.get<bool>();
  if (from.is_number_unsigned() &&
      from.get<std::uint64_t>() > std::uint64_t{(std::numeric_limits<std::int64_t>::max)()})
    work.fail("the number ", from.get<std::uint64_t>(), " is too large");
  if (from.is_number_integer()) return from.get<std::int64_t>();
  if (from.is_number()) return from.get<double>();
  if (from.is_string()) return jinja_text(from.get<std::string>(), is_trusted);
  if (from.is_array()) {
    std::vector<jinja_value> items;
    for (const auto& item : from)
      items.push_back(value_of(work, item, is_trusted, depth + 1));
    return make_list(work, std::move(items));
  }
  auto made = std::make_shared<jinja_dict>();
  for (const auto& [key, item] : from.items()) {
    made->items.emplace_back(jinja_text(key, is_trusted), value_of(work, item, is_trusted, depth + 1));
    const jinja_value& value = made->items.back().second;
    made->depth =
        (std::max)(made->depth, 1 + (value.list() ? value.list()->depth : (value.dict() ? value.dict()->depth : 0)));
  }
  return std::shared_ptr<const jinja_dict>(std::move(made));
}

}  // namespace espalier::detail
