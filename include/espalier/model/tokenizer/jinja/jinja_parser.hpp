// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/tokenizer/jinja/jinja_functions.hpp"

namespace espalier::detail {

// A part of a template: a statement or an expression, and its parts.
struct jinja_node {
  enum class kind {
    none,
    // statements; a body is a block
    block,      // statements
    output,     // expression
    branch,     // condition, body, condition, body, ..., and perhaps the body of else
    loop,       // target, list, condition or none, body, body of else or none
    set,        // target, expression
    set_block,  // target, body
    macro,      // body, then parameters: each a keyword of its default or none
    scope,      // body
    break_loop,
    continue_loop,
    // expressions
    constant,     // value
    name,         // name
    list,         // items
    tuple,        // items
    dict,         // key, value, key, value, ...
    item,         // of, key
    slice,        // of, begin, end, step; none where it is left out
    member,       // of; name
    call,         // function, arguments
    filter,       // value, arguments; name
    test,         // value, arguments; name
    unary,        // value; name: not, + or -
    binary,       // left, right; name: an operator of numbers
    concat,       // texts
    compare,      // value, then each with the operator before it as its keyword
    both,         // left, right
    either,       // left, right
    conditional,  // condition, then, else or none
    keyword,      // value; name
    spread        // list of further arguments
  };

  kind is = kind::none;
  int line = 0;
  std::string name{};
  std::vector<jinja_node> parts{};
  jinja_value value{};
  jinja_method method = nullptr;  // of a filter or a test
  int depth = 1;
};

// Reads a template as jinja2 does with trim_blocks and lstrip_blocks, which is what transformers sets.
//
// Errors      model_error with the line of what is no Jinja, or not supported
class jinja_parser {
 public:
  using kind = jinja_node::kind;

  jinja_parser(std::string_view text, std::string where) : where_(std::move(where)) {
    constexpr std::size_t longest = 1 << 20;
    if (text.size() > longest) refuse(1, "it has more than ", longest, " bytes");
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] != '\r') {
        text_ += text[i];
      } else if (text.substr(i + 1, 1) != "\n") {
        text_ += '\n';
      }
    if (text_.ends_with('\n')) text_.pop_back();
    cut();
  }

  jinja_node parse() {
    jinja_node all = body({});
    std::sort(names_.begin(), names_.end());
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    return all;
  }

  // The variables that the template reads.
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct token {
    enum class kind { data, opens_output, closes_output, opens_block, closes_block, name, text, number, mark, end };
    kind is;
    int line;
    std::string text{};
    jinja_value value{};
  };

  template <class... PiecesT>
  [[noreturn]] void refuse(int line, const PiecesT&... pieces) const {
    raise<model_error>(where_, " has a chat template that cannot be run: line ", line, ": ", pieces..., ".");
  }

  // ---- tokens

  void cut() {
    std::size_t at = 0;
    while (at < text_.size()) {
      std::size_t tag = text_.find('{', at);
      while (tag != text_.npos &&
             (tag + 1 == text_.size() || std::string_view("{%#").find(text_[tag + 1]) == std::string_view::npos))
        tag = text_.find('{', tag + 1);
      const bool begins_line = at == 0 || text_[at - 1] == '\n';
      std::string_view data = std::string_view(text_).substr(at, tag == text_.npos ? tag : tag - at);
      if (tag == text_.npos) {
        add(token::kind::data, at, std::string(data));
        break;
      }
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0', opened = text_[tag + 1];
      const std::size_t line = data.rfind('\n') + 1;
      if (sign == '-') {
        data = data.substr(0, end_without_space(data));
      } else if (sign != '+' && opened != '{' && (line > 0 || begins_line) &&
                 end_without_space(data.substr(line)) == 0) {
        data = data.substr(0, line);
      }
      if (!data.empty()) add(token::kind::data, at, std::string(data));
      at = tag + (sign == '-' || sign == '+' ? 3 : 2);
      if (opened == '#') {
        const std::size_t end = text_.find("#}", at);
        if (end == text_.npos) refuse(line_at(tag), "a comment does not end");
        const char last = end > at ? text_[end - 1] : '\0';
        at = after_tag(end + 2, last, true);
      } else {
        at = cut_code(at, tag, opened == '{');
      }
    }
    add(token::kind::end, text_.size(), "the end");
  }

  // Cuts the code of a tag, and returns the position after it.
  std::size_t cut_code(std::size_t at, std::size_t tag, bool is_output) {
    add(is_output ? token::kind::opens_output : token::kind::opens_block, tag, is_output ? "{{" : "{%");
    const std::string_view all = text_, closed = is_output ? "}}" : "%}";
    std::string open;  // brackets that are open
    while (true) {
      if (at >= all.size()) refuse(line_at(tag), "a tag does not end");
      const char c = all[at];
      const bool has_sign = (c == '-' || (c == '+' && !is_output)) && all.substr(at + 1, 2) == closed;
      if (open.empty() && (has_sign || all.substr(at, 2) == closed)) {
        add(is_output ? token::kind::closes_output : token::kind::closes_block, at, std::string(closed));
        return after_tag(at + (has_sign ? 3 : 2), has_sign ? c : '\0', !is_output);
      }
      if (static_cast<unsigned char>(c) < 0x80 && is_space(static_cast<unsigned char>(c))) {
        ++at;
      } else if (is_digit(c)) {
        at = cut_number(at);
      } else if (is_letter(c)) {
        std::size_t end = at;
        while (end < all.size() && (is_letter(all[end]) || is_digit(all[end])))
          ++end;
        add(token::kind::name, at, std::string(all.substr(at, end - at)));
        at = end;
      } else if (c == '\'' || c == '"') {
        at = cut_text(at);
      } else {
        constexpr std::string_view marks[] = {"==", "!=", "<=", ">=", "//", "<", ">", "=", "+", "-", "*", "/",
                                              "%",  "~",  "|",  "(",  ")",  "[", "]", "{", "}", ".", ",", ":"};
        const auto found = std::find_if(std::begin(marks), std::end(marks),
                                        [&](auto mark) { return all.substr(at, mark.size()) == mark; });
        if (found == std::end(marks)) refuse(line_at(at), "the character \"", std::string(1, c), "\" has no meaning");
        if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : (c == '[' ? ']' : '}');
        if (c == ')' || c == ']' || c == '}') {
          if (open.empty() || open.back() != c) refuse(line_at(at), "there is a \"", std::string(1, c), "\" too many");
          open.pop_back();
        }
        add(token::kind::mark, at, std::string(*found));
        at += found->size();
      }
    }
  }

  std::size_t cut_number(std::size_t at) {
    const std::string_view rest = std::string_view(text_).substr(at);
    std::size_t end = 0;
    std::string digits;
    const auto take = [&] {
      for (; end < rest.size() && (is_digit(rest[end]) || rest[end] == '_'); ++end)
        if (rest[end] != '_') digits += rest[end];
    };
    take();
    const bool follows_point = !tokens_.empty() && tokens_.back().is == token::kind::mark && tokens_.back().text == ".";
    bool is_float = false;
    const auto digit_at = [&](std::size_t i) { return i < rest.size() && is_digit(rest[i]); };
    if (!follows_point && rest.substr(end, 1) == "." && digit_at(end + 1)) {
      is_float = true;
      digits += rest[end++];
      take();
    }
    const std::size_t sign = rest.substr(end + 1, 1) == "-" || rest.substr(end + 1, 1) == "+" ? 1 : 0;
    if (!follows_point && (rest.substr(end, 1) == "e" || rest.substr(end, 1) == "E") && digit_at(end + 1 + sign)) {
      is_float = true;
      digits += rest.substr(end, 1 + sign);
      end += 1 + sign;
      take();
    }
    const bool is_odd =
        (end < rest.size() && is_letter(rest[end])) || (!is_float && digits.size() > 1 && digits[0] == '0');
    const auto whole = number_in<std::int64_t>(digits);
    const auto number = number_in<double>(digits);
    if (is_odd || !(is_float ? number.has_value() : whole.has_value()))
      refuse(line_at(at), "the number ", rest.substr(0, end + 1), " is not supported");
    add(token::kind::number, at, digits);
    tokens_.back().value = is_float ? jinja_value(*number) : jinja_value(*whole);
    return at + end;
  }

  std::size_t cut_text(std::size_t at) {
    const std::size_t begin = at;
    std::string made;
    for (++at; at < text_.size() && text_[at] != text_[begin]; ++at) {
      if (text_[at] != '\\') {
        made += text_[at];
        continue;
      }
      const char c = ++at < text_.size() ? text_[at] : '\0';
      constexpr std::string_view letters = "\\'\"abfnrtv\n", meant = "\\'\"\a\b\f\n\r\t\v";
      const std::size_t digits = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
      if (const std::size_t known = letters.find(c); known != letters.npos) {
        if (known < meant.size()) made += meant[known];
      } else if (digits > 0) {
        std::uint32_t code = 0;
        const char* const first = text_.data() + at + 1;
        const bool is_whole =
            at + digits < text_.size() && std::from_chars(first, first + digits, code, 16).ptr == first + digits;
        if (!is_whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
          refuse(line_at(at), "a text has a \\", std::string(1, c), " that is no character");
        append_utf8(made, code);
        at += digits;
      } else if (is_digit(c) || c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        refuse(line_at(at), "a text has a \\ before what it has no meaning for");
      } else {
        made += {'\\', c};
      }
    }
    if (at >= text_.size()) refuse(line_at(begin), "a text does not end");
    add(token::kind::text, begin, std::move(made));
    return at + 1;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

  static std::size_t end_without_space(std::string_view text) {
    std::size_t end = 0;
    for (characters c(text); c.next();)
      if (!is_space(c.code)) end = c.end;
    return end;
  }

  // The position after a tag that ended before `at` by a sign or none: white space and line breaks go with it.
  std::size_t after_tag(std::size_t at, char sign, bool is_trimmed) const {
    if (sign == '-') {
      characters c(std::string_view(text_).substr(at));
      while (c.next() && is_space(c.code)) {
      }
      return at + c.begin;
    }
    return at + (is_trimmed && sign != '+' && text_.compare(at, 1, "\n") == 0 ? 1 : 0);
  }

  int line_at(std::size_t at) {
    if (at < counted_) counted_ = 0, line_ = 1;
    line_ +=
        static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                    text_.begin() + static_cast<std::ptrdiff_t>((std::min)(at, text_.size())), '\n'));
    counted_ = (std::min)(at, text_.size());
    return line_;
  }

  void add(token::kind is, std::size_t at, std::string text) {
    tokens_.push_back({is, line_at(at), std::move(text), {}});
  }

  // ---- grammar

  const token& now() const { return tokens_[at_]; }
  const token& next() const { return tokens_[(std::min)(at_ + 1, tokens_.size() - 1)]; }
  static bool is(const token& of, token::kind what, std::string_view text) { return of.is == what && of.text == text; }
  bool is_mark(std::string_view text) const { return is(now(), token::kind::mark, text); }
  bool is_name(std::string_view text) const { return is(now(), token::kind::name, text); }
  bool skip(token::kind what, std::string_view text) {
    const bool has = is(now(), what, text);
    if (has) ++at_;
    return has;
  }
  bool skip_mark(std::string_view text) { return skip(token::kind::mark, text); }
  bool skip_name(std::string_view text) { return skip(token::kind::name, text); }
  void expect(std::string_view text) {
    if (now().text != text || now().is == token::kind::text || now().is == token::kind::data)
      refuse(now().line, "\"", text, "\" is missing before \"", now().text.substr(0, 40), "\"");
    ++at_;
  }
  std::string expect_name() {
    if (now().is != token::kind::name)
      refuse(now().line, "a name is missing before \"", now().text.substr(0, 40), "\"");
    return tokens_[at_++].text;
  }

  jinja_node made(kind is, int line, std::vector<jinja_node> parts = {}, std::string name = {}) const {
    constexpr int deepest = 150;
    jinja_node node{is, line, std::move(name), std::move(parts), {}, nullptr, 1};
    for (const jinja_node& part : node.parts)
      node.depth = (std::max)(node.depth, part.depth + 1);
    if (node.depth > deepest) refuse(line, "it is nested more than ", deepest, " levels deep");
    return node;
  }
  jinja_node constant(int line, jinja_value value) const {
    jinja_node node = made(kind::constant, line);
    node.value = std::move(value);
    return node;
  }

  // Counts how often functions of the grammar have called themselves.
  struct level {
    explicit level(jinja_parser& of) : parser(of) {
      if (++of.level_ > 60) of.refuse(of.now().line, "it is nested more than 60 levels deep");
    }
    ~level() { --parser.level_; }
    jinja_parser& parser;
  };

  // The statements up to a block that begins with one of these names; all without names. It stops at the name.
  jinja_node body(std::initializer_list<std::string_view> ends) {
    const level here(*this);
    jinja_node block = made(kind::block, now().line);
    while (now().is != token::kind::end) {
      const token& first = tokens_[at_++];
      if (first.is == token::kind::data) {
        block.parts.push_back(made(kind::output, first.line, one(constant(first.line, trusted_text(first.text)))));
      } else if (first.is == token::kind::opens_output) {
        block.parts.push_back(made(kind::output, first.line, one(expressions(true))));
        expect("}}");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](auto name) { return is_name(name); }))
          return made(kind::block, first.line, std::move(block.parts));
        block.parts.push_back(statement());
        expect("%}");
      }
    }
    if (ends.size() > 0) refuse(now().line, "\"", *std::prev(ends.end()), "\" is missing");
    return made(kind::block, block.line, std::move(block.parts));
  }

  // A body up to the block `end`, of which the name is taken.
  jinja_node whole_body(std::string_view end) {
    expect("%}");
    jinja_node block = body({end});
    ++at_;
    return block;
  }

  static std::vector<jinja_node> one(jinja_node node) {
    std::vector<jinja_node> list;
    list.push_back(std::move(node));
    return list;
  }
  static std::vector<jinja_node> two(jinja_node a, jinja_node b) {
    std::vector<jinja_node> list = one(std::move(a));
    list.push_back(std::move(b));
    return list;
  }

  jinja_node statement() {
    const int line = now().line;
    const std::string name = expect_name();
    if (name == "if") return branch(line);
    if (name == "for") return loop(line);
    if (name == "set") return set(line);
    if (name == "macro") return macro(line);
    if (name == "generation") return made(kind::scope, line, one(whole_body("endgeneration")));
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse(line, "\"", name, "\" stands outside of loops");
      return made(name == "break" ? kind::break_loop : kind::continue_loop, line);
    }
    refuse(line, "{% ", name.substr(0, 40), " %} is not supported");
  }

  jinja_node branch(int line) {
    std::vector<jinja_node> parts;
    do {
      parts.push_back(expressions(false));
      expect("%}");
      parts.push_back(body({"elif", "else", "endif"}));
    } while (skip_name("elif"));
    if (skip_name("else")) {
      parts.push_back(whole_body("endif"));
    } else {
      ++at_;
    }
    return made(kind::branch, line, std::move(parts));
  }

  jinja_node loop(int line) {
    std::vector<jinja_node> parts = one(target(false));
    expect("in");
    parts.push_back(expressions(false));
    parts.push_back(skip_name("if") ? expression() : jinja_node());
    if (is_name("recursive")) refuse(line, "\"recursive\" is not supported");
    expect("%}");
    ++loops_;
    parts.push_back(body({"else", "endfor"}));
    --loops_;
    parts.push_back(skip_name("else") ? whole_body("endfor") : (++at_, jinja_node()));
    return made(kind::loop, line, std::move(parts));
  }

  jinja_node set(int line) {
    jinja_node to = target(true);
    if (skip_mark("=")) return made(kind::set, line, two(std::move(to), expressions(true)));
    std::vector<jinja_node> parts = one(std::move(to));
    parts.push_back(whole_body("endset"));
    return made(kind::set_block, line, std::move(parts));
  }

  jinja_node macro(int line) {
    std::string name = expect_name();
    std::vector<jinja_node> parts(1);
    expect("(");
    while (!is_mark(")")) {
      if (parts.size() > 1) expect(",");
      if (is_mark(")")) break;
      std::string parameter = expect_name();
      parts.push_back(
          made(kind::keyword, line, one(skip_mark("=") ? expression() : jinja_node()), std::move(parameter)));
    }
    expect(")");
    const int loops = std::exchange(loops_, 0);
    parts[0] = whole_body("endmacro");
    loops_ = loops;
    return made(kind::macro, line, std::move(parts), std::move(name));
  }

  // What is assigned to: a name, names between commas, or a member of a namespace.
  jinja_node target(bool takes_member) {
    const int line = now().line;
    std::vector<jinja_node> parts;
    bool is_tuple = false;
    const bool has_brackets = skip_mark("(");
    do {
      if (has_brackets ? is_mark(")") : now().is != token::kind::name && !is_mark("(")) break;
      if (is_mark("(")) {
        const level here(*this);
        parts.push_back(target(false));
      } else {
        parts.push_back(made(kind::name, line, {}, expect_name()));
        if (takes_member && skip_mark("."))
          parts.back() = made(kind::member, line, one(std::move(parts.back())), expect_name());
      }
      is_tuple = is_tuple || is_mark(",");
    } while (skip_mark(","));
    if (has_brackets) expect(")");
    if (parts.empty()) refuse(line, "a name is missing before \"", now().text.substr(0, 40), "\"");
    return is_tuple ? made(kind::tuple, line, std::move(parts)) : std::move(parts.front());
  }

  // One expression, or several between commas, which are a tuple.
  jinja_node expressions(bool takes_condition) {
    const int line = now().line;
    std::vector<jinja_node> parts;
    bool is_tuple = false;
    do {
      if (now().is == token::kind::closes_block || now().is == token::kind::closes_output || is_mark(")")) break;
      parts.push_back(takes_condition ? expression() : either());
      is_tuple = is_tuple || is_mark(",");
    } while (skip_mark(","));
    if (is_tuple) return made(kind::tuple, line, std::move(parts));
    if (parts.empty()) refuse(line, "an expression is missing before \"", now().text.substr(0, 40), "\"");
    return std::move(parts.front());
  }

  jinja_node expression() {
    const level here(*this);
    const int line = now().line;
    jinja_node value = either();
    while (skip_name("if")) {
      std::vector<jinja_node> parts = one(either());
      parts.push_back(std::move(value));
      parts.push_back(skip_name("else") ? expression() : jinja_node());
      value = made(kind::conditional, line, std::move(parts));
    }
    return value;
  }

  jinja_node either() {
    jinja_node left = both();
    while (is_name("or")) {
      const int line = tokens_[at_++].line;
      left = made(kind::either, line, two(std::move(left), both()));
    }
    return left;
  }

  jinja_node both() {
    jinja_node left = negated();
    while (is_name("and")) {
      const int line = tokens_[at_++].line;
      left = made(kind::both, line, two(std::move(left), negated()));
    }
    return left;
  }

  jinja_node negated() {
    if (!is_name("not")) return compared();
    const level here(*this);
    const int line = tokens_[at_++].line;
    return made(kind::unary, line, one(negated()), "not");
  }

  jinja_node compared() {
    const int line = now().line;
    std::vector<jinja_node> parts = one(operation(0));
    while (true) {
      constexpr std::string_view marks[] = {"==", "!=", "<", "<=", ">", ">="};
      std::string op;
      if (now().is == token::kind::mark &&
          std::find(std::begin(marks), std::end(marks), now().text) != std::end(marks)) {
        op = tokens_[at_++].text;
      } else if (skip_name("in")) {
        op = "in";
      } else if (is_name("not") && is(next(), token::kind::name, "in")) {
        at_ += 2;
        op = "not in";
      } else {
        break;
      }
      parts.push_back(made(kind::keyword, line, one(operation(0)), std::move(op)));
    }
    return parts.size() == 1 ? std::move(parts.front()) : made(kind::compare, line, std::move(parts));
  }

  // Operators by rank, the loosest first: + -, then ~, then * / // %.
  jinja_node operation(int rank) {
    if (rank == 3) return unary(true);
    constexpr std::string_view ranks[] = {" + - ", " ~ ", " * / // % "};
    jinja_node left = operation(rank + 1);
    std::vector<jinja_node> texts;
    while (now().is == token::kind::mark && ranks[rank].find(" " + now().text + " ") != std::string_view::npos) {
      const token op = tokens_[at_++];
      jinja_node right = operation(rank + 1);
      if (op.text == "~" && left.is == kind::concat && !left.name.empty()) {
        left.parts.push_back(std::move(right));
      } else {
        left = made(op.text == "~" ? kind::concat : kind::binary, op.line, two(std::move(left), std::move(right)),
                    op.text);
      }
    }
    if (left.is == kind::concat) left.name.clear();
    return left;
  }

  jinja_node unary(bool takes_filters) {
    const int line = now().line;
    jinja_node value;
    if (is_mark("-") || is_mark("+")) {
      const level here(*this);
      const std::string op = tokens_[at_++].text;
      value = made(kind::unary, line, one(unary(false)), op);
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    while (takes_filters) {
      if (is_mark("|")) {
        value = filter(std::move(value));
      } else if (is_name("is")) {
        value = test(std::move(value));
      } else if (is_mark("(")) {
        value = postfix(std::move(value));
      } else {
        break;
      }
    }
    return value;
  }

  jinja_node primary() {
    const level here(*this);
    const token first = tokens_[at_++];
    if (first.is == token::kind::name) {
      if (first.text == "true" || first.text == "True") return constant(first.line, true);
      if (first.text == "false" || first.text == "False") return constant(first.line, false);
      if (first.text == "none" || first.text == "None") return constant(first.line, std::monostate{});
      names_.push_back(first.text);
      return made(kind::name, first.line, {}, first.text);
    }
    if (first.is == token::kind::number) return constant(first.line, first.value);
    if (first.is == token::kind::text) {
      std::string text = first.text;
      while (now().is == token::kind::text)
        text += tokens_[at_++].text;
      return constant(first.line, trusted_text(std::move(text)));
    }
    const bool is_list = is(first, token::kind::mark, "["), is_dict = is(first, token::kind::mark, "{");
    if (is(first, token::kind::mark, "(")) {
      if (skip_mark(")")) return made(kind::tuple, first.line);
      jinja_node inner = expressions(true);
      expect(")");
      return inner;
    }
    if (!is_list && !is_dict) refuse(first.line, "an expression is missing before \"", first.text.substr(0, 40), "\"");
    std::vector<jinja_node> parts;
    const std::string_view end = is_list ? "]" : "}";
    while (!is_mark(end)) {
      if (!parts.empty()) expect(",");
      if (is_mark(end)) break;
      parts.push_back(expression());
      if (is_list) continue;
      expect(":");
      parts.push_back(expression());
    }
    ++at_;
    return made(is_list ? kind::list : kind::dict, first.line, std::move(parts));
  }

  jinja_node postfix(jinja_node value) {
    while (true) {
      const int line = now().line;
      if (skip_mark(".")) {
        if (now().is == token::kind::number) {
          value = made(kind::item, line, two(std::move(value), constant(line, tokens_[at_].value)));
          ++at_;
        } else {
          value = made(kind::member, line, one(std::move(value)), expect_name());
        }
      } else if (skip_mark("[")) {
        value = subscript(std::move(value), line);
      } else if (is_mark("(")) {
        std::vector<jinja_node> parts = one(std::move(value));
        arguments(parts);
        value = made(kind::call, line, std::move(parts));
      } else {
        return value;
      }
    }
  }

  jinja_node subscript(jinja_node value, int line) {
    std::vector<jinja_node> parts = one(std::move(value));
    if (!is_mark(":")) parts.push_back(expression());
    if (!is_mark(":")) {
      expect("]");
      return made(kind::item, line, std::move(parts));
    }
    if (parts.size() == 1) parts.emplace_back();
    while (skip_mark(":")) {
      const bool is_left_out = is_mark(":") || is_mark("]");
      parts.push_back(is_left_out ? jinja_node() : expression());
    }
    expect("]");
    parts.resize(4);
    return made(kind::slice, line, std::move(parts));
  }

  void arguments(std::vector<jinja_node>& parts) {
    const std::size_t before = parts.size();
    expect("(");
    while (!is_mark(")")) {
      if (parts.size() > before) expect(",");
      if (is_mark(")")) break;
      const int line = now().line;
      if (skip_mark("*")) {
        parts.push_back(made(kind::spread, line, one(expression())));
      } else if (now().is == token::kind::name && is(next(), token::kind::mark, "=")) {
        std::string name = expect_name();
        ++at_;
        parts.push_back(made(kind::keyword, line, one(expression()), std::move(name)));
      } else {
        if (parts.size() > before && parts.back().is == kind::keyword)
          refuse(line, "an argument without a name follows one with a name");
        parts.push_back(expression());
      }
    }
    expect(")");
  }

  jinja_node filter(jinja_node value) {
    const int line = tokens_[at_++].line;
    std::string name = expect_name();
    std::vector<jinja_node> parts = one(std::move(value));
    if (is_mark("(")) arguments(parts);
    value = made(kind::filter, line, std::move(parts), name);
    value.method = found(jinja_filters(), name, "filter", line);
    return value;
  }

  jinja_node test(jinja_node value) {
    const int line = tokens_[at_++].line;
    const bool is_not = skip_name("not");
    std::string name = expect_name();
    std::vector<jinja_node> parts = one(std::move(value));
    const bool has_value = now().is == token::kind::text || now().is == token::kind::number || is_mark("[") ||
                           is_mark("{") ||
                           (now().is == token::kind::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_mark("(")) {
      arguments(parts);
    } else if (has_value) {
      if (is_name("is")) refuse(line, "a test of a test is no Jinja");
      parts.push_back(postfix(primary()));
    }
    value = made(kind::test, line, std::move(parts), name);
    value.method = found(jinja_tests(), name, "test", line);
    return is_not ? made(kind::unary, line, one(std::move(value)), "not") : std::move(value);
  }

  jinja_method found(const jinja_table& table, std::string_view name, std::string_view what, int line) const {
    const auto at = table.find(name);
    if (at == table.end()) refuse(line, "the ", what, " \"", name.substr(0, 40), "\" is not supported");
    return at->second;
  }

  std::string where_, text_;
  std::vector<token> tokens_;
  std::vector<std::string> names_;
  std::size_t at_ = 0, counted_ = 0;
  int line_ = 1, level_ = 0, loops_ = 0;
};

}  // namespace espalier::detail
