// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/tokenizer/chat_template.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/model/tokenizer/jinja/jinja_parser.hpp"

namespace espalier::detail {

// The variables of a template, of a loop's round or of a macro's call.
struct jinja_frame {
  std::shared_ptr<jinja_frame> around{};
  std::vector<std::pair<std::string, jinja_value>> variables{};

  void set(std::string_view name, jinja_value value) {
    for (auto& [known, old] : variables) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
  }
};

// Runs a template once.
//
// Errors      input_error with the line: what raise_exception says, what Python would refuse, or more than the bounds
//             on steps, texts and nesting allow
class jinja_run {
 public:
  // Prepares a run; `now` is the time in seconds since 1970 that strftime_now tells.
  jinja_run(const jinja_node& all, const std::string& where, std::time_t now) : all_(all), now_(now), work_(where) {}

  jinja_work& work() { return work_; }
  void set(std::string_view name, jinja_value value) { frame_->set(name, std::move(value)); }

  jinja_text text() {
    run(all_);
    return std::move(out_);
  }

 private:
  using kind = jinja_node::kind;
  enum class after { goes_on, breaks, continues };

  // Counts the calls that are open.
  struct level {
    explicit level(jinja_run& of) : run(of) {
      constexpr int deepest = 400;
      if (++of.level_ > deepest) of.work_.fail("it calls itself more than ", deepest, " levels deep");
    }
    ~level() { --run.level_; }
    jinja_run& run;
  };

  // Variables that end with a part of the template.
  struct scope {
    scope(jinja_run& of, std::shared_ptr<jinja_frame> around) : run(of), before(of.frame_) {
      of.frame_ = std::make_shared<jinja_frame>();
      of.frame_->around = std::move(around);
    }
    explicit scope(jinja_run& of) : scope(of, of.frame_) {}
    ~scope() { run.frame_ = std::move(before); }
    jinja_run& run;
    std::shared_ptr<jinja_frame> before;
  };

  after run(const jinja_node& node) {
    const level here(*this);
    work_.line = node.line;
    work_.spend(1);
    switch (node.is) {
      case kind::block:
        for (const jinja_node& part : node.parts)
          if (const after next = run(part); next != after::goes_on) return next;
        break;
      case kind::output:
        write(text_of(work_, value(node.parts[0])));
        break;
      case kind::branch:
        for (std::size_t i = 0; i < node.parts.size(); i += 2) {
          const bool is_else = i + 1 == node.parts.size();
          if (is_else || is_true(value(node.parts[i]))) return run(node.parts[is_else ? i : i + 1]);
        }
        break;
      case kind::loop:
        run_loop(node);
        break;
      case kind::set:
        assign(node.parts[0], value(node.parts[1]));
        break;
      case kind::set_block:
        assign(node.parts[0], captured(node.parts[1]));
        break;
      case kind::macro:
        frame_->set(node.name,
                    std::shared_ptr<const jinja_function>(new jinja_function{node.name, nullptr, {}, &node, frame_}));
        break;
      case kind::scope: {
        const scope inner(*this);
        return run(node.parts[0]);
      }
      case kind::break_loop:
        return after::breaks;
      case kind::continue_loop:
        return after::continues;
      default:
        break;
    }
    return after::goes_on;
  }

  void run_loop(const jinja_node& node) {
    std::vector<jinja_value> items = items_of(work_, value(node.parts[1]));
    if (node.parts[2].is != kind::none) {
      std::vector<jinja_value> kept;
      for (jinja_value& item : items) {
        const scope inner(*this);
        assign(node.parts[0], item);
        if (is_true(value(node.parts[2]))) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      const scope inner(*this);
      run(node.parts[4]);
      return;
    }
    const auto state = std::make_shared<jinja_loop>();
    state->items = std::move(items);
    for (; state->index < state->items.size(); ++state->index) {
      work_.spend(8);
      const scope inner(*this);
      frame_->set("loop", state);
      assign(node.parts[0], state->items[state->index]);
      if (run(node.parts[3]) == after::breaks) break;
    }
  }

  void write(const jinja_text& text) {
    work_.spend_bytes(text.bytes.size());
    out_.append(text);
  }

  // What a body writes, as a value.
  jinja_value captured(const jinja_node& body) {
    jinja_text outer = std::exchange(out_, {});
    {
      const scope inner(*this);
      run(body);
    }
    return std::exchange(out_, std::move(outer));
  }

  void assign(const jinja_node& target, jinja_value value) {
    if (target.is == kind::name) {
      work_.spend(frame_->variables.size() / 16);
      frame_->set(target.name, std::move(value));
    } else if (target.is == kind::member) {
      jinja_namespace* const space = look_up(target.parts[0].name).name_space();
      if (!space) work_.fail("\"", target.parts[0].name, "\" is no namespace, so its members cannot be set");
      work_.spend(space->items.size() / 16);
      set_member(*space, target.name, std::move(value));
    } else {
      const std::vector<jinja_value> items = items_of(work_, value);
      if (items.size() != target.parts.size())
        work_.fail(target.parts.size(), " names are given ", items.size(), " values");
      for (std::size_t i = 0; i < items.size(); ++i)
        assign(target.parts[i], items[i]);
    }
  }

  static void set_member(jinja_namespace& space, std::string_view name, jinja_value value) {
    for (auto& [known, old] : space.items) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    space.items.emplace_back(name, std::move(value));
  }

  jinja_value look_up(std::string_view name) {
    for (const jinja_frame* frame = frame_.get(); frame; frame = frame->around.get()) {
      work_.spend(frame->variables.size() / 16);
      for (const auto& [known, value] : frame->variables)
        if (known == name) return value;
    }
    for (const std::string_view global : {"raise_exception", "strftime_now", "namespace", "range"})
      if (name == global)
        return std::shared_ptr<const jinja_function>(new jinja_function{std::string(name), nullptr, {}, nullptr, {}});
    for (const std::string_view other : {"dict", "cycler", "joiner", "lipsum", "self", "varargs", "kwargs"})
      if (name == other) work_.fail("\"", name, "\" is not supported");
    return undefined(name);
  }

  jinja_value value(const jinja_node& node) {
    if (node.is == kind::constant) return node.value;
    const level here(*this);
    work_.line = node.line;
    work_.spend(1);
    switch (node.is) {
      case kind::name:
        return look_up(node.name);
      case kind::list:
      case kind::tuple: {
        std::vector<jinja_value> items;
        for (const jinja_node& part : node.parts)
          items.push_back(value(part));
        return make_list(work_, std::move(items),
                         node.is == kind::list ? jinja_list::form::list : jinja_list::form::tuple);
      }
      case kind::dict: {
        std::vector<std::pair<jinja_value, jinja_value>> items;
        for (std::size_t i = 0; i < node.parts.size(); i += 2)
          items.emplace_back(value(node.parts[i]), value(node.parts[i + 1]));
        return make_dict(work_, std::move(items));
      }
      case kind::item: {
        const jinja_value of = value(node.parts[0]);
        return item_of(work_, of, value(node.parts[1]));
      }
      case kind::slice: {
        std::vector<jinja_value> parts;
        for (const jinja_node& part : node.parts)
          parts.push_back(part.is == kind::none ? jinja_value(std::monostate{}) : value(part));
        return slice_of(work_, parts[0], parts[1], parts[2], parts[3]);
      }
      case kind::member:
        return member_of(work_, value(node.parts[0]), node.name);
      case kind::call:
        return call(node);
      case kind::filter:
      case kind::test: {
        const jinja_value self = value(node.parts[0]);
        jinja_arguments given = arguments(node);
        work_.line = node.line;
        return node.method(work_, self, given);
      }
      case kind::unary:
        return negated(node.name, value(node.parts[0]));
      case kind::binary: {
        const jinja_value left = value(node.parts[0]), right = value(node.parts[1]);
        work_.line = node.line;
        return computed(work_, node.name, left, right);
      }
      case kind::concat: {
        jinja_text made;
        for (const jinja_node& part : node.parts)
          made.append(text_of(work_, value(part)));
        work_.spend_bytes(made.bytes.size());
        return made;
      }
      case kind::compare:
        return compared(node);
      case kind::both: {
        jinja_value left = value(node.parts[0]);
        return is_true(left) ? value(node.parts[1]) : left;
      }
      case kind::either: {
        jinja_value left = value(node.parts[0]);
        return is_true(left) ? left : value(node.parts[1]);
      }
      case kind::conditional:
        if (is_true(value(node.parts[0]))) return value(node.parts[1]);
        return node.parts[2].is == kind::none ? undefined("an expression without else") : value(node.parts[2]);
      default:
        work_.fail("an expression is missing");
    }
  }

  jinja_value negated(std::string_view op, const jinja_value& of) {
    if (op == "not") return !is_true(of);
    if (of.is_undefined()) fail_undefined(work_, of);
    if (!of.is_number()) work_.fail(kind_of(of), " has no sign");
    if (op == "+") return of.integer() ? jinja_value(of.to_integer()) : of;
    return of.integer() ? computed(work_, "-", std::int64_t{0}, of) : jinja_value(-of.to_double());
  }

  jinja_value compared(const jinja_node& node) {
    jinja_value left = value(node.parts[0]);
    bool holds = true;
    for (std::size_t i = 1; i < node.parts.size() && holds; ++i) {
      const std::string& op = node.parts[i].name;
      jinja_value right = value(node.parts[i].parts[0]);
      work_.line = node.line;
      if (op == "==") holds = are_equal(work_, left, right);
      if (op == "!=") holds = !are_equal(work_, left, right);
      if (op == "<") holds = is_less(work_, left, right);
      if (op == ">") holds = is_less(work_, right, left);
      if (op == "<=") holds = is_less(work_, left, right) || are_equal(work_, left, right);
      if (op == ">=") holds = is_less(work_, right, left) || are_equal(work_, left, right);
      if (op == "in") holds = contains(work_, right, left);
      if (op == "not in") holds = !contains(work_, right, left);
      left = std::move(right);
    }
    return holds;
  }

  // The arguments of a call, a filter or a test: its parts but for the first.
  jinja_arguments arguments(const jinja_node& node) {
    jinja_arguments made;
    for (std::size_t i = 1; i < node.parts.size(); ++i) {
      const jinja_node& part = node.parts[i];
      if (part.is == kind::keyword) {
        made.named.emplace_back(part.name, value(part.parts[0]));
      } else if (part.is == kind::spread) {
        for (jinja_value& item : items_of(work_, value(part.parts[0])))
          made.values.push_back(std::move(item));
      } else {
        made.values.push_back(value(part));
      }
    }
    return made;
  }

  jinja_value call(const jinja_node& node) {
    const jinja_value of = value(node.parts[0]);
    jinja_arguments given = arguments(node);
    work_.line = node.line;
    if (of.is_undefined()) fail_undefined(work_, of);
    const jinja_function* const function = of.function();
    if (!function) work_.fail(kind_of(of), " cannot be called");
    if (function->macro) return called(*function, std::move(given));
    if (function->method) return function->method(work_, function->self, given);
    if (function->name == "raise_exception") {
      std::string said = text_of(work_, given.take_or("message", {})).bytes;
      while (said.ends_with('.'))
        said.pop_back();
      work_.fail(said);
    }
    if (function->name == "strftime_now") {
      const text_argument form(work_, need_text(work_, given.take_or("format", {})));
      given.finish(work_);
      return time_text(form);
    }
    if (function->name == "range") return range(given);
    jinja_namespace& space = spaces_.emplace_back();
    for (auto& [name, item] : given.named)
      set_member(space, name, std::move(item));
    if (!given.values.empty()) work_.fail("a namespace needs values with names");
    return &space;
  }

  jinja_value called(const jinja_function& function, jinja_arguments given) {
    const jinja_node& macro = *function.macro;
    const std::shared_ptr<jinja_frame> around = function.around.lock();
    if (!around) work_.fail("the macro \"", function.name, "\" is called after the part that it stands in");
    jinja_text outer = std::exchange(out_, {});
    {
      const scope inner(*this, around);
      std::vector<std::optional<jinja_value>> values;
      for (std::size_t i = 1; i < macro.parts.size(); ++i)
        values.push_back(given.take(macro.parts[i].name));
      for (std::size_t i = 1; i < macro.parts.size(); ++i) {
        const jinja_node& otherwise = macro.parts[i].parts[0];
        if (!values[i - 1])
          values[i - 1] = otherwise.is == kind::none ? undefined(macro.parts[i].name) : value(otherwise);
        frame_->set(macro.parts[i].name, std::move(*values[i - 1]));
      }
      given.finish(work_);
      run(macro.parts[0]);
    }
    return std::exchange(out_, std::move(outer));
  }

  jinja_value range(jinja_arguments& given) {
    constexpr std::int64_t longest = 100'000;
    std::int64_t begin = 0, end = whole_number(work_, given.take_or("", {})), step = 1;
    if (const auto second = given.take("")) {
      begin = std::exchange(end, whole_number(work_, *second));
      if (const auto third = given.take("")) step = whole_number(work_, *third);
    }
    given.finish(work_);
    constexpr std::int64_t most = std::int64_t{1} << 60;
    const auto is_small = [&](std::int64_t number) { return number > -most && number < most; };
    if (step == 0 || !is_small(begin) || !is_small(end) || !is_small(step)) work_.fail("this range is not supported");
    const std::int64_t size = (end - begin + step + (step > 0 ? -1 : 1)) / step;
    if (size > longest) work_.fail("a range has more than ", longest, " numbers");
    std::vector<jinja_value> items;
    for (std::int64_t i = 0; i < size; ++i)
      items.push_back(begin + i * step);
    return make_list(work_, std::move(items));
  }

  jinja_value time_text(std::string_view form) const {
    if (form.size() > 1000) work_.fail("the form of a time has more than 1000 bytes");
    for (std::size_t at = form.find('%'); at != form.npos; at = form.find('%', at + 2))
      if (at + 1 == form.size() ||
          std::string_view("aAbBcdHIjmMpSUwWxXyYZ%").find(form[at + 1]) == std::string_view::npos)
        work_.fail("strftime_now does not support \"", form.substr(at, 2), "\"");
    std::tm parts{};
#ifdef _WIN32
    localtime_s(&parts, &now_);
#else
    localtime_r(&now_, &parts);
#endif
    std::string text(form.size() * 32 + 64, '\0');
    text.resize(std::strftime(text.data(), text.size(), std::string(form).c_str(), &parts));
    return trusted_text(std::move(text));
  }

  const jinja_node& all_;
  std::time_t now_;
  jinja_work work_;
  std::deque<jinja_namespace> spaces_;
  std::shared_ptr<jinja_frame> frame_ = std::make_shared<jinja_frame>();
  jinja_text out_;
  int level_ = 0;
};

}  // namespace espalier::detail
