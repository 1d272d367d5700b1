// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/tokenizer/jinja/jinja_functions.hpp"

namespace espalier::detail {

// A part of a template as a function: an expression gives its value; a statement acts on the run.
using jinja_code = std::function<jinja_value(jinja_run&)>;
// An operator with its right side, a filter or a call: turns the value to its left into another.
using jinja_step = std::function<jinja_value(jinja_run&, const jinja_value& left)>;
// Gives a value to the names on the left of an assignment.
using jinja_target = std::function<void(jinja_run&, const jinja_value&)>;

// Makes code of a template as jinja2 does with trim_blocks and lstrip_blocks, which transformers sets.
//
// Errors      model_error that names the line, for text that is no Jinja or that is not supported
class jinja_parser {
 public:
  jinja_parser(std::string_view text, std::string where) : where_(std::move(where)) {
    constexpr std::size_t longest = 1 << 20;
    if (text.size() > longest) refuse("it has more than ", longest, " bytes");
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] != '\r') {
        text_ += text[i];
      } else if (text.substr(i + 1, 1) != "\n") {
        text_ += '\n';
      }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  // Returns code that runs the whole template, and writes into the run's `out`.
  jinja_code parse() { return body({}); }

  // The names that the template reads: its variables, and also names of loop variables, macros and functions.
  const std::vector<std::string>& names() const { return names_; }

 private:
  template <class... PiecesT>
  [[noreturn]] void refuse(const PiecesT&... pieces) {
    raise<model_error>(where_, " has a chat template that cannot be run: line ", line(), ": ", pieces..., ".");
  }
  [[noreturn]] void refuse_missing(std::string_view what) {
    const std::string_view next =
        rest().empty() ? "the end" : rest().substr(0, (std::min)(rest().find('\n'), std::size_t{20}));
    refuse(what, " is missing before \"", next, "\"");
  }

  // Counts one level of nesting while it lives; refuses a template with too many.
  struct level {
    explicit level(jinja_parser& of) : parser(of) {
      if (++of.level_ > 60) of.refuse("it is nested more than 60 levels deep");
    }
    ~level() { --parser.level_; }
    jinja_parser& parser;
  };

  // ---- the text of the template

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  int line() {
    if (at_ < counted_) counted_ = 0, line_ = 1;
    for (; counted_ < at_; ++counted_)
      line_ += text_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

  // True if this mark or name comes next, after white space, which is passed over.
  bool is(std::string_view what) {
    while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) < 0x80 &&
           is_space(static_cast<unsigned char>(text_[at_])))
      ++at_;
    const std::string_view after = rest().substr((std::min)(what.size(), rest().size())).substr(0, 1);
    const bool goes_on =
        !what.empty() && is_letter(what[0]) && !after.empty() && (is_letter(after[0]) || is_digit(after[0]));
    return rest().starts_with(what) && !goes_on;
  }
  bool skip(std::string_view what) {
    const bool has = is(what);
    at_ += has ? what.size() : 0;
    return has;
  }
  void expect(std::string_view what) {
    if (!skip(what)) refuse_missing("\"" + std::string(what) + "\"");
  }
  // The first character that comes next, after white space; 0 at the end.
  char next() {
    (void)is("");
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  // The name that comes next; empty if none does.
  std::string name() {
    std::string made;
    if (is_letter(next()))
      for (; at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_])); ++at_)
        made += text_[at_];
    return made;
  }
  std::string expect_name() {
    std::string made = name();
    if (made.empty()) refuse_missing("a name");
    return made;
  }

  // The sign before the end of the tag, - or +, if the tag ends here; a space if it ends without a sign; 0 if it does
  // not end here.
  char end_of_tag() {
    const char sign = next();
    if (rest().starts_with(closing_)) return ' ';
    return (sign == '-' || (sign == '+' && closing_ == "%}")) && rest().substr(1).starts_with(closing_) ? sign : '\0';
  }

  // Takes the end of a tag, and the white space or the line break that goes with it.
  void close() {
    const char sign = end_of_tag();
    if (sign == '\0') expect(closing_);
    at_ += sign == ' ' ? 2 : 3;
    trim_after(sign, closing_ != "}}");
  }
  void trim_after(char sign, bool takes_line_break) {
    if (sign != '-') {
      at_ += takes_line_break && sign != '+' && rest().starts_with('\n') ? 1 : 0;
      return;
    }
    characters c(rest());
    while (c.next() && is_space(c.code)) {
    }
    at_ += c.begin;
  }

  // Takes the text up to the next tag, and appends to `parts` the code that writes it. Then takes the two signs that
  // open the tag, and a - or + after them. Returns the second sign: {, % or #; 0 at the end of the template.
  char take_data(std::vector<jinja_code>& parts) {
    const int first_line = line();
    const bool begins_line = at_ == 0 || text_[at_ - 1] == '\n';
    std::size_t tag = text_.find('{', at_);
    while (tag != text_.npos && text_.find_first_of("{%#", tag + 1) != tag + 1)
      tag = text_.find('{', tag + 1);
    std::string_view data = rest().substr(0, tag - at_);
    at_ = (std::min)(tag, text_.size());
    const char opened = rest().empty() ? '\0' : rest()[1], sign = rest().size() < 3 ? '\0' : rest()[2];
    const std::size_t last_line = data.rfind('\n') + 1;
    if (sign == '-') {
      data = data.substr(0, end_without_space(data));
    } else if (sign != '+' && (opened == '%' || opened == '#') && (begins_line || last_line > 0) &&
               end_without_space(data.substr(last_line)) == 0) {
      data = data.substr(0, last_line);
    }
    if (!data.empty()) parts.push_back(output(constant(trusted_text(data)), first_line));
    at_ += opened == '\0' ? 0 : (sign == '-' || sign == '+' ? 3 : 2);
    return opened;
  }

  static std::size_t end_without_space(std::string_view text) {
    std::size_t end = 0;
    for (characters c(text); c.next();)
      if (!is_space(c.code)) end = c.end;
    return end;
  }

  // Takes the text between quotes that comes next.
  std::string quoted() {
    const char quote = text_[at_++];
    std::string made;
    for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] != '\\') {
        made += text_[at_];
        continue;
      }
      const char c = ++at_ < text_.size() ? text_[at_] : '\0';
      constexpr std::string_view letters = "\\'\"bfnrt", meant = "\\'\"\b\f\n\r\t";
      const std::size_t digits = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
      if (letters.find(c) != letters.npos) {
        made += meant[letters.find(c)];
      } else if (digits > 0) {
        std::uint32_t code = 0;
        const std::string_view written = rest().substr(1, digits);
        const bool is_whole =
            written.size() == digits &&
            std::from_chars(written.data(), written.data() + digits, code, 16).ptr == written.data() + digits;
        if (!is_whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
          refuse("a text has a \\", std::string(1, c), " that is no character");
        append_utf8(made, code);
        at_ += digits;
      } else if (std::string_view("01234567avN\n").find(c) != std::string_view::npos ||
                 static_cast<unsigned char>(c) >= 0x80) {
        refuse("a text has a \\ before what it has no meaning for");
      } else {
        made += {'\\', c};
      }
    }
    if (at_ >= text_.size()) refuse("a text does not end");
    ++at_;
    return made;
  }

  // Takes the number that comes next. After a point it is a position, which has no fraction.
  jinja_value number() {
    const auto end_of_digits = [&](std::size_t from) {
      return (std::min)(rest().find_first_not_of("0123456789", from), rest().size());
    };
    std::size_t size = end_of_digits(0);
    const bool is_fraction =
        text_[at_ - 1] != '.' && rest().substr(size, 1) == "." && end_of_digits(size + 1) > size + 1;
    if (is_fraction) size = end_of_digits(size + 1);
    const std::string_view digits = rest().substr(0, size), after = rest().substr(size, 1);
    std::int64_t whole = 0;
    const bool fits = std::from_chars(digits.data(), digits.data() + size, whole).ec == std::errc{};
    if (!fits || (!after.empty() && is_letter(after[0])) || (digits.size() > 1 && digits[0] == '0' && digits[1] != '.'))
      refuse("the number \"", rest().substr(0, size + 1).substr(0, 40), "\" is not supported");
    at_ += size;
    return is_fraction ? jinja_value(decimal_number(std::string(digits)).value_or(0)) : jinja_value(whole);
  }

  // ---- code

  // Makes code that counts as a part of the template: see jinja_run::part.
  template <class FunctionT>
  static jinja_code code(FunctionT function, int line = 0) {
    return [line, function = std::move(function)](jinja_run& run) -> jinja_value {
      const jinja_run::part here(run, line);
      return function(run);
    };
  }
  static jinja_code constant(jinja_value value) {
    return [value = std::move(value)](jinja_run&) { return value; };
  }
  // Makes code that computes a value and passes it through the steps, from left to right.
  static jinja_code chain(jinja_code first, std::vector<jinja_step> steps) {
    if (steps.empty()) return first;
    return code([first = std::move(first), steps = std::move(steps)](jinja_run& run) {
      jinja_value value = first(run);
      run.spend(steps.size());
      for (const jinja_step& next : steps)
        value = next(run, value);
      return value;
    });
  }

  // ---- statements

  // Takes the template up to a tag that begins with one of these names, and stops at the name; takes it to its end if
  // there are no names.
  jinja_code body(std::initializer_list<std::string_view> ends) {
    const level here(*this);
    std::vector<jinja_code> parts;
    while (const char opened = take_data(parts)) {
      closing_ = opened == '{' ? "}}" : "%}";
      const int line_of_tag = line();
      if (opened == '{') {
        parts.push_back(output(expressions(), line_of_tag));
        close();
      } else if (opened == '#') {
        const std::size_t end = text_.find("#}", at_);
        if (end == text_.npos) refuse("a comment does not end");
        const char sign = end > at_ ? text_[end - 1] : '\0';
        at_ = end + 2;
        trim_after(sign, true);
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is(end); })) return block(std::move(parts));
        parts.push_back(code(statement(), line_of_tag));
        close();
      }
    }
    if (ends.size() > 0) refuse("\"", *std::prev(ends.end()), "\" is missing");
    return block(std::move(parts));
  }

  static jinja_code block(std::vector<jinja_code> parts) {
    return [parts = std::move(parts)](jinja_run& run) {
      for (std::size_t i = 0; i < parts.size() && run.leaves == jinja_run::leaving::nothing; ++i)
        parts[i](run);
      return jinja_value();
    };
  }

  static jinja_code output(jinja_code what, int line = 0) {
    return code(
        [what = std::move(what)](jinja_run& run) {
          const jinja_text text = text_of(run, what(run));
          run.spend_bytes(text.bytes.size());
          run.out.append(text);
          return jinja_value();
        },
        line);
  }

  // Takes the end of the tag, the body after it, and the beginning of the tag `end`, its name included.
  jinja_code whole_body(std::string_view end) {
    close();
    jinja_code made = body({end});
    expect(end);
    return made;
  }

  // Runs code in a frame of its own, and returns the text that it writes.
  static jinja_value captured(jinja_run& run, const jinja_code& inner) {
    const jinja_run::scope own(run);
    jinja_text outer = std::exchange(run.out, {});
    inner(run);
    return std::exchange(run.out, std::move(outer));
  }

  jinja_code statement() {
    const std::string name = expect_name();
    if (name == "if") return branch();
    if (name == "for") return loop();
    if (name == "set") return assignment();
    if (name == "macro") return macro();
    if (name == "generation" || name == "filter") {
      std::vector<jinja_step> steps;
      if (name == "filter") steps.push_back(filter());
      jinja_code inner = whole_body("end" + name);
      return output(chain([inner](jinja_run& run) { return captured(run, inner); }, std::move(steps)));
    }
    if (name != "break" && name != "continue") refuse("{% ", name.substr(0, 40), " %} is not supported");
    if (loops_ == 0) refuse("\"", name, "\" stands outside of loops");
    return [is_break = name == "break"](jinja_run& run) {
      run.leaves = is_break ? jinja_run::leaving::loop : jinja_run::leaving::round;
      return jinja_value();
    };
  }

  jinja_code branch() {
    std::vector<std::pair<jinja_code, jinja_code>> cases;
    do {
      jinja_code condition = expressions();
      close();
      cases.emplace_back(std::move(condition), body({"elif", "else", "endif"}));
    } while (skip("elif"));
    if (skip("else")) {
      cases.emplace_back(constant(true), whole_body("endif"));
    } else {
      expect("endif");
    }
    return [cases = std::move(cases)](jinja_run& run) {
      for (const auto& [condition, inner] : cases)
        if (is_true(condition(run))) return inner(run);
      return jinja_value();
    };
  }

  jinja_code loop() {
    jinja_target to = target();
    expect("in");
    jinja_code list = operation(0), condition, otherwise;
    if (skip("if")) condition = expression();
    close();
    ++loops_;
    jinja_code round = body({"else", "endfor"});
    --loops_;
    if (skip("else")) {
      otherwise = whole_body("endfor");
    } else {
      expect("endfor");
    }
    return [to, list, condition, otherwise, round](jinja_run& run) {
      std::vector<jinja_value> items = items_of(run, list(run));
      const auto is_left_out = [&](const jinja_value& item) {
        const jinja_run::scope own(run);
        to(run, item);
        return !is_true(condition(run));
      };
      if (condition) items.erase(std::remove_if(items.begin(), items.end(), is_left_out), items.end());
      for (std::size_t i = 0; i < items.size() && run.leaves != jinja_run::leaving::loop; ++i) {
        run.leaves = jinja_run::leaving::nothing;
        run.spend(8);
        const jinja_run::scope own(run);
        run.frame->set("loop", loop_state(items, i));
        to(run, items[i]);
        round(run);
      }
      run.leaves = jinja_run::leaving::nothing;
      if (items.empty() && otherwise) {
        const jinja_run::scope own(run);
        otherwise(run);
      }
      return jinja_value();
    };
  }

  // The variable `loop` in round i of a loop over these items.
  static jinja_value loop_state(const std::vector<jinja_value>& items, std::size_t i) {
    static const std::vector<jinja_value> names = [] {
      std::vector<jinja_value> made;
      for (const char* name : {"index", "index0", "revindex", "revindex0", "length", "depth", "depth0", "first", "last",
                               "previtem", "nextitem"})
        made.push_back(trusted_text(name));
      return made;
    }();
    const auto at = static_cast<std::int64_t>(i), size = static_cast<std::int64_t>(items.size());
    const jinja_value before = at > 0 ? items[i - 1] : undefined("loop.previtem"),
                      after = at + 1 < size ? items[i + 1] : undefined("loop.nextitem");
    const std::vector<jinja_value> values = {
        at + 1,          at,      size - at,      size - at - 1, size, std::int64_t{1},
        std::int64_t{0}, at == 0, at + 1 == size, before,        after};
    auto made = std::make_shared<jinja_dict>();
    for (std::size_t k = 0; k < names.size(); ++k)
      made->items.emplace_back(names[k], values[k]);
    made->depth = 1 + (std::max)(before.depth(), after.depth());
    return std::shared_ptr<const jinja_dict>(std::move(made));
  }

  jinja_code assignment() {
    jinja_target to = target();
    jinja_code from;
    if (skip("=")) {
      from = expressions();
    } else {
      from = [inner = whole_body("endset")](jinja_run& run) { return captured(run, inner); };
    }
    return [to, from](jinja_run& run) {
      to(run, from(run));
      return jinja_value();
    };
  }

  // Target of an assignment: a name, names between commas, or a member of a namespace.
  jinja_target target() {
    std::vector<jinja_target> parts;
    bool is_tuple = false;
    const bool has_brackets = skip("(");
    do {
      if (!parts.empty() && !is_letter(next())) break;
      parts.push_back(single_target());
      is_tuple = is_tuple || is(",");
    } while (skip(","));
    if (has_brackets) expect(")");
    if (!is_tuple) return parts.front();
    return [parts](jinja_run& run, const jinja_value& value) {
      const std::vector<jinja_value> items = items_of(run, value);
      if (items.size() != parts.size()) run.fail(parts.size(), " names are given ", items.size(), " values");
      for (std::size_t i = 0; i < items.size(); ++i)
        parts[i](run, items[i]);
    };
  }

  jinja_target single_target() {
    const std::string name = expect_name(), member = skip(".") ? expect_name() : std::string();
    return [name, member](jinja_run& run, const jinja_value& value) {
      jinja_frame* const to = member.empty() ? run.frame : looked_up(run, name).name_space();
      if (!to) run.fail("\"", name, "\" is no namespace, so its members cannot be set");
      run.spend(to->variables.size() / 16);
      to->set(member.empty() ? name : member, value);
    };
  }

  jinja_code macro() {
    const std::string name = expect_name();
    std::vector<std::pair<std::string, jinja_code>> parameters;  // each with its default
    expect("(");
    while (!skip(")")) {
      if (!parameters.empty()) expect(",");
      std::string parameter = expect_name();
      jinja_code otherwise = skip("=") ? expression() : constant(undefined(parameter));
      parameters.emplace_back(std::move(parameter), std::move(otherwise));
    }
    const int loops = std::exchange(loops_, 0);
    jinja_code inner = whole_body("endmacro");
    loops_ = loops;
    const auto call = [parameters, inner](jinja_run& run, jinja_arguments& given) {
      const jinja_run::scope own(run, run.variables);
      for (const auto& [parameter, otherwise] : parameters) {
        std::optional<jinja_value> value = given.take(parameter);
        run.frame->set(parameter, value ? std::move(*value) : otherwise(run));
      }
      given.finish(run);
      return captured(run, inner);
    };
    const auto function = std::make_shared<const jinja_function>(call);
    return [name, function](jinja_run& run) {
      if (run.frame != &run.variables) run.fail("a macro inside of another part of a template is not supported");
      run.frame->set(name, function);
      return jinja_value();
    };
  }

  // ---- expressions

  // Takes one expression, or several with commas between them, which are a tuple.
  jinja_code expressions() {
    std::vector<jinja_code> parts;
    bool is_tuple = false;
    do {
      if (!parts.empty() && (end_of_tag() != '\0' || is(")"))) break;
      parts.push_back(expression());
      is_tuple = is_tuple || is(",");
    } while (skip(","));
    return is_tuple ? list_of(std::move(parts), jinja_list::form::tuple) : std::move(parts.front());
  }

  static jinja_code list_of(std::vector<jinja_code> parts, jinja_list::form form) {
    return code([parts = std::move(parts), form](jinja_run& run) {
      std::vector<jinja_value> items;
      for (const jinja_code& part : parts)
        items.push_back(part(run));
      return make_list(run, std::move(items), form);
    });
  }

  jinja_code expression() {
    const level here(*this);
    jinja_code value = operation(0);
    if (!skip("if")) return value;
    jinja_code condition = operation(0);
    jinja_code otherwise = skip("else") ? expression() : constant(undefined("an expression without else"));
    return code([value, condition, otherwise](jinja_run& run) {
      return is_true(condition(run)) ? value(run) : otherwise(run);
    });
  }

  // Takes values with operators of this rank between them; each value may have operators of the next ranks, which bind
  // tighter.
  jinja_code operation(std::size_t rank) {
    static const std::vector<std::string_view> ranks[] = {{"or"},     {"and"}, {"==", "!=", "<=", ">=", "<", ">", "in"},
                                                          {"+", "-"}, {"~"},   {"*", "//", "/", "%"}};
    constexpr std::size_t comparison = 2;
    if (rank == std::size(ranks)) return unary(true);
    if (rank == comparison && skip("not")) {
      const level here(*this);
      return code([of = operation(rank)](jinja_run& run) { return !is_true(of(run)); });
    }
    jinja_code first = operation(rank + 1);
    std::vector<jinja_step> steps;
    while (end_of_tag() == '\0') {
      const std::size_t before = at_;
      const bool is_not = rank == comparison && skip("not");
      const auto op = std::find_if(ranks[rank].begin(), ranks[rank].end(),
                                   [&](auto one) { return (!is_not || one == "in") && skip(one); });
      if (op == ranks[rank].end()) {
        at_ = before;
        break;
      }
      if (rank == comparison && !steps.empty()) refuse("a comparison of a comparison is not supported");
      steps.push_back([op = *op, is_not, right = operation(rank + 1)](jinja_run& run, const jinja_value& left) {
        if (op == "or" || op == "and") return is_true(left) == (op == "or") ? left : right(run);
        const jinja_value value = operated(run, op, left, right(run));
        return is_not ? jinja_value(!is_true(value)) : value;
      });
    }
    return chain(std::move(first), std::move(steps));
  }

  // Takes a value with its sign, members, items, calls and, if takes_filters, filters and tests.
  jinja_code unary(bool takes_filters) {
    jinja_code first;
    if (skip("-")) {
      const level here(*this);
      first = code([of = unary(false)](jinja_run& run) {
        const jinja_value value = of(run);
        if (!defined(run, value).is_number()) run.fail(kind_of(value), " has no sign");
        return operated(run, "*", value, std::int64_t{-1});
      });
    } else {
      first = primary();
    }
    std::vector<jinja_step> steps;
    while (true) {
      if (is("(")) {
        steps.push_back([given = arguments()](jinja_run& run, const jinja_value& of) {
          jinja_arguments values = evaluated(run, given);
          if (!defined(run, of).function()) run.fail(kind_of(of), " cannot be called");
          return (*of.function())(run, values);
        });
      } else if (skip(".")) {
        const bool is_number = is_digit(next());
        jinja_code key = is_number ? primary() : constant(trusted_text(expect_name()));
        steps.push_back([key, is_number](jinja_run& run, const jinja_value& of) {
          const jinja_value name = key(run);
          return is_number ? item_of(run, of, name) : member_of(run, of, name.text()->bytes);
        });
      } else if (skip("[")) {
        steps.push_back(subscript());
      } else if (takes_filters && skip("|")) {
        steps.push_back(filter());
      } else if (takes_filters && skip("is")) {
        steps.push_back(test());
      } else {
        return chain(std::move(first), std::move(steps));
      }
    }
  }

  jinja_code primary() {
    const level here(*this);
    const char first = next();
    if (is_letter(first)) {
      const std::string found = expect_name();
      if (found == "true" || found == "True") return constant(true);
      if (found == "false" || found == "False") return constant(false);
      if (found == "none" || found == "None") return constant(std::monostate{});
      if (std::find(names_.begin(), names_.end(), found) == names_.end()) names_.push_back(found);
      return [found](jinja_run& run) { return looked_up(run, found); };
    }
    if (is_digit(first)) return constant(number());
    if (first == '\'' || first == '"') {
      std::string text;
      while (next() == '\'' || next() == '"')
        text += quoted();
      return constant(trusted_text(text));
    }
    if (skip("(")) {
      if (skip(")")) return list_of({}, jinja_list::form::tuple);
      jinja_code inner = expressions();
      expect(")");
      return inner;
    }
    if (!skip("[") && !skip("{")) refuse_missing("an expression");
    std::vector<jinja_code> parts;
    const bool is_list = first == '[';
    while (!skip(is_list ? "]" : "}")) {
      if (!parts.empty()) expect(",");
      if (skip(is_list ? "]" : "}")) break;
      parts.push_back(expression());
      if (is_list) continue;
      expect(":");
      parts.push_back(expression());
    }
    if (is_list) return list_of(std::move(parts), jinja_list::form::list);
    return code([parts = std::move(parts)](jinja_run& run) {
      std::vector<std::pair<jinja_value, jinja_value>> items;
      for (std::size_t i = 0; i < parts.size(); i += 2)
        items.emplace_back(parts[i](run), parts[i + 1](run));
      return make_dict(run, std::move(items));
    });
  }

  static jinja_value looked_up(jinja_run& run, const std::string& name) {
    run.spend(1);
    for (jinja_frame* frame = run.frame; frame; frame = frame->around) {
      run.spend(frame->variables.size() / 16);
      if (const jinja_value* const found = frame->find(name)) return *found;
    }
    if (const jinja_builtin* const found = find_builtin(name)) return bound(found, {});
    for (const std::string_view other : {"dict", "cycler", "joiner", "lipsum", "self", "varargs", "kwargs", "caller"})
      if (name == other) run.fail("\"", name, "\" is not supported");
    return undefined(name);
  }

  // Takes a key or the places of a slice, and the closing ]; the opening [ was taken before.
  jinja_step subscript() {
    std::vector<jinja_code> parts(1);
    while (!skip("]")) {
      if (skip(":")) {
        parts.emplace_back();
      } else if (parts.back()) {
        expect("]");
      } else {
        parts.back() = expression();
      }
    }
    if (parts.size() == 1 && !parts[0]) refuse_missing("an expression");
    if (parts.size() == 1)
      return [key = parts[0]](jinja_run& run, const jinja_value& of) { return item_of(run, of, key(run)); };
    if (parts.size() > 3) refuse("a slice has more than three places");
    parts.resize(3);
    return [parts](jinja_run& run, const jinja_value& of) {
      std::vector<jinja_value> places;
      for (const jinja_code& part : parts)
        places.push_back(part ? part(run) : jinja_value(std::monostate{}));
      return slice_of(run, of, places[0], places[1], places[2]);
    };
  }

  // The arguments of a call, each with its name: empty if it has none; * if it is a list of arguments.
  using written_arguments = std::vector<std::pair<std::string, jinja_code>>;

  written_arguments arguments() {
    written_arguments made;
    expect("(");
    while (!skip(")")) {
      if (!made.empty()) expect(",");
      if (skip(")")) break;
      const std::size_t before = at_;
      std::string with = skip("*") ? "*" : name();
      if (with != "*" && (is("==") || !skip("="))) {
        with.clear();
        at_ = before;
      }
      if (with.empty() && !made.empty() && !made.back().first.empty())
        refuse("an argument without a name follows one with a name");
      made.emplace_back(std::move(with), expression());
    }
    return made;
  }

  static jinja_arguments evaluated(jinja_run& run, const written_arguments& written) {
    jinja_arguments made;
    for (const auto& [name, value] : written)
      if (name == "*") {
        for (jinja_value& item : items_of(run, value(run)))
          made.values.push_back(std::move(item));
      } else if (name.empty()) {
        made.values.push_back(value(run));
      } else {
        made.named.emplace_back(name, value(run));
      }
    return made;
  }

  // Takes the name of a filter, and its arguments.
  jinja_step filter() {
    const std::string found = expect_name();
    return builtin("|" + found, "filter", is("(") ? arguments() : written_arguments());
  }

  jinja_step test() {
    const bool is_not = skip("not");
    const std::string found = expect_name();
    written_arguments given;
    const char c = next();
    const bool has_value = c == '\'' || c == '"' || c == '[' || c == '{' || is_digit(c) ||
                           (is_letter(c) && !is("else") && !is("or") && !is("and"));
    if (is("(")) given = arguments();
    if (has_value) given.emplace_back("", unary(false));
    jinja_step made = builtin("?" + found, "test", std::move(given));
    if (!is_not) return made;
    return [made](jinja_run& run, const jinja_value& of) { return jinja_value(!is_true(made(run, of))); };
  }

  jinja_step builtin(const std::string& key, std::string_view what, written_arguments given) {
    const jinja_builtin* const found = find_builtin(key);
    if (!found) refuse("the ", what, " \"", key.substr(1, 40), "\" is not supported");
    return [found, given = std::move(given)](jinja_run& run, const jinja_value& self) {
      return found->call(run, self, evaluated(run, given));
    };
  }

  std::string where_, text_;
  std::string_view closing_;  // end of the tag that is read: }} or %}
  std::vector<std::string> names_;
  std::size_t at_ = 0, counted_ = 0;
  int line_ = 1, level_ = 0, loops_ = 0;
};

}  // namespace espalier::detail
