// SPDX-License-Identifier: BSL-1.0
#include "tool_calls.hpp"

#include <algorithm>

#include "espalier/core/error.hpp"
#include "member_text.hpp"

namespace serve {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view space = " \t\n\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

std::string_view trimmed_left(std::string_view text) {
  return text.substr((std::min)(text.find_first_not_of(space), text.size()));
}

bool is_json(std::string_view text) {
  return ordered_json::accept(text.begin(), text.end());
}

// The size of the JSON object or array that begins `text`; npos if it is cut.
std::size_t value_size(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// The size of the longest end of `text` that `sought` begins with, but is longer than.
std::size_t begun(std::string_view text, std::string_view sought) {
  for (std::size_t n = (std::min)(text.size(), sought.empty() ? 0 : sought.size() - 1); n > 0; --n)
    if (text.ends_with(sought.substr(0, n))) return n;
  return 0;
}

// Special tokens in a text that the template writes, and their texts.
void find_marks(std::string_view text, const espalier::tokenizer& tokenizer, call_form& form) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (std::size_t n = text.size() - at; n > 1; --n) {
      const std::string_view mark = text.substr(at, n);
      const espalier::token_id token = tokenizer.find(mark);
      if (token < 0 || !tokenizer.piece(token).empty()) continue;
      form.marks.emplace_back(token, mark);
      at += n - 1;
      break;
    }
  }
}

// Puts a schema that refers to its own parts under another name.
void move_references(ordered_json& schema, const std::string& to) {
  if (schema.is_object()) {
    const auto found = schema.find("$ref");
    if (found != schema.end() && found->is_string() && found->get_ref<const std::string&>().starts_with("#"))
      *found = to + found->get<std::string>().substr(1);
  }
  if (!schema.is_structured()) return;
  for (ordered_json& part : schema)
    move_references(part, to);
}

bool has_references(const ordered_json& schema) {
  if (schema.is_object() && schema.contains("$ref")) return true;
  return schema.is_structured() && std::any_of(schema.begin(), schema.end(), has_references);
}

}  // namespace

std::optional<call_form> call_form::in(std::string_view text, std::string_view name, const ordered_json& arguments,
                                       std::string_view end_of_turn) {
  const std::string key = arguments.begin().key();
  const std::size_t name_at = text.find(name), key_at = text.find(key, (std::min)(name_at, text.size()));
  if (name_at == std::string_view::npos || key_at == std::string_view::npos) return {};
  call_form form;
  std::size_t begin = 0, end = 0;
  const auto parsed = [&](std::size_t at) {
    const std::size_t size = at == std::string_view::npos ? at : value_size(text.substr(at));
    if (size == std::string_view::npos || !is_json(text.substr(at, size))) return ordered_json();
    begin = at, end = at + size;
    return ordered_json::parse(text.substr(at, size));
  };
  const ordered_json call = parsed(text.rfind('{', name_at));
  form.name_key.clear(), form.arguments_key.clear();
  if (call.is_object()) {
    for (const auto& [member, value] : call.items()) {
      if (value == ordered_json(name)) form.name_key = member;
      if (value == arguments) form.arguments_key = member;
    }
  }
  if (form.name_key.empty() || form.arguments_key.empty()) {
    form = {};
    form.names_before = true;
    if (parsed(text.rfind('{', key_at)) != arguments || begin < name_at) return {};
    form.middle = text.substr(name_at + name.size(), begin - name_at - name.size());
    if (trimmed(form.middle).empty()) return {};
    begin = name_at;
  }
  form.begin = text.substr(0, begin);
  std::string_view rest = trimmed_left(text.substr(end));
  if (!form.names_before && trimmed(form.begin).ends_with('[') && rest.starts_with(']')) {
    form.is_list = true;
    form.begin.erase(form.begin.rfind('['));
    rest.remove_prefix(1);
  }
  form.end = rest.substr(0, end_of_turn.empty() ? rest.size() : rest.find(end_of_turn));
  return form;
}

std::optional<call_form> call_form::of(const espalier::chat_template& chat, const espalier::tokenizer& tokenizer) {
  if (!chat.reads("tools")) return call_form();
  constexpr auto name = "espalier_function";
  const ordered_json arguments = {{"espalier_argument", "espalier_value"}};
  const ordered_json parameters = {{"type", "object"},
                                   {"properties", {{"espalier_argument", {{"type", "string"}}}}},
                                   {"required", ordered_json::array({"espalier_argument"})}};
  const ordered_json described = {{"name", name}, {"description", ""}, {"parameters", parameters}};
  const auto tools = ordered_json::array({{{"type", "function"}, {"function", described}}});
  const auto written = [&](ordered_json answer) {
    const ordered_json user = {{"role", "user"}, {"content", "?"}};
    answer["role"] = "assistant";
    std::string text;
    for (const espalier::prompt_piece& piece : chat.prompt({.messages = ordered_json::array({user, std::move(answer)}),
                                               .tools = tools,
                                               .end = espalier::chat_end::complete}))
      text += piece.text;
    return text;
  };
  // Most templates take arguments as an object, some as its text; most take null for no content.
  for (const bool as_text : {false, true}) {
    const ordered_json function = {{"name", name}, {"arguments", as_text ? ordered_json(arguments.dump()) : arguments}};
    const ordered_json call = {{"id", "call00000"}, {"type", "function"}, {"function", function}};
    for (const ordered_json& content : {ordered_json(), ordered_json("")}) {
      try {
        const std::string called = written({{"content", content}, {"tool_calls", ordered_json::array({call})}});
        const std::string said = written({{"content", "@"}});
        const auto differ = std::mismatch(called.begin(), called.end(), said.begin(), said.end()).first;
        auto form = in(std::string(differ, called.end()), name, arguments, chat.end_of_turn());
        if (!form) continue;
        form->arguments_as_text = as_text;
        form->content_as_text = content.is_string();
        for (const std::string* text : {&form->begin, &form->middle, &form->end})
          find_marks(*text, tokenizer, *form);
        return form;
      } catch (const espalier::input_error&) {
        // The template takes no such conversation.
      }
    }
  }
  return {};
}

std::string tool_use::schema() const {
  if (form.names_before) return tools.front().parameters.dump();
  ordered_json parts = ordered_json::object();
  ordered_json calls = ordered_json::array();
  for (const tool& one : tools) {
    ordered_json parameters = one.parameters;
    if (has_references(parameters)) {
      const std::string part = std::to_string(parts.size()), place = "#/$defs/" + part;
      move_references(parameters, place);
      parts[part] = std::move(parameters);
      parameters = {{"$ref", place}};
    }
    calls.push_back({{"type", "object"},
                     {"properties", {{form.name_key, {{"const", one.name}}}, {form.arguments_key, parameters}}},
                     {"required", {form.name_key, form.arguments_key}},
                     {"additionalProperties", false}});
  }
  ordered_json schema = calls.size() == 1 ? std::move(calls.front()) : ordered_json{{"anyOf", std::move(calls)}};
  if (form.is_list) {
    schema = {{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}};
    if (one_name || !parallel) schema["maxItems"] = 1;
  }
  if (!parts.empty()) schema["$defs"] = std::move(parts);
  return schema.dump();
}

std::string tool_use::opening() const {
  std::string text = form.begin;
  if (form.names_before) text += tools.front().name + form.middle;
  text.erase(text.find_last_not_of(' ') + 1);  // the model writes such a space together with what follows
  return text;
}

call_reader::call_reader(const tool_use& use)
    : use_(use), begin_(trimmed(use.form.begin)), end_(trimmed(use.form.end)) {
  if (!use.must_call) return;
  state_ = state::call;
  if (use.form.names_before) waiting_ = use.tools.front().name + use.form.middle;
}

const tool* call_reader::find(std::string_view name) const {
  const auto found = std::find_if(use_.tools.begin(), use_.tools.end(), [&](const tool& t) { return t.name == name; });
  return found == use_.tools.end() ? nullptr : &*found;
}

bool call_reader::take_object(std::string_view object, std::vector<tool_call>& calls) const {
  const auto name = member_text(object, use_.form.name_key);
  if (!name.starts_with('"')) return false;
  const tool* called = find(ordered_json::parse(name).get<std::string>());
  if (called == nullptr) return false;
  std::string_view arguments = member_text(object, use_.form.arguments_key);
  if (arguments.empty()) arguments = "{}";
  if (!arguments.starts_with('{')) return false;
  calls.push_back({called->name, std::string(arguments)});
  return true;
}

bool call_reader::take(std::string_view value, std::vector<tool_call>& calls) const {
  if (!is_json(value)) return false;
  if (value.front() == '{') return take_object(value, calls);
  // The elements of an array of objects, as they are written.
  std::size_t at = 1;
  for (;;) {
    at += value.substr(at).find_first_not_of(" \t\n\r,");
    if (value[at] != '{') break;
    const std::size_t size = value_size(value.substr(at));
    if (!take_object(value.substr(at, size), calls)) return false;
    at += size;
  }
  return value[at] == ']' && !calls.empty();
}

// The position after the name of a function at the beginning of a text and what follows it; none if it is no such name,
// or is_cut.
std::optional<std::size_t> call_reader::read_name(std::string_view text, std::string& name, bool& is_cut) const {
  for (const tool& one : use_.tools) {
    const std::string whole = one.name + use_.form.middle;
    if (text.starts_with(whole)) {
      name = one.name;
      return whole.size();
    }
    is_cut = is_cut || whole.starts_with(text);
  }
  return {};
}

// Reads the call that waits; false if it is cut. If it is none, the text is content.
bool call_reader::read_call(parts& found) {
  const std::string_view text = trimmed_left(waiting_);
  const std::size_t skipped = waiting_.size() - text.size();
  const auto refuse = [&] {
    (found.content += opened()) += waiting_;
    at_start_ = false;
    waiting_.clear();
    state_ = state::content;
    return true;
  };
  std::string name;
  std::size_t at = 0;
  if (use_.form.names_before) {
    bool is_cut = false;
    const auto end = read_name(text, name, is_cut);
    if (!end && is_cut) return false;
    if (!end) return refuse();
    at = *end;
  }
  const std::string_view value = text.substr(at);
  if (value.empty()) return false;
  if (value.front() != '{' && (use_.form.names_before || value.front() != '[')) return refuse();
  const std::size_t size = value_size(value);
  if (size == std::string_view::npos) return false;
  std::vector<tool_call> calls;
  if (use_.form.names_before) {
    if (!is_json(value.substr(0, size))) return refuse();
    calls.push_back({name, std::string(value.substr(0, size))});
  } else if (!take(value.substr(0, size), calls)) {
    return refuse();
  }
  for (tool_call& call : calls) {
    if (use_.parallel || n_calls_ == 0) found.calls.push_back(std::move(call));
    ++n_calls_;
  }
  waiting_.erase(0, skipped + at + size);
  state_ = state::after_call;
  return true;
}

void call_reader::read_content(parts& found, bool is_end) {
  const auto tell = [&](std::size_t n) {
    std::string_view told = std::string_view(waiting_).substr(0, n);
    if (drops_space_) told = trimmed_left(told);
    if (!trimmed(told).empty()) at_start_ = drops_space_ = false;
    found.content += told;
    waiting_.erase(0, n);
  };
  if (begin_.empty()) {  // a call stands at the beginning, or after another one
    const std::string_view text = trimmed_left(waiting_);
    if (at_start_ && text.empty() && !is_end) return;
    bool may_begin = at_start_ && !text.empty() && (text.front() == '{' || text.front() == '[');
    if (at_start_ && use_.form.names_before) {
      std::string name;
      bool is_cut = false;
      may_begin = read_name(text, name, is_cut).has_value();
      if (is_cut && !is_end) return;
    }
    if (may_begin) state_ = state::call;
    if (!may_begin) tell(waiting_.size());
    return;
  }
  const std::size_t at = waiting_.find(begin_);
  if (at != std::string::npos) {
    tell(at);
    waiting_.erase(0, begin_.size());
    state_ = state::call;
    return;
  }
  // White space may stand before a call, and then is no content.
  std::size_t kept = is_end ? 0 : begun(waiting_, begin_);
  if (drops_space_ && trimmed(std::string_view(waiting_).substr(0, waiting_.size() - kept)).empty() && !is_end) return;
  tell(waiting_.size() - kept);
}

call_reader::parts call_reader::push(std::string_view text) {
  parts found;
  waiting_ += text;
  while (!waiting_.empty()) {
    const state before = state_;
    if (state_ == state::call) {
      if (!read_call(found)) break;
    } else if (state_ == state::after_call) {
      const std::string_view rest = trimmed_left(waiting_);
      if (!rest.starts_with(end_) && end_.starts_with(rest)) break;
      if (rest.starts_with(end_)) waiting_ = rest.substr(end_.size());
      state_ = state::content;
      at_start_ = drops_space_ = true;
    } else {
      read_content(found, false);
      if (state_ == before) break;
    }
  }
  return found;
}

call_reader::parts call_reader::finish() {
  parts found;
  if (state_ == state::content) {
    read_content(found, true);
  }
  if (state_ == state::call) {
    (found.content += opened()) += waiting_;
  } else if (state_ == state::after_call) {
    found.content += trimmed(waiting_);
  }
  waiting_.clear();
  state_ = state::content;
  return found;
}

std::string marked_text::push(std::string_view bytes, std::span<const espalier::token_id> tokens) {
  for (const espalier::token_id token : tokens) {
    const auto mark =
        std::find_if(form_.marks.begin(), form_.marks.end(), [&](const auto& m) { return m.first == token; });
    if (mark != form_.marks.end()) marks_.emplace_back(written_, &mark->second);
    written_ += tokenizer_.piece(token).size();
  }
  std::string text;
  const std::size_t end = shown_ + bytes.size();
  for (; !marks_.empty() && marks_.front().first <= end; marks_.pop_front()) {
    const std::size_t n = marks_.front().first - shown_;
    text += bytes.substr(0, n);
    text += *marks_.front().second;
    bytes.remove_prefix(n);
    shown_ += n;
  }
  text += bytes;
  shown_ = end;
  return text;
}

}  // namespace serve
