// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "espalier/model/tokenizer/jinja/jinja_parser.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace espalier {

//! How the prompt of a chat ends.
enum class chat_end {
  reply,      //!< with the text that comes before the assistant's next answer
  continued,  //!< inside the last message, which the model goes on with
  complete    //!< after the last message
};

//! Values that a chat template is given. Objects keep the order of their members, in which a template writes them.
struct chat_input {
  //! An array of objects, each a message with the members that the template reads: role, content, tool_calls, ...
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools{};      //!< an array of tools in the form of OpenAI's API; null: none
  nlohmann::ordered_json variables{};  //!< an object of further variables, such as enable_thinking; null: none
  chat_end end = chat_end::reply;
  std::time_t now = -1;  //!< the template's time, in seconds since 1970; -1: the time of the clock
};

//! Turns the messages of a chat into the prompt after which the assistant answers, in the form that a model was trained
//! to read.
//!
//! Model files bring a template in the language Jinja, which is run as jinja2 runs it for transformers: the statements,
//! filters, tests, and methods of texts and dicts that published templates use. Statements, filters and tests that are
//! not supported are refused when the template is read. A run is bounded in steps, text and nesting.
//!
//! Text that the template itself writes is trusted; text that comes from messages, tools and variables is not, whatever
//! the template does with it, except the names of the usual roles. So if marks are special tokens, no message can
//! contain one. Llama 2, the first Mistral, and templates with labels have marks of plain text, which a user can write,
//! too.
//!
//!     const auto chat = espalier::chat_template::of(tokenizer);
//!     const std::vector<espalier::token_id> prompt = chat.tokens(tokenizer, {.messages = {{{"role", "user"}, ...}}});
class chat_template {
 public:
  //! The template in the file of a tokenizer; the one named tool_use, if there is one, is taken if tools are given.
  //!
  //! Errors      model_error that names the file if it has no template, or the line that cannot be run
  static chat_template of(const tokenizer& text) {
    if (text.chat_template_text().empty()) raise<model_error>(text.where(), " has no chat template.");
    chat_template made = of(text.chat_template_text(), text.chat_variables(), text.where());
    if (!text.tool_template_text().empty()) made.with_tools_ = program::of(text.tool_template_text(), text.where());
    // Cuts end_of_turn_ down to the shortest special token that it begins with, if there is one.
    const std::string& end = made.end_of_turn_;
    for (std::size_t size = 1; size <= end.size(); ++size) {
      if (text.find(std::string_view(end).substr(0, size)) < 0) continue;
      made.end_of_turn_ = end.substr(0, size);
      break;
    }
    return made;
  }

  //! The template whose source is `text`. `variables` is an object of values that are trusted as the template's own
  //! text is, such as bos_token and eos_token; `where` names the template in messages.
  //!
  //! Errors      model_error that names the line that cannot be run
  static chat_template of(std::string_view text, nlohmann::ordered_json variables, const std::string& where) {
    chat_template made;
    made.where_ = where;
    made.variables_ = std::move(variables);
    made.program_ = program::of(text, where);
    made.end_of_turn_ = made.found_end();
    return made;
  }

  //! A template for models without marks: each message is on a line of its own. A message of the user or the assistant
  //! follows a label.
  static chat_template labelled(const std::string& user, const std::string& assistant) {
    chat_template made =
        of("{%- for message in messages %}"
           "{%- if message.role == 'user' %}{{ user_label + ' ' }}"
           "{%- elif message.role == 'assistant' %}{{ assistant_label + ' ' }}"
           "{%- elif message.role != 'system' %}"
           "{{- raise_exception('roles are system, user and assistant, not ' ~ message.role) }}"
           "{%- endif %}{{ message.content + '\\n' }}{% endfor %}"
           "{%- if add_generation_prompt %}{{ assistant_label }}{% endif %}",
           {{"user_label", user}, {"assistant_label", assistant}}, "labels");
    made.is_plain_ = true;
    made.end_of_turn_ = user.empty() ? "" : "\n" + user;
    return made;
  }

  //! True if the template reads a variable, such as "tools".
  bool reads(std::string_view variable) const {
    return program_->reads(variable) || (with_tools_ && with_tools_->reads(variable));
  }

  //! The text that ends an answer of the assistant: a special token or another text to stop at; empty if the template
  //! does not tell it.
  const std::string& end_of_turn() const { return end_of_turn_; }

  //! The tokens of the prompt. With labels they begin with begin_of_text, if there is one; a template of a file writes
  //! this token itself.
  //!
  //! Errors      the same as prompt
  std::vector<token_id> tokens(const tokenizer& text, const chat_input& input) const {
    std::vector<token_id> prompted = text.encode_pieces(prompt(input));
    if (is_plain_ && text.begin_of_text() >= 0) prompted.insert(prompted.begin(), text.begin_of_text());
    return prompted;
  }

  //! The prompt as pieces, each trusted or not.
  //!
  //! Errors      input_error for messages that are no array of objects, for tools that are no array, for variables that
  //!             are no object or have the name of another input (messages, tools, add_generation_prompt), for tools or
  //!             variables that the template does not read, for a last message that cannot be continued, and, with the
  //!             line, for input that the template refuses or cannot handle
  std::vector<prompt_piece> prompt(const chat_input& input) const {
    detail::jinja_text text = written(input);
    if (input.end == chat_end::continued) text = text.part(0, end_of_last(text, input));
    std::vector<prompt_piece> pieces;
    text.each_run([&](std::size_t begin, std::size_t end, bool is_trusted) {
      pieces.push_back({text.bytes.substr(begin, end - begin), is_trusted});
    });
    return pieces;
  }

 private:
  struct program {
    detail::jinja_code all;
    std::vector<std::string> names;

    static std::shared_ptr<const program> of(std::string_view text, const std::string& where) {
      detail::jinja_parser parser(text, where);
      detail::jinja_code all = parser.parse();
      return std::make_shared<const program>(program{std::move(all), parser.names()});
    }
    bool reads(std::string_view variable) const {
      return std::find(names.begin(), names.end(), variable) != names.end();
    }
  };

  detail::jinja_text written(const chat_input& input) const {
    const bool has_tools = !input.tools.is_null() && !(input.tools.is_array() && input.tools.empty());
    const program& used = has_tools && with_tools_ ? *with_tools_ : *program_;
    if (has_tools && !input.tools.is_array()) raise<input_error>("tools must be an array.");
    if (has_tools && !used.reads("tools"))
      raise<input_error>("there are tools, but the chat template of ", where_, " does not read any.");
    if (!input.messages.is_array()) raise<input_error>("the messages of a chat must be an array.");
    detail::jinja_run run(where_, input.now == -1 ? std::time(nullptr) : input.now);
    for (const auto& [name, value] : variables_.items())
      run.variables.set(name, detail::value_of(run, value, true));
    run.variables.set("messages", messages_of(run, input.messages));
    run.variables.set("tools", detail::value_of(run, input.tools, false));
    run.variables.set("documents", std::monostate{});
    run.variables.set("add_generation_prompt", input.end == chat_end::reply);
    if (!input.variables.is_null()) add_variables(run, used, input.variables);
    used.all(run);
    return std::move(run.out);
  }

  void add_variables(detail::jinja_run& run, const program& used, const nlohmann::ordered_json& variables) const {
    if (!variables.is_object()) raise<input_error>("the variables of a chat template must be an object.");
    for (const auto& [name, value] : variables.items()) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt")
        raise<input_error>("the variable \"", name, "\" of a chat template cannot be given twice.");
      if (!used.reads(name)) {
        const std::string_view nearest = name.size() > 64 ? std::string_view() : nearest_name(name, used.names);
        const std::string hint = nearest.empty() ? "." : "; the nearest name is \"" + std::string(nearest) + "\".";
        raise<input_error>("the chat template of ", where_, " has no variable \"", name.substr(0, 64), "\"", hint);
      }
      run.variables.set(name, detail::value_of(run, value, false));
    }
  }

  // The messages as a list of dicts. The usual names of roles are trusted: some templates make marks of them, such as
  // <|user|>.
  static detail::jinja_value messages_of(detail::jinja_run& run, const nlohmann::ordered_json& messages) {
    std::vector<detail::jinja_value> made;
    for (const auto& message : messages) {
      if (!message.is_object()) raise<input_error>("message ", made.size(), " is no object.");
      std::vector<std::pair<detail::jinja_value, detail::jinja_value>> members;
      for (const auto& [key, value] : message.items()) {
        constexpr std::string_view roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
        const bool is_role =
            key == "role" && value.is_string() &&
            std::find(std::begin(roles), std::end(roles), value.get_ref<const std::string&>()) != std::end(roles);
        members.emplace_back(detail::jinja_text(key, false), detail::value_of(run, value, is_role));
      }
      made.push_back(detail::make_dict(run, std::move(members)));
    }
    return detail::make_list(run, std::move(made));
  }

  // The position in a prompt at which the last message's content ends.
  std::size_t end_of_last(const detail::jinja_text& text, const chat_input& input) const {
    const nlohmann::ordered_json none, *content = &none;
    if (!input.messages.empty() && input.messages.back().contains("content"))
      content = &input.messages.back()["content"];
    if (content->is_array() && !content->empty() && content->back().is_object() && content->back().contains("text"))
      content = &content->back()["text"];
    if (content->is_string()) {
      const auto& whole = content->get_ref<const std::string&>();
      detail::jinja_run run(where_);
      const detail::jinja_text said_last(whole, false);
      const detail::jinja_value stripped = detail::stripped(run, said_last);
      const detail::jinja_value from_text = detail::stripped(run, said_last, std::monostate{}, true, false);
      // Templates may strip a message at its end.
      for (const std::string& said : {from_text.text()->bytes, stripped.text()->bytes}) {
        const std::size_t at = said.empty() ? std::string::npos : text.bytes.rfind(said);
        if (at != std::string::npos && !text.is_trusted_at(at)) return at + said.size();
      }
    }
    raise<input_error>("the last message cannot be continued: its content is empty, or not what the chat template of ",
                       where_, " writes.");
  }

  // Returns the text after the answer in a rendered test chat, stripped; empty if the template refuses the chat or
  // leaves the answer out.
  std::string found_end() const {
    std::string end;
    const auto find = [&] {
      const chat_input probe{
          .messages = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "probe"}}},
          .end = chat_end::complete};
      const detail::jinja_text text = written(probe);
      const std::size_t at = text.bytes.rfind("probe");
      if (at == std::string::npos) return;
      detail::jinja_run run(where_);
      end = detail::stripped(run, text.part(at + 5, text.bytes.size())).text()->bytes;
    };
#if ESPALIER_EXCEPTIONS
    try {
      find();
    } catch (const input_error&) {  // the template refuses such a chat
    }
#else
    detail::message_type message;
    (void)detail::attempt(find, message);
#endif
    return end;
  }

  std::shared_ptr<const program> program_, with_tools_;
  nlohmann::ordered_json variables_;
  std::string where_, end_of_turn_;
  bool is_plain_ = false;
};

}  // namespace espalier
