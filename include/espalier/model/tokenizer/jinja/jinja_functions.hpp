// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/model/tokenizer/jinja/jinja_value.hpp"

namespace espalier::detail {

// A function that templates call by a name: a filter ("|trim"), a test ("?none"), a method of texts (".strip") or of
// dicts (":get"), or a plain function ("range").
struct jinja_builtin {
  std::string_view names;       // separated by blanks
  std::string_view parameters;  // separated by blanks, with =default where one may be left out; *: any arguments
  jinja_value (*function)(jinja_run&, const jinja_value& self, jinja_arguments& given);

  jinja_value call(jinja_run& run, const jinja_value& self, jinja_arguments given) const;
};

// The function of this name, or null.
const jinja_builtin* find_builtin(std::string_view name);

// A value that, if called, calls the method of `self`.
inline jinja_value bound(const jinja_builtin* method, const jinja_value& self) {
  const auto call = [method, self](jinja_run& run, jinja_arguments& given) { return method->call(run, self, given); };
  return std::make_shared<const jinja_function>(call);
}

// ---- members

// The member `name` of a value: the method of a text or dict, else the item of a dict; the variable of a namespace.
inline jinja_value member_of(jinja_run& run, const jinja_value& of, std::string_view name) {
  run.spend(1);
  defined(run, of);
  if (of.text() || of.dict()) {
    if (const jinja_builtin* const method = find_builtin((of.text() ? "." : ":") + std::string(name)))
      return bound(method, of);
    const jinja_value* const item = of.dict() ? find_key(run, *of.dict(), trusted_text(name)) : nullptr;
    if (item) return *item;
  } else if (jinja_frame* const space = of.name_space()) {
    run.spend(space->variables.size() / 16);
    if (const jinja_value* const found = space->find(name)) return *found;
  }
  return undefined(name);
}

// The item of a value at a key or a position; otherwise, if the key is a text, the member of this name.
inline jinja_value item_of(jinja_run& run, const jinja_value& of, const jinja_value& key) {
  if (defined(run, of).dict()) {
    if (const jinja_value* found = find_key(run, *of.dict(), key)) return *found;
  } else if (key.is_integer() && (of.text() || of.sequence())) {
    const auto size = static_cast<std::int64_t>(length_of(run, of));
    const std::int64_t at = key.to_integer() + (key.to_integer() < 0 ? size : 0);
    if (at < 0 || at >= size) return undefined("item " + std::to_string(key.to_integer()));
    return of.list() ? of.list()->items[static_cast<std::size_t>(at)] : slice_of(run, of, at, at + 1, std::monostate{});
  }
  return key.text() ? member_of(run, of, key.text()->bytes) : undefined("an item");
}

// The attribute of an item. `path` is a position, or names and positions with points between them; none: the item.
inline jinja_value attribute_of(jinja_run& run, jinja_value item, const jinja_value& path) {
  if (!path.text()) return path.is_none() ? item : item_of(run, item, path);
  for (std::string_view names = path.text()->bytes; !names.empty();) {
    const std::string_view name = names.substr(0, names.find('.'));
    std::int64_t position = 0;
    const bool is_position = name.find_first_not_of("0123456789") == name.npos;
    std::from_chars(name.data(), name.data() + name.size(), position);
    item = item_of(run, item, is_position ? jinja_value(position) : trusted_text(name));
    names.remove_prefix((std::min)(name.size() + 1, names.size()));
  }
  return item;
}

// ---- texts

// The text without the white space, or the characters of `which`, at its ends.
inline jinja_value stripped(jinja_run& run, const jinja_text& text, const jinja_value& which = std::monostate{},
                            bool left = true, bool right = true) {
  std::vector<char32_t> codes;
  if (!which.is_none())
    for (characters c(need_text(run, which).bytes); c.next();)
      codes.push_back(c.code);
  run.spend_bytes(text.bytes.size() * (1 + codes.size() / 16));
  std::size_t begin = text.bytes.size(), end = 0;
  for (characters c(text.bytes); c.next();) {
    const bool is_found = std::find(codes.begin(), codes.end(), c.code) != codes.end();
    if (which.is_none() ? is_space(c.code) : is_found) continue;
    begin = (std::min)(begin, c.begin);
    end = c.end;
  }
  return text.part(left ? begin : 0, right ? end : text.bytes.size());
}

// A list of the parts of a text between separators; after `most` cuts, the rest is one part. If the separator is none,
// runs of white space separate.
inline jinja_value split(jinja_run& run, const jinja_text& text, const jinja_value& separator, std::int64_t most) {
  const std::string_view bytes = text.bytes;
  std::vector<jinja_value> parts;
  std::size_t begin = 0;
  if (separator.is_none()) {
    if (most >= 0) run.fail("split with a number of cuts needs a separator");
    run.spend(bytes.size());
    for (characters c(bytes); c.next();) {
      if (!is_space(c.code)) continue;
      if (begin < c.begin) parts.push_back(text.part(begin, c.begin));
      begin = c.end;
    }
    if (begin < bytes.size()) parts.push_back(text.part(begin, bytes.size()));
  } else {
    const std::string_view mark = need_text(run, separator).bytes;
    if (mark.empty()) run.fail("split needs a separator that is not empty");
    for (std::size_t at; most-- != 0 && (at = find_in(run, bytes, mark, begin)) != bytes.npos;) {
      run.spend(4);
      parts.push_back(text.part(begin, at));
      begin = at + mark.size();
    }
    parts.push_back(text.part(begin, bytes.size()));
  }
  run.spend_bytes(bytes.size());
  return make_list(run, std::move(parts));
}

// The letters that are put in upper case; all others are put in lower case.
//   upper, lower   all letters; no letter
//   sentence       the first character of the text
//   words          the first letter of each word, a word being a run of letters: the method title
//   parts          the first character of each part, which begins after white space, a hyphen or an opening bracket:
//                  the filter title
enum class letter_case { upper, lower, sentence, words, parts };

// The text in another case. Characters whose case utf8proc may change differently from Python are refused.
inline jinja_value cased(jinja_run& run, const jinja_text& text, letter_case form) {
  jinja_text made;
  bool begins = true;
  for (characters c(text.bytes); c.next();) {
    const bool is_large = form == letter_case::upper || (form != letter_case::lower && begins);
    constexpr std::pair<char32_t, char32_t> odd[] = {
        {0xDF, 0xDF},   {0x149, 0x149}, {0x1C4, 0x1CC},   {0x1F0, 0x1F3},   {0x390, 0x390},
        {0x3B0, 0x3B0}, {0x587, 0x587}, {0x1E96, 0x1E9A}, {0x1F50, 0x1FFC}, {0xFB00, 0xFB17}};
    const bool is_odd =
        is_large ? std::any_of(std::begin(odd), std::end(odd),
                               [&](const auto& range) { return c.code >= range.first && c.code <= range.second; })
                 : c.code == 0x130 || c.code == 0x3A3;
    if (is_odd) run.fail("the case of \"", text.bytes.substr(c.begin, c.end - c.begin), "\" cannot be changed");
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    const utf8proc_int32_t upper = utf8proc_toupper(code), lower = utf8proc_tolower(code);
    std::string written;
    append_utf8(written, static_cast<char32_t>(is_large ? upper : lower));
    made.append(jinja_text(std::move(written), text.is_trusted_at(c.begin)));
    begins = (form == letter_case::words && upper == lower) ||
             (form == letter_case::parts &&
              (is_space(c.code) || (c.code < 0x80 && std::string_view("-({[<").find(text.bytes[c.begin]) < 5)));
  }
  run.spend_bytes(4 * made.bytes.size());
  return made;
}

// The text with a margin before the first line, if `first`, and before each later line that is not empty.
inline jinja_value indented(jinja_run& run, const jinja_text& text, const jinja_text& margin, bool first) {
  jinja_text made;
  for (characters c(text.bytes); c.next();) {
    const char32_t code = c.code;
    if ((code >= 11 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 || code == 0x2028 || code == 0x2029)
      run.fail("indent knows no ends of lines but \\n");
    if (c.begin == 0 ? first : code != '\n' && text.bytes[c.begin - 1] == '\n') {
      run.spend_bytes(margin.bytes.size());
      made.append(margin);
    }
    made.append(text, c.begin, c.end);
  }
  run.spend_bytes(8 * text.bytes.size());
  return made;
}

// The value as a whole number, as the filter int converts it: fractions are cut off, also in texts; `otherwise` if it
// is no number.
inline jinja_value whole_of(jinja_run& run, const jinja_value& value, const jinja_value& otherwise) {
  if (defined(run, value).is_integer()) return value.to_integer();
  double number = value.is_number() ? value.to_double() : std::nan("");
  if (value.text()) number = decimal_number(stripped(run, *value.text()).text()->bytes).value_or(number);
  if (!std::isfinite(number)) return otherwise;
  if (std::abs(number) > 9e15) run.fail("a number is too large");
  return static_cast<std::int64_t>(number);
}

// ---- lists

// The value by which filters sort and compare an item: its attribute, in lower case if that is a text.
inline jinja_value sort_key(jinja_run& run, const jinja_value& item, const jinja_value& attribute) {
  const jinja_value key = attribute_of(run, item, attribute);
  return key.text() ? cased(run, *key.text(), letter_case::lower) : key;
}

// The items in the order of an attribute.
inline jinja_value sorted(jinja_run& run, const std::vector<jinja_value>& items, const jinja_value& attribute) {
  std::vector<std::pair<jinja_value, jinja_value>> keyed;
  for (const jinja_value& item : items)
    keyed.emplace_back(sort_key(run, item, attribute), item);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return is_less(run, a.first, b.first); });
  std::vector<jinja_value> made;
  for (auto& one : keyed)
    made.push_back(std::move(one.second));
  return make_list(run, std::move(made));
}

// The keys, the values, or both of each item of a dict.
inline jinja_value view_of(jinja_run& run, const jinja_value& dict, bool keys, bool values, jinja_list::form form) {
  if (!defined(run, dict).dict()) run.fail("a dict is needed, not ", kind_of(dict));
  std::vector<jinja_value> items;
  for (const auto& [key, value] : dict.dict()->items)
    items.push_back(keys && values ? make_list(run, {key, value}, jinja_list::form::tuple) : (keys ? key : value));
  return make_list(run, std::move(items), form);
}

// The results of a filter for each item, or an attribute of each item.
inline jinja_value mapped(jinja_run& run, const jinja_value& self, jinja_arguments& given) {
  const bool by_filter = !given.values.empty();
  const jinja_value what = given.take(by_filter ? "" : "attribute").value_or(jinja_value());
  const jinja_builtin* const filter = by_filter ? find_builtin("|" + need_text(run, what).bytes) : nullptr;
  if (by_filter && !filter) run.fail("there is no filter \"", what.text()->bytes, "\"");
  if (!by_filter && !given.named.empty()) run.fail("map with \"", given.named[0].first, "\" is not supported");
  std::vector<jinja_value> made;
  for (const jinja_value& item : is_true(self) ? items_of(run, self) : std::vector<jinja_value>())
    made.push_back(filter ? filter->call(run, item, given) : attribute_of(run, item, defined(run, what)));
  return make_list(run, std::move(made), jinja_list::form::generator);
}

// The items of a list for which a test gives `wanted`. If `by_attribute`, the first argument names an attribute of the
// items, which is tested; else the items themselves are. Without a test, the truth of the value counts.
inline jinja_value selected(jinja_run& run, const jinja_value& self, jinja_arguments& given, bool by_attribute,
                            bool wanted) {
  const jinja_value attribute =
      by_attribute ? defined(run, given.take("").value_or(undefined("the attribute"))) : jinja_value(std::monostate{});
  const std::optional<jinja_value> name = given.take("");
  const jinja_builtin* const test = name ? find_builtin("?" + need_text(run, *name).bytes) : nullptr;
  if (name && !test) run.fail("there is no test \"", name->text()->bytes, "\"");
  std::vector<jinja_value> made;
  for (const jinja_value& item : is_true(self) ? items_of(run, self) : std::vector<jinja_value>()) {
    const jinja_value tested = attribute_of(run, item, attribute);
    if (is_true(test ? test->call(run, tested, given) : tested) == wanted) made.push_back(item);
  }
  return make_list(run, std::move(made), jinja_list::form::generator);
}

// ---- plain functions

inline jinja_value range(jinja_run& run, jinja_arguments& given) {
  constexpr std::int64_t longest = 100'000, most = std::int64_t{1} << 60;
  std::int64_t numbers[] = {0, 0, 1};  // begin, end, step
  const std::size_t n = given.values.size();
  if (n < 1 || n > 3 || !given.named.empty()) run.fail("range takes one to three numbers");
  for (std::size_t i = 0; i < n; ++i)
    numbers[n == 1 ? 1 : i] = whole_number(run, given.values[i]);
  const auto [begin, end, step] = numbers;
  for (const std::int64_t number : numbers)
    if (step == 0 || number < -most || number > most) run.fail("this range is not supported");
  const std::int64_t size = (end - begin + step + (step > 0 ? -1 : 1)) / step;
  if (size > longest) run.fail("a range has more than ", longest, " numbers");
  std::vector<jinja_value> items;
  for (std::int64_t i = 0; i < size; ++i)
    items.push_back(begin + i * step);
  return make_list(run, std::move(items));
}

// The time in a form, which is trusted if the whole form is.
inline jinja_value time_text(const jinja_run& run, const jinja_text& written_form) {
  const std::string& form = written_form.bytes;
  if (form.size() > 1000) run.fail("the form of a time has more than 1000 bytes");
  for (std::size_t at = form.find('%'); at != form.npos; at = form.find('%', at + 2))
    if (at + 1 == form.size() ||
        std::string_view("aAbBcdHIjmMpSUwWxXyYZ%").find(form[at + 1]) == std::string_view::npos)
      run.fail("strftime_now does not support \"", form.substr(at, 2), "\"");
  std::tm parts{};
#ifdef _WIN32
  localtime_s(&parts, &run.now);
#else
  localtime_r(&run.now, &parts);
#endif
  std::string text(form.size() * 32 + 64, '\0');
  text.resize(std::strftime(text.data(), text.size(), form.c_str(), &parts));
  const auto& marks = written_form.marks;
  return jinja_text(std::move(text), marks.find('\0') == marks.npos);
}

inline jinja_value make_namespace(jinja_run& run, jinja_arguments& given) {
  if (!given.values.empty()) run.fail("a namespace needs values with names");
  jinja_frame& made = run.namespaces.emplace_back();
  for (auto& [name, item] : given.named)
    made.set(name, std::move(item));
  return &made;
}

[[noreturn]] inline void stop(jinja_run& run, const jinja_value& message) {
  std::string said = text_of(run, message).bytes;
  while (said.ends_with('.'))
    said.pop_back();
  run.fail(said);
}

inline jinja_value json_of(jinja_run& run, const jinja_value& value, const jinja_value& is_ascii,
                           const jinja_value& indent, const jinja_value& separators) {
  jinja_form form{.is_json = true, .is_ascii = is_true(is_ascii)};
  if (indent.text()) form.indent = indent.text()->bytes;
  if (indent.is_integer())
    form.indent = std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(indent.to_integer(), 0, 64)), ' ');
  if (form.indent) form.between = ",";
  if (!separators.is_none()) {
    form.between = need_text(run, item_of(run, separators, std::int64_t{0})).bytes;
    form.after_key = need_text(run, item_of(run, separators, std::int64_t{1})).bytes;
  }
  std::string text;
  append_written(run, value, form, text);
  return jinja_text(std::move(text), false);
}

// ---- the table

inline const jinja_builtin* find_builtin(std::string_view name) {
  using r = jinja_run&;
  using v = const jinja_value&;
  using a = jinja_arguments&;
  using value = jinja_value;
  static constexpr auto generator = jinja_list::form::generator, view = jinja_list::form::view;
  static constexpr auto has_at = [](r run, v self, v affixes, bool at_end) -> value {
    const std::vector<value> any = affixes.sequence() ? items_of(run, affixes) : std::vector<value>{affixes};
    return std::any_of(any.begin(), any.end(), [&](v affix) {
      const std::string_view part = need_text(run, affix).bytes, whole = self.text()->bytes;
      return at_end ? whole.ends_with(part) : whole.starts_with(part);
    });
  };
  static constexpr auto first_or = [](const std::vector<value>& items) {
    return items.empty() ? undefined("an item of an empty list") : items.front();
  };
  static constexpr jinja_builtin table[] = {
      // texts
      {"|trim .strip", "chars=none",
       [](r run, v self, a given) { return stripped(run, text_of(run, self), given[0]); }},
      {".lstrip", "chars=none",
       [](r run, v self, a given) { return stripped(run, *self.text(), given[0], true, false); }},
      {".rstrip", "chars=none",
       [](r run, v self, a given) { return stripped(run, *self.text(), given[0], false, true); }},
      {"|upper .upper", "", [](r run, v self, a) { return cased(run, text_of(run, self), letter_case::upper); }},
      {"|lower .lower", "", [](r run, v self, a) { return cased(run, text_of(run, self), letter_case::lower); }},
      {"|capitalize .capitalize", "",
       [](r run, v self, a) { return cased(run, text_of(run, self), letter_case::sentence); }},
      {".title", "", [](r run, v self, a) { return cased(run, *self.text(), letter_case::words); }},
      {"|title", "", [](r run, v self, a) { return cased(run, text_of(run, self), letter_case::parts); }},
      {"|string", "", [](r run, v self, a) -> value { return text_of(run, self); }},
      {"|safe", "",
       [](r run, v self, a) -> value {
         jinja_text text = text_of(run, self);
         text.is_markup = true;
         return text;
       }},
      {"|replace .replace", "old new count=-1",
       [](r run, v self, a given) -> value {
         return replaced(run, text_of(run, self), need_text(run, given[0]), need_text(run, given[1]),
                         whole_number(run, given[2]));
       }},
      {".split", "sep=none maxsplit=-1",
       [](r run, v self, a given) { return split(run, *self.text(), given[0], whole_number(run, given[1])); }},
      {".startswith", "prefix", [](r run, v self, a given) { return has_at(run, self, given[0], false); }},
      {".endswith", "suffix", [](r run, v self, a given) { return has_at(run, self, given[0], true); }},
      {"|indent", "width=4 first=false",
       [](r run, v self, a given) {
         const value margin = given[0].text() ? given[0] : operated(run, "*", trusted_text(" "), given[0]);
         return indented(run, need_text(run, self), *margin.text(), is_true(given[1]));
       }},
      {"|tojson", "ensure_ascii=false indent=none separators=none",
       [](r run, v self, a given) { return json_of(run, self, given[0], given[1], given[2]); }},
      // lists
      {"|length |count", "", [](r run, v self, a) -> value { return static_cast<std::int64_t>(length_of(run, self)); }},
      {"|list", "", [](r run, v self, a) { return make_list(run, items_of(run, self)); }},
      {"|first", "", [](r run, v self, a) { return first_or(items_of(run, self)); }},
      {"|last", "",
       [](r run, v self, a) {
         const std::size_t size = length_of(run, self);
         return size > 0 ? items_of(run, self).back() : undefined("the last item of an empty list");
       }},
      {"|min", "",
       [](r run, v self, a) { return first_or(sorted(run, items_of(run, self), std::monostate{}).list()->items); }},
      {"|join", "d=", [](r run, v self, a given) { return joined(run, text_of(run, given[0]), items_of(run, self)); }},
      {"|reverse", "",
       [](r run, v self, a) {
         std::vector<value> items = items_of(run, self);
         std::reverse(items.begin(), items.end());
         return self.text() ? joined(run, {}, items) : make_list(run, std::move(items), generator);
       }},
      {"|sort", "attribute=none", [](r run, v self, a given) { return sorted(run, items_of(run, self), given[0]); }},
      {"|unique", "",
       [](r run, v self, a) {
         std::vector<value> keys, made;
         for (v item : items_of(run, self)) {
           const value key = sort_key(run, item, std::monostate{});
           if (std::any_of(keys.begin(), keys.end(), [&](v known) { return are_equal(run, known, key); })) continue;
           keys.push_back(key);
           made.push_back(item);
         }
         return make_list(run, std::move(made), generator);
       }},
      {"|map", "*", [](r run, v self, a given) { return mapped(run, self, given); }},
      {"|select", "*", [](r run, v self, a given) { return selected(run, self, given, false, true); }},
      {"|reject", "*", [](r run, v self, a given) { return selected(run, self, given, false, false); }},
      {"|selectattr", "*", [](r run, v self, a given) { return selected(run, self, given, true, true); }},
      {"|rejectattr", "*", [](r run, v self, a given) { return selected(run, self, given, true, false); }},
      // dicts
      {"|items", "",
       [](r run, v self, a) {
         return self.is_undefined() ? make_list(run, {}, generator) : view_of(run, self, true, true, generator);
       }},
      {":items", "", [](r run, v self, a) { return view_of(run, self, true, true, view); }},
      {":keys", "", [](r run, v self, a) { return view_of(run, self, true, false, view); }},
      {":values", "", [](r run, v self, a) { return view_of(run, self, false, true, view); }},
      {":get", "key default=none",
       [](r run, v self, a given) {
         const value* const found = find_key(run, *self.dict(), given[0]);
         return found ? *found : given[1];
       }},
      {"|dictsort", "",
       [](r run, v self, a) {
         const value items = view_of(run, self, true, true, view);
         return sorted(run, items.list()->items, std::int64_t{0});
       }},
      // any value
      {"|default |d", "default_value= boolean=false",
       [](r, v self, a given) {
         return self.is_undefined() || (is_true(given[1]) && !is_true(self)) ? given[0] : self;
       }},
      {"|int", "default=0", [](r run, v self, a given) { return whole_of(run, self, given[0]); }},
      // tests
      {"?eq ?equalto ?==", "other", [](r run, v self, a given) -> value { return are_equal(run, self, given[0]); }},
      {"?ne ?!=", "other", [](r run, v self, a given) -> value { return !are_equal(run, self, given[0]); }},
      {"?in", "other", [](r run, v self, a given) -> value { return contains(run, given[0], self); }},
      {"?defined", "", [](r, v self, a) -> value { return !self.is_undefined(); }},
      {"?undefined", "", [](r, v self, a) -> value { return self.is_undefined(); }},
      {"?none", "", [](r, v self, a) -> value { return self.is_none(); }},
      {"?boolean", "", [](r, v self, a) -> value { return std::holds_alternative<bool>(self.is); }},
      {"?true", "", [](r, v self, a) -> value { return self.is == jinja_value(true).is; }},
      {"?false", "", [](r, v self, a) -> value { return self.is == jinja_value(false).is; }},
      {"?integer", "", [](r, v self, a) -> value { return std::holds_alternative<std::int64_t>(self.is); }},
      {"?float", "", [](r, v self, a) -> value { return std::holds_alternative<double>(self.is); }},
      {"?number", "", [](r, v self, a) -> value { return self.is_number(); }},
      {"?string", "", [](r, v self, a) -> value { return self.text() != nullptr; }},
      {"?mapping", "", [](r, v self, a) -> value { return self.dict() != nullptr; }},
      {"?iterable", "",
       [](r, v self, a) -> value { return self.text() || self.list() || self.dict() || self.is_undefined(); }},
      {"?sequence", "",
       [](r, v self, a) -> value { return self.text() || self.sequence() || self.dict() || self.is_undefined(); }},
      {"?odd", "", [](r run, v self, a) -> value { return whole_number(run, self) % 2 != 0; }},
      {"?even", "", [](r run, v self, a) -> value { return whole_number(run, self) % 2 == 0; }},
      // functions
      {"raise_exception", "message", [](r run, v, a given) -> value { stop(run, given[0]); }},
      {"strftime_now", "format", [](r run, v, a given) { return time_text(run, need_text(run, given[0])); }},
      {"range", "*", [](r run, v, a given) { return range(run, given); }},
      {"namespace", "*", [](r run, v, a given) { return make_namespace(run, given); }},
  };
  static const std::map<std::string_view, const jinja_builtin*> found = [] {
    std::map<std::string_view, const jinja_builtin*> made;
    for (const jinja_builtin& one : table)
      for (std::string_view names = one.names; !names.empty();) {
        const std::string_view first = names.substr(0, names.find(' '));
        made.emplace(first, &one);
        names.remove_prefix((std::min)(first.size() + 1, names.size()));
      }
    return made;
  }();
  const auto at = found.find(name);
  return at == found.end() ? nullptr : at->second;
}

// Calls the function with its arguments in the order of its parameters.
inline jinja_value jinja_builtin::call(jinja_run& run, const jinja_value& self, jinja_arguments given) const {
  if (parameters == "*") return function(run, self, given);
  std::vector<jinja_value> in_order;
  for (std::string_view rest = parameters; !rest.empty();) {
    const std::string_view parameter = rest.substr(0, rest.find(' ')),
                           wanted = parameter.substr(0, parameter.find('='));
    const std::string_view otherwise = parameter.substr((std::min)(wanted.size() + 1, parameter.size()));
    rest.remove_prefix((std::min)(parameter.size() + 1, rest.size()));
    std::optional<jinja_value> value = given.take(wanted);
    if (!value && wanted.size() == parameter.size()) run.fail("a call needs the argument \"", wanted, "\"");
    if (!value && otherwise == "none") value = std::monostate{};
    if (!value && otherwise == "false") value = false;
    if (!value && otherwise.empty()) value = trusted_text("");
    std::int64_t number = 0;
    std::from_chars(otherwise.data(), otherwise.data() + otherwise.size(), number);
    in_order.push_back(value ? std::move(*value) : jinja_value(number));
  }
  given.finish(run);
  given.values = std::move(in_order);
  return function(run, self, given);
}

}  // namespace espalier::detail
