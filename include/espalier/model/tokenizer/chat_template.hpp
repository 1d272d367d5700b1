// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_message.hpp"
#include "espalier/model/tokenizer/chat_template/chat_form.hpp"
#include "espalier/model/tokenizer/chat_template/read_chat_form.hpp"
#include "espalier/model/tokenizer/prompt_piece.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace espalier {

//! Turns the messages of a chat into the prompt after which the assistant answers, in the form that a model was trained
//! to read.
//!
//! Model files bring a template in the language Jinja. It is not run: its form is recognised by the marks that it
//! writes, and must be one of ChatML, Llama 2, Llama 3, Gemma, Mistral, Zephyr and Phi. So marks and messages are told
//! apart, and messages are never trusted: if marks are special tokens, no message can contain one. Llama 2, the first
//! Mistral, some models like Zephyr, and labels have marks of plain text, which a user can write, too.
//!
//!     const auto chat = espalier::chat_template::of(tokenizer);
//!     const std::vector<espalier::token_id> prompt = chat.tokens(tokenizer, messages);
class chat_template {
 public:
  //! The template in the file of a tokenizer.
  //!
  //! Errors      model_error that names the file if it has no template, or one of an unknown form
  static chat_template of(const tokenizer& text) {
    if (text.chat_template_text().empty()) raise<model_error>(text.where(), " has no chat template.");
    return of(text.chat_template_text(), text.begin_mark(), text.end_mark(), text.where());
  }

  //! The template of a text. begin_mark and end_mark are the values of its variables bos_token and eos_token.
  static chat_template of(std::string_view text, std::string_view begin_mark, std::string_view end_mark,
                          const std::string& where) {
    return chat_template(detail::chat_form_reader(text, begin_mark, end_mark).read(where));
  }

  //! A template for models without marks: each message is on a line of its own, after a label.
  static chat_template labelled(const std::string& user, const std::string& assistant) {
    detail::chat_form form;
    form.system.after = form.user.after = form.assistant.after = "\n";
    form.user.before = user + " ";
    form.assistant.before = assistant + " ";
    form.reply = assistant;
    form.is_plain = true;
    if (!user.empty()) form.end_of_turn = "\n" + user;
    return chat_template(std::move(form));
  }

  //! The text that ends an answer of the assistant: a special token or, in a template with labels, a text to stop at.
  const std::string& end_of_turn() const { return form_.end_of_turn; }

  //! The tokens of the prompt. With labels they begin with begin_of_text; templates of files write that themselves.
  //!
  //! Errors      those of prompt
  std::vector<token_id> tokens(const tokenizer& text, std::span<const chat_message> messages) const {
    std::vector<token_id> prompted = text.encode_pieces(prompt(messages));
    if (form_.is_plain && text.begin_of_text() >= 0) prompted.insert(prompted.begin(), text.begin_of_text());
    return prompted;
  }

  //! The prompt as pieces: the template's marks, which are trusted, and the messages, which are not.
  //!
  //! Errors      input_error for an unknown role, or an order of roles that the form does not have
  std::vector<prompt_piece> prompt(std::span<const chat_message> messages) const {
    check(messages);
    pieces made;
    made.trust(form_.begin);
    const bool has_system = !messages.empty() && messages.front().role == "system";
    const bool is_apart = form_.system_goes == place::own_turn;
    if (is_apart && !has_system && !(form_.default_system + form_.system_preamble).empty())
      made.trust(form_.system.before + form_.system_preamble + form_.default_system + form_.system.after);
    const std::size_t last_user = last_of(messages, "user");
    bool is_first_user = true;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::string_view content = messages[i].content;
      if (messages[i].role == "user") {
        const bool takes = has_system && ((form_.system_goes == place::first_user && is_first_user) ||
                                          (form_.system_goes == place::last_user && i == last_user));
        made.trust(form_.user.before);
        if (takes) {
          made.trust(form_.system.before);
          made.say(messages.front().content);
          made.trust(form_.system.after);
        }
        made.say(form_.user.trims ? trimmed(content) : content);
        made.trust(form_.user.after);
        is_first_user = false;
      } else if (messages[i].role == "assistant") {
        const std::string_view kept = form_.drops_thoughts ? after_thoughts(content) : content;
        made.trust(form_.assistant.before);
        made.say(form_.assistant.trims ? trimmed(kept) : kept);
        made.trust(form_.assistant.after);
      } else if (is_apart) {
        made.trust(form_.system.before + (i == 0 ? form_.system_preamble : ""));
        made.say(form_.system.trims ? trimmed(content) : content);
        made.trust(form_.system.after);
      }
    }
    made.trust(form_.reply);
    return std::move(made.list);
  }

 private:
  using place = detail::chat_form::system_place;

  struct pieces {
    void trust(const std::string& text) {
      if (!text.empty()) list.push_back({text, true});
    }
    void say(std::string_view text) {
      if (!text.empty()) list.push_back({std::string(text), false});
    }
    std::vector<prompt_piece> list;
  };

  explicit chat_template(detail::chat_form form) : form_(std::move(form)) {}

  void check(std::span<const chat_message> messages) const {
    std::size_t said = 0;  // messages of user and assistant so far
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::string& role = messages[i].role;
      if (role != "system" && role != "user" && role != "assistant")
        raise<input_error>("message ", i, " has the role \"", role, "\", but roles are system, user and assistant.");
      if (role == "system") {
        if (form_.system_goes == place::nowhere)
          raise<input_error>("message ", i, " is the system's, for which this model's chat template has no place.");
        if (i > 0 && form_.system_goes != place::own_turn)
          raise<input_error>("message ", i,
                             " is the system's, but with this model's chat template only the first may be.");
      } else if (form_.alternates && role != (said++ % 2 == 0 ? "user" : "assistant")) {
        raise<input_error>("message ", i, " is the ", role,
                           "'s, but with this model's chat template user and assistant "
                           "take turns, the user first.");
      }
    }
    if (form_.alternates && said % 2 == 0)
      raise<input_error>("the last message must be the user's with this model's chat template.");
  }

  static std::size_t last_of(std::span<const chat_message> messages, std::string_view role) {
    std::size_t last = messages.size();
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages[i].role == role) last = i;
    return last;
  }

  static std::string_view trimmed(std::string_view text) {
    constexpr std::string_view space = " \t\n\r\f\v";
    const std::size_t begin = text.find_first_not_of(space);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
  }

  static std::string_view after_thoughts(std::string_view text) {
    constexpr std::string_view end = "</think>";
    const std::size_t found = text.rfind(end);
    if (found == std::string_view::npos) return text;
    text.remove_prefix(found + end.size());
    text.remove_prefix((std::min)(text.find_first_not_of('\n'), text.size()));
    return text;
  }

  detail::chat_form form_;
};

}  // namespace espalier
