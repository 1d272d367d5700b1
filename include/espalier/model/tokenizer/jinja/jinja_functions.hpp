// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/model/tokenizer/jinja/jinja_operations.hpp"

namespace espalier::detail {

using jinja_table = std::map<std::string_view, jinja_method>;

const jinja_table& jinja_filters();
const jinja_table& jinja_tests();

// The member `name` of a value: its methods first, then its items.
jinja_value member_of(jinja_work& work, const jinja_value& of, std::string_view name);

// Calls a filter or a test by its name.
inline jinja_value call_named(jinja_work& work, const jinja_table& table, const jinja_value& name,
                              const jinja_value& self, jinja_arguments arguments) {
  const auto found = name.text() ? table.find(name.text()->bytes) : table.end();
  if (found == table.end())
    work.fail("there is no filter or test \"", name.text() ? name.text()->bytes : std::string(kind_of(name)), "\"");
  return found->second(work, self, arguments);
}

// A text as a view of its bytes, with its own copy where the value is no text.
struct text_argument {
  text_argument(jinja_work& work, const jinja_value& value) : text(text_of(work, value)) {}
  operator std::string_view() const { return text.bytes; }
  jinja_text text;
};

// The text of an argument that must be one.
inline const jinja_text& need_text(jinja_work& work, const jinja_value& value) {
  if (value.is_undefined()) fail_undefined(work, value);
  if (!value.text()) work.fail("a text is needed, not ", kind_of(value));
  return *value.text();
}

// The text without the white space, or the characters of `which`, at its ends.
inline jinja_value stripped(jinja_work& work, const jinja_text& text, const jinja_value& which, bool left, bool right) {
  std::vector<char32_t> codes;
  if (!which.is_none())
    for (characters c(need_text(work, which).bytes); c.next();)
      codes.push_back(c.code);
  const auto goes = [&](char32_t code) {
    return which.is_none() ? is_space(code) : std::find(codes.begin(), codes.end(), code) != codes.end();
  };
  std::size_t begin = text.bytes.size(), end = 0;
  for (characters c(text.bytes); c.next();) {
    if (goes(c.code)) continue;
    begin = (std::min)(begin, c.begin);
    end = c.end;
  }
  work.spend_bytes(text.bytes.size() * (1 + codes.size() / 16));
  return text.part(left ? begin : 0, right ? end : text.bytes.size());
}

// The parts of a text between separators, after a number of cuts the rest; without a separator, between runs of white
// space.
inline jinja_value split(jinja_work& work, const jinja_text& text, jinja_arguments& arguments) {
  const jinja_value separator = arguments.take_or("sep", std::monostate{});
  std::int64_t most = whole_number(work, arguments.take_or("maxsplit", std::int64_t{-1}));
  arguments.finish(work);
  const std::string_view bytes = text.bytes;
  std::vector<std::pair<std::size_t, std::size_t>> cuts;  // separators
  if (separator.is_none()) {
    work.spend(bytes.size());
    for (characters c(bytes); c.next();) {
      if (!is_space(c.code)) continue;
      if (!cuts.empty() && cuts.back().second == c.begin) {
        cuts.back().second = c.end;
      } else {
        cuts.push_back({c.begin, c.end});
      }
    }
    if (most >= 0 && !cuts.empty()) work.fail("split with a number of cuts needs a separator");
  } else {
    const std::string_view mark = need_text(work, separator).bytes;
    if (mark.empty()) work.fail("split needs a separator that is not empty");
    for (std::size_t at = find_in(work, bytes, mark); at != bytes.npos && most-- != 0;
         at = find_in(work, bytes, mark, at + mark.size()))
      cuts.push_back({at, at + mark.size()});
  }
  work.spend(4 * cuts.size());
  std::vector<jinja_value> parts;
  std::size_t begin = 0;
  cuts.push_back({bytes.size(), bytes.size()});
  for (const auto& [end, next] : cuts) {
    if (end > begin || !separator.is_none()) parts.push_back(text.part(begin, end));
    begin = next;
  }
  work.spend_bytes(bytes.size());
  return make_list(work, std::move(parts));
}

inline jinja_value replaced_text(jinja_work& work, const jinja_text& text, const jinja_text& old,
                                 const jinja_text& with, std::int64_t most) {
  if (old.bytes.empty()) work.fail("the empty text cannot be replaced");
  jinja_text made;
  std::size_t begin = 0;
  for (std::size_t at; most-- != 0 && (at = find_in(work, text.bytes, old.bytes, begin)) != std::string::npos;) {
    made.append(text, begin, at);
    made.append(with);
    begin = at + old.bytes.size();
    work.spend_bytes(with.bytes.size());
  }
  made.append(text, begin, text.bytes.size());
  work.spend_bytes(made.bytes.size());
  return made;
}

// Forms of upper and lower case. Characters whose other case is several characters are refused.
enum class letter_case { upper, lower, title };

template <class ChoiceT>
jinja_value cased(jinja_work& work, const jinja_text& text, const ChoiceT& choose) {
  jinja_text made;
  for (characters c(text.bytes); c.next();) {
    const letter_case form = choose(c);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    const auto within = [&](char32_t low, char32_t high) { return c.code >= low && c.code <= high; };
    const bool grows = form == letter_case::lower
                           ? c.code == 0x130 || c.code == 0x3A3
                           : c.code == 0xDF || c.code == 0x149 || c.code == 0x1F0 || c.code == 0x390 ||
                                 c.code == 0x3B0 || c.code == 0x587 || within(0x1E96, 0x1E9A) ||
                                 within(0x1F50, 0x1FFC) || within(0xFB00, 0xFB17);
    if (grows)
      work.fail("the case of \"", std::string_view(text.bytes).substr(c.begin, c.end - c.begin),
                "\" cannot be changed");
    std::string written;
    append_utf8(written, static_cast<char32_t>(form == letter_case::upper   ? utf8proc_toupper(code)
                                               : form == letter_case::lower ? utf8proc_tolower(code)
                                                                            : utf8proc_totitle(code)));
    made.append(jinja_text(std::move(written), text.is_trusted_at(c.begin)));
  }
  work.spend_bytes(4 * made.bytes.size());
  return made;
}

inline jinja_value cased(jinja_work& work, const jinja_text& text, letter_case form) {
  return cased(work, text, [&](const characters&) { return form; });
}
inline jinja_value capitalized(jinja_work& work, const jinja_text& text) {
  return cased(work, text, [](const characters& c) { return c.begin == 0 ? letter_case::title : letter_case::lower; });
}
// Begins each word with a capital: words of letters, as the method title, or those after one of `breaks`.
inline jinja_value titled(jinja_work& work, const jinja_text& text, std::string_view breaks) {
  bool begins = true;
  return cased(work, text, [&](const characters& c) {
    const letter_case form = begins ? (breaks.empty() ? letter_case::title : letter_case::upper) : letter_case::lower;
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    begins = breaks.empty()
                 ? utf8proc_tolower(code) == code && utf8proc_toupper(code) == code
                 : is_space(c.code) || (c.code < 0x80 && breaks.find(static_cast<char>(c.code)) != breaks.npos);
    return form;
  });
}

inline jinja_value joined(jinja_work& work, const jinja_text& between, const std::vector<jinja_value>& items) {
  jinja_text made;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) made.append(between);
    made.append(text_of(work, items[i]));
    work.spend_bytes(between.bytes.size());
  }
  work.spend_bytes(made.bytes.size());
  return made;
}

inline jinja_value lines_of(jinja_work& work, const jinja_text& text) {
  std::vector<jinja_value> lines;
  std::size_t begin = 0;
  for (characters c(text.bytes); c.next();) {
    const char32_t code = c.code;
    const bool ends =
        (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 || code == 0x2028 || code == 0x2029;
    if (!ends) continue;
    if (code == '\n' && c.begin > 0 && text.bytes[c.begin - 1] == '\r' && begin == c.begin) {
      begin = c.end;
      continue;
    }
    lines.push_back(text.part(begin, c.begin));
    begin = c.end;
  }
  if (begin < text.bytes.size()) lines.push_back(text.part(begin, text.bytes.size()));
  work.spend_bytes(text.bytes.size());
  return make_list(work, std::move(lines));
}

// The methods of a text.
inline const jinja_table& text_methods() {
  static constexpr auto strip = [](bool left, bool right) {
    return [left, right](jinja_work& work, const jinja_value& self, jinja_arguments& arguments) {
      const jinja_value which = arguments.take_or("chars", std::monostate{});
      arguments.finish(work);
      return stripped(work, *self.text(), which, left, right);
    };
  };
  using w = jinja_work&;
  using v = const jinja_value&;
  using a = jinja_arguments&;
  static constexpr auto affix = [](w work, v self, a args, bool at_end) -> jinja_value {
    const jinja_value given = args.take_or("", {});
    args.finish(work);
    const std::vector<jinja_value> any = given.list() ? given.list()->items : std::vector<jinja_value>{given};
    return std::any_of(any.begin(), any.end(), [&](v one) {
      const std::string_view text = need_text(work, one).bytes, whole = self.text()->bytes;
      return at_end ? whole.ends_with(text) : whole.starts_with(text);
    });
  };
  static const jinja_table table = {
      {"strip", [](w work, v self, a args) { return strip(true, true)(work, self, args); }},
      {"lstrip", [](w work, v self, a args) { return strip(true, false)(work, self, args); }},
      {"rstrip", [](w work, v self, a args) { return strip(false, true)(work, self, args); }},
      {"split", [](w work, v self, a args) { return split(work, *self.text(), args); }},
      {"startswith", [](w work, v self, a args) { return affix(work, self, args, false); }},
      {"endswith", [](w work, v self, a args) { return affix(work, self, args, true); }},
      {"replace",
       [](w work, v self, a args) {
         const jinja_text old = need_text(work, args.take_or("old", {})),
                          with = need_text(work, args.take_or("new", {}));
         const std::int64_t most = whole_number(work, args.take_or("count", std::int64_t{-1}));
         args.finish(work);
         return replaced_text(work, *self.text(), old, with, most);
       }},
      {"upper",
       [](w work, v self, a args) { return args.finish(work), cased(work, *self.text(), letter_case::upper); }},
      {"lower",
       [](w work, v self, a args) { return args.finish(work), cased(work, *self.text(), letter_case::lower); }},
      {"title", [](w work, v self, a args) { return args.finish(work), titled(work, *self.text(), ""); }},
      {"capitalize", [](w work, v self, a args) { return args.finish(work), capitalized(work, *self.text()); }},
  };
  return table;
}

// The methods of a dict. Those that would change it are refused, as they are in transformers.
inline const jinja_table& dict_methods() {
  using w = jinja_work&;
  using v = const jinja_value&;
  using a = jinja_arguments&;
  static constexpr auto view = [](w work, v self, a args, bool keys, bool values) {
    args.finish(work);
    std::vector<jinja_value> items;
    for (const auto& [key, value] : self.dict()->items)
      items.push_back(keys && values ? make_list(work, {key, value}, jinja_list::form::tuple) : (keys ? key : value));
    return make_list(work, std::move(items), jinja_list::form::view);
  };
  static constexpr auto refuse = [](w work, v, a) -> jinja_value { work.fail("a template must not change a dict"); };
  static const jinja_table table = {
      {"items", [](w work, v self, a args) { return view(work, self, args, true, true); }},
      {"keys", [](w work, v self, a args) { return view(work, self, args, true, false); }},
      {"values", [](w work, v self, a args) { return view(work, self, args, false, true); }},
      {"get",
       [](w work, v self, a args) {
         const jinja_value key = args.take_or("", {}), otherwise = args.take_or("", std::monostate{});
         args.finish(work);
         const jinja_value* const found = find_key(work, *self.dict(), key);
         return found ? *found : otherwise;
       }},
      {"pop", refuse},
      {"update", refuse},
      {"setdefault", refuse},
      {"popitem", refuse},
      {"clear", refuse},
  };
  return table;
}

inline jinja_value item_of(jinja_work& work, const jinja_value& of, const jinja_value& key) {
  if (of.is_undefined()) fail_undefined(work, of);
  if (of.dict()) {
    if (const jinja_value* found = find_key(work, *of.dict(), key)) return *found;
  } else if (key.integer() && (of.text() || of.list())) {
    const bool is_read_once = of.list() && of.list()->is == jinja_list::form::generator;
    if (is_read_once || (of.list() && of.list()->is == jinja_list::form::view)) return undefined("an item");
    const auto size = static_cast<std::int64_t>(length_of(work, of));
    const std::int64_t at = key.to_integer() + (key.to_integer() < 0 ? size : 0);
    if (at < 0 || at >= size) return undefined("item " + std::to_string(key.to_integer()));
    if (of.list()) return of.list()->items[static_cast<std::size_t>(at)];
    return slice_of(work, of, at, at + 1, std::monostate{});
  }
  return key.text() ? member_of(work, of, key.text()->bytes) : undefined("an item");
}

inline jinja_value member_of(jinja_work& work, const jinja_value& of, std::string_view name) {
  if (of.is_undefined()) fail_undefined(work, of);
  work.spend(1);
  if (of.dict() || of.text()) {
    const jinja_table& methods = of.text() ? text_methods() : dict_methods();
    if (const auto found = methods.find(name); found != methods.end())
      return std::shared_ptr<const jinja_function>(
          new jinja_function{std::string(name), found->second, of, nullptr, {}});
    if (of.dict())
      if (const jinja_value* item = find_key(work, *of.dict(), trusted_text(std::string(name)))) return *item;
  } else if (const jinja_namespace* space = of.name_space()) {
    for (const auto& [key, value] : space->items)
      if (key == name) return value;
  } else if (const jinja_loop* loop = of.loop()) {
    const auto index = static_cast<std::int64_t>(loop->index), size = static_cast<std::int64_t>(loop->items.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return size - index;
    if (name == "revindex0") return size - index - 1;
    if (name == "length") return size;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == size;
    if (name == "previtem") return index > 0 ? loop->items[loop->index - 1] : undefined("loop.previtem");
    if (name == "nextitem") return index + 1 < size ? loop->items[loop->index + 1] : undefined("loop.nextitem");
    work.fail("\"loop.", name, "\" is not supported");
  }
  return undefined(name);
}

// The attribute of an item that a filter asks for: names and numbers with points between them.
inline jinja_value attribute_of(jinja_work& work, jinja_value item, const jinja_value& path) {
  if (path.is_none()) return item;
  if (!path.text()) return item_of(work, item, path);
  const std::string_view names = path.text()->bytes;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = (std::min)(names.find('.', begin), names.size());
    const std::string_view name = names.substr(begin, end - begin);
    std::int64_t index = 0;
    const bool is_index =
        std::from_chars(name.data(), name.data() + name.size(), index).ptr == name.data() + name.size();
    const bool counts = is_index && !name.empty() && name.front() != '-';
    item = item_of(work, item, counts ? jinja_value(index) : trusted_text(std::string(name)));
    begin = end + 1;
  }
  return item;
}

// The number that a text writes, as int() or float() of Python reads it; nothing if it writes none.
template <class NumberT>
std::optional<NumberT> number_in(std::string_view text) {
  while (!text.empty() && is_space(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && is_space(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  if (text.starts_with('+') && text.substr(1, 1) != "-") text.remove_prefix(1);
  NumberT number{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

inline jinja_value whole_of(jinja_work& work, const jinja_value& value, const jinja_value& otherwise) {
  if (value.is_undefined()) fail_undefined(work, value);
  if (value.integer()) return value.to_integer();
  double number = 0;
  if (value.text()) {
    if (const auto whole = number_in<std::int64_t>(value.text()->bytes)) return *whole;
    const auto read = number_in<double>(value.text()->bytes);
    if (!read || !std::isfinite(*read)) return otherwise;
    number = *read;
  } else if (value.is_number() && std::isfinite(value.to_double())) {
    number = value.to_double();
  } else {
    return otherwise;
  }
  if (std::abs(number) >= 9e18) work.fail("a number is too large");
  return static_cast<std::int64_t>(number);
}

// A value by which a filter sorts or compares: texts without regard to case, unless asked otherwise.
inline jinja_value sort_key(jinja_work& work, const jinja_value& item, const jinja_value& attribute,
                            bool is_sensitive) {
  const jinja_value key = attribute_of(work, item, attribute);
  return key.text() && !is_sensitive ? cased(work, *key.text(), letter_case::lower) : key;
}

template <class KeyT>
jinja_value sorted(jinja_work& work, const std::vector<jinja_value>& items, bool reversed, const KeyT& key_of) {
  std::vector<std::pair<jinja_value, jinja_value>> keyed;
  for (const jinja_value& item : items)
    keyed.emplace_back(key_of(item), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reversed ? is_less(work, b.first, a.first) : is_less(work, a.first, b.first);
  });
  std::vector<jinja_value> made;
  for (auto& one : keyed)
    made.push_back(std::move(one.second));
  return make_list(work, std::move(made));
}

// The items of a list for which a test, of the items or an attribute, gives `wanted`.
inline jinja_value selected(jinja_work& work, const jinja_value& self, jinja_arguments& arguments, bool by_attribute,
                            bool wanted) {
  if (by_attribute && arguments.values.empty()) work.fail("a filter needs the name of an attribute");
  const jinja_value attribute = by_attribute ? arguments.take_or("", {}) : jinja_value(std::monostate{});
  const std::optional<jinja_value> test = arguments.take("");
  std::vector<jinja_value> made;
  for (const jinja_value& item : is_true(self) ? items_of(work, self) : std::vector<jinja_value>()) {
    const jinja_value tested = attribute_of(work, item, attribute);
    const jinja_arguments rest{
        {arguments.values.begin() + static_cast<std::ptrdiff_t>(arguments.taken), arguments.values.end()},
        arguments.named};
    if (is_true(test ? call_named(work, jinja_tests(), *test, tested, rest) : tested) == wanted) made.push_back(item);
  }
  return make_list(work, std::move(made), jinja_list::form::generator);
}

// The least or the greatest item of a list.
inline jinja_value extreme(jinja_work& work, const jinja_value& self, jinja_arguments& arguments, bool is_most) {
  const bool is_sensitive = is_true(arguments.take_or("case_sensitive", false));
  const jinja_value attribute = arguments.take_or("attribute", std::monostate{});
  arguments.finish(work);
  const jinja_value list = sorted(work, items_of(work, self), is_most, [&](const jinja_value& item) {
    return sort_key(work, item, attribute, is_sensitive);
  });
  return list.list()->items.empty() ? undefined("an item of an empty list") : list.list()->items.front();
}

inline const jinja_table& jinja_filters() {
  using w = jinja_work&;
  using v = const jinja_value&;
  using a = jinja_arguments&;
  static const jinja_table table = {
      {"trim",
       [](w work, v self, a args) {
         const jinja_value which = args.take_or("chars", std::monostate{});
         args.finish(work);
         return stripped(work, text_of(work, self), which, true, true);
       }},
      {"upper",
       [](w work, v self, a args) { return args.finish(work), cased(work, text_of(work, self), letter_case::upper); }},
      {"lower",
       [](w work, v self, a args) { return args.finish(work), cased(work, text_of(work, self), letter_case::lower); }},
      {"title", [](w work, v self, a args) { return args.finish(work), titled(work, text_of(work, self), "-({[<"); }},
      {"capitalize", [](w work, v self, a args) { return args.finish(work), capitalized(work, text_of(work, self)); }},
      {"string", [](w work, v self, a args) -> jinja_value { return args.finish(work), text_of(work, self); }},
      {"safe",
       [](w work, v self, a args) -> jinja_value {
         args.finish(work);
         jinja_text text = text_of(work, self);
         text.is_markup = true;
         return text;
       }},
      {"replace",
       [](w work, v self, a args) {
         const jinja_text old = text_of(work, args.take_or("old", {})), with = text_of(work, args.take_or("new", {}));
         const std::int64_t most = whole_number(work, args.take_or("count", std::int64_t{-1}));
         args.finish(work);
         return replaced_text(work, text_of(work, self), old, with, most);
       }},
      {"length",
       [](w work, v self, a args) -> jinja_value {
         return args.finish(work), static_cast<std::int64_t>(length_of(work, self));
       }},
      {"default",
       [](w work, v self, a args) {
         const jinja_value otherwise = args.take_or("default_value", "");
         const bool also_false = is_true(args.take_or("boolean", false));
         args.finish(work);
         return self.is_undefined() || (also_false && !is_true(self)) ? otherwise : self;
       }},
      {"join",
       [](w work, v self, a args) {
         const jinja_text between = text_of(work, args.take_or("d", ""));
         const jinja_value attribute = args.take_or("attribute", std::monostate{});
         args.finish(work);
         std::vector<jinja_value> items = items_of(work, self);
         for (jinja_value& item : items)
           item = attribute_of(work, std::move(item), attribute);
         return joined(work, between, items);
       }},
      {"list", [](w work, v self, a args) { return args.finish(work), make_list(work, items_of(work, self)); }},
      {"first",
       [](w work, v self, a args) {
         args.finish(work);
         if (jinja_list* list = self.list())
           return list->read < list->items.size()
                      ? list->items[list->is == jinja_list::form::generator ? list->read++ : 0]
                      : undefined("the first item of an empty list");
         const std::vector<jinja_value> items = items_of(work, self);
         return items.empty() ? undefined("the first item of an empty list") : items.front();
       }},
      {"last",
       [](w work, v self, a args) {
         args.finish(work);
         if (self.list() && self.list()->is == jinja_list::form::generator)
           work.fail("a list that is read once has no last item");
         const std::vector<jinja_value> items = items_of(work, self);
         return items.empty() ? undefined("the last item of an empty list") : items.back();
       }},
      {"int",
       [](w work, v self, a args) {
         const jinja_value otherwise = args.take_or("default", std::int64_t{0});
         args.finish(work);
         return whole_of(work, self, otherwise);
       }},
      {"float",
       [](w work, v self, a args) -> jinja_value {
         const jinja_value otherwise = args.take_or("default", 0.0);
         args.finish(work);
         if (self.is_undefined()) fail_undefined(work, self);
         if (self.is_number()) return self.to_double();
         const auto read = self.text() ? number_in<double>(self.text()->bytes) : std::nullopt;
         if (read && !std::isfinite(*read)) work.fail("a number is not finite");
         return read ? jinja_value(*read) : otherwise;
       }},
      {"min", [](w work, v self, a args) { return extreme(work, self, args, false); }},
      {"max", [](w work, v self, a args) { return extreme(work, self, args, true); }},
      {"reverse",
       [](w work, v self, a args) -> jinja_value {
         args.finish(work);
         if (self.text()) return slice_of(work, self, std::monostate{}, std::monostate{}, std::int64_t{-1});
         std::vector<jinja_value> items = items_of(work, self);
         std::reverse(items.begin(), items.end());
         return make_list(work, std::move(items), jinja_list::form::generator);
       }},
      {"sort",
       [](w work, v self, a args) {
         const bool reversed = is_true(args.take_or("reverse", false));
         const bool is_sensitive = is_true(args.take_or("case_sensitive", false));
         const jinja_value attribute = args.take_or("attribute", std::monostate{});
         args.finish(work);
         if (attribute.text() && attribute.text()->bytes.find(',') != std::string::npos)
           work.fail("sort by several attributes is not supported");
         return sorted(work, items_of(work, self), reversed,
                       [&](v item) { return sort_key(work, item, attribute, is_sensitive); });
       }},
      {"dictsort",
       [](w work, v self, a args) {
         const bool is_sensitive = is_true(args.take_or("case_sensitive", false));
         const jinja_value by = args.take_or("by", "key");
         const bool reversed = is_true(args.take_or("reverse", false));
         args.finish(work);
         if (!self.dict()) work.fail("dictsort needs a dict, not ", kind_of(self));
         jinja_arguments none;
         const jinja_value items = dict_methods().at("items")(work, self, none);
         const jinja_value place = std::int64_t{by.text() && by.text()->bytes == "value"};
         return sorted(work, items.list()->items, reversed,
                       [&](v item) { return sort_key(work, item, place, is_sensitive); });
       }},
      {"unique",
       [](w work, v self, a args) {
         const bool is_sensitive = is_true(args.take_or("case_sensitive", false));
         const jinja_value attribute = args.take_or("attribute", std::monostate{});
         args.finish(work);
         std::vector<jinja_value> keys, made;
         for (v item : items_of(work, self)) {
           const jinja_value key = sort_key(work, item, attribute, is_sensitive);
           if (std::any_of(keys.begin(), keys.end(), [&](v known) { return are_equal(work, known, key); })) continue;
           keys.push_back(key);
           made.push_back(item);
         }
         return make_list(work, std::move(made), jinja_list::form::generator);
       }},
      {"map",
       [](w work, v self, a args) {
         std::vector<jinja_value> made;
         const std::optional<jinja_value> filter = args.values.empty() ? std::nullopt : args.take("");
         jinja_arguments rest{{args.values.begin() + static_cast<std::ptrdiff_t>(args.taken), args.values.end()},
                              args.named};
         const jinja_value attribute = filter ? jinja_value() : rest.take_or("attribute", {});
         const jinja_value otherwise = filter ? jinja_value() : rest.take_or("default", {});
         if (!filter) rest.finish(work);
         for (v item : is_true(self) ? items_of(work, self) : std::vector<jinja_value>()) {
           made.push_back(filter ? call_named(work, jinja_filters(), *filter, item, rest)
                                 : attribute_of(work, item, attribute));
           if (!filter && made.back().is_undefined() && !otherwise.is_none() && !otherwise.is_undefined())
             made.back() = otherwise;
         }
         return make_list(work, std::move(made), jinja_list::form::generator);
       }},
      {"select", [](w work, v self, a args) { return selected(work, self, args, false, true); }},
      {"reject", [](w work, v self, a args) { return selected(work, self, args, false, false); }},
      {"selectattr", [](w work, v self, a args) { return selected(work, self, args, true, true); }},
      {"rejectattr", [](w work, v self, a args) { return selected(work, self, args, true, false); }},
      {"items",
       [](w work, v self, a args) {
         if (!self.dict() && !self.is_undefined()) work.fail("items needs a dict, not ", kind_of(self));
         const jinja_value view = self.dict() ? dict_methods().at("items")(work, self, args) : make_list(work, {});
         return make_list(work, view.list()->items, jinja_list::form::generator);
       }},
      {"tojson",
       [](w work, v self, a args) -> jinja_value {
         json_form form;
         form.is_ascii = is_true(args.take_or("ensure_ascii", false));
         const jinja_value indent = args.take_or("indent", std::monostate{}),
                           marks = args.take_or("separators", std::monostate{});
         form.sorts_keys = is_true(args.take_or("sort_keys", false));
         args.finish(work);
         if (indent.text()) form.indent = indent.text()->bytes;
         if (indent.integer())
           form.indent =
               std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(indent.to_integer(), 0, 64)), ' ');
         if (form.indent) form.between = ",";
         if (const jinja_list* given = marks.list(); given && given->items.size() == 2) {
           form.between = need_text(work, given->items[0]).bytes;
           form.after_key = need_text(work, given->items[1]).bytes;
         }
         std::string text;
         append_json(work, self, form, text);
         return jinja_text(std::move(text), false);
       }},
      {"indent",
       [](w work, v self, a args) -> jinja_value {
         const jinja_value width = args.take_or("width", std::int64_t{4});
         const bool first = is_true(args.take_or("first", false)), blank = is_true(args.take_or("blank", false));
         args.finish(work);
         const jinja_text margin =
             width.text() ? *width.text() : *repeated(work, " ", whole_number(work, width)).text();
         jinja_text text = need_text(work, self);
         text.append(jinja_text("\n", true));
         const jinja_value lines = lines_of(work, text);
         jinja_text made;
         for (std::size_t i = 0; i < lines.list()->items.size(); ++i) {
           const jinja_text& line = *lines.list()->items[i].text();
           if (i > 0) made.append(jinja_text("\n", true));
           if (i == 0 ? first : blank || !line.bytes.empty()) made.append(margin);
           made.append(line);
           work.spend_bytes(margin.bytes.size());
         }
         return made;
       }},
  };
  static const std::map<std::string_view, std::string_view> other_names = {{"count", "length"}, {"d", "default"}};
  static const jinja_table all = [] {
    jinja_table made = table;
    for (const auto& [name, of] : other_names)
      made.emplace(name, table.at(of));
    return made;
  }();
  return all;
}

inline const jinja_table& jinja_tests() {
  using w = jinja_work&;
  using v = const jinja_value&;
  using a = jinja_arguments&;
  static constexpr auto other = [](w work, a args) {
    jinja_value value = args.take("").value_or(jinja_value());
    args.finish(work);
    return value;
  };
  static const jinja_table table = [] {
    const jinja_method equal = [](w work, v self, a args) -> jinja_value {
      return are_equal(work, self, other(work, args));
    };
    const jinja_method unequal = [](w work, v self, a args) -> jinja_value {
      return !are_equal(work, self, other(work, args));
    };
    return jinja_table{
        {"==", equal},
        {"eq", equal},
        {"equalto", equal},
        {"!=", unequal},
        {"ne", unequal},
        {"in", [](w work, v self, a args) -> jinja_value { return contains(work, other(work, args), self); }},
        {"defined", [](w, v self, a) -> jinja_value { return !self.is_undefined(); }},
        {"undefined", [](w, v self, a) -> jinja_value { return self.is_undefined(); }},
        {"none", [](w, v self, a) -> jinja_value { return self.is_none(); }},
        {"boolean", [](w, v self, a) -> jinja_value { return std::holds_alternative<bool>(self.is); }},
        {"true", [](w, v self, a) -> jinja_value { return std::holds_alternative<bool>(self.is) && is_true(self); }},
        {"false", [](w, v self, a) -> jinja_value { return std::holds_alternative<bool>(self.is) && !is_true(self); }},
        {"integer", [](w, v self, a) -> jinja_value { return std::holds_alternative<std::int64_t>(self.is); }},
        {"float", [](w, v self, a) -> jinja_value { return std::holds_alternative<double>(self.is); }},
        {"number", [](w, v self, a) -> jinja_value { return self.is_number(); }},
        {"string", [](w, v self, a) -> jinja_value { return self.text() != nullptr; }},
        {"mapping", [](w, v self, a) -> jinja_value { return self.dict() != nullptr; }},
        {"iterable",
         [](w, v self, a) -> jinja_value { return self.text() || self.list() || self.dict() || self.is_undefined(); }},
        {"sequence",
         [](w, v self, a) -> jinja_value {
           const jinja_list* const list = self.list();
           const bool is_list = list && (list->is == jinja_list::form::list || list->is == jinja_list::form::tuple);
           return self.text() || self.dict() || is_list || self.is_undefined();
         }},
        {"odd",
         [](w work, v self, a) -> jinja_value {
           return are_equal(work, computed(work, "%", self, std::int64_t{2}), std::int64_t{1});
         }},
        {"even",
         [](w work, v self, a) -> jinja_value {
           return are_equal(work, computed(work, "%", self, std::int64_t{2}), std::int64_t{0});
         }},
    };
  }();
  return table;
}

}  // namespace espalier::detail
