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
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace espalier {

namespace detail {

// The texts before and after a message of one role.
struct chat_turn {
  std::string before, after;
  bool trims = false;  // removes white space at both ends of the message
};

// The form in which messages become a prompt.
struct chat_form {
  // The place of the system's message: a turn of its own, or in the first or the last of the user's.
  enum class system_place { own_turn, first_user, last_user, nowhere };

  std::string begin{};  // text at the beginning of the prompt
  chat_turn system{}, user{}, assistant{};
  std::string reply{};            // text after which the assistant answers
  std::string end_of_turn{};      // text that ends the answer
  std::string default_system{};   // the system's message if none is given
  std::string system_preamble{};  // text before the system's message; with it there is always a turn of the system
  system_place system_goes = system_place::own_turn;
  bool is_plain = false;        // it has no special tokens: begin_of_text goes before the prompt, as before any text
  bool alternates = false;      // user and assistant must take turns, the user first and last
  bool drops_thoughts = false;  // removes the part of the assistant's messages up to </think>
};

// The parts of a Jinja template that are read here.
struct template_text {
  struct literal {
    std::string text;
    bool is_complaint;  // true for the argument of raise_exception
    std::size_t at;     // position in the template
  };
  std::vector<literal> literals;  // literals of expressions and statements, in order
  std::string outside;            // text outside of expressions and statements

  explicit template_text(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::string_view opened = text.substr(at, 2);
      if (opened == "{#") {
        at = (std::min)(text.find("#}", at), text.size() - 2) + 1;
      } else if (opened == "{{" || opened == "{%") {
        at = read_code(text, at + 2, opened == "{{" ? "}}" : "%}") + 1;
      } else {
        outside += text[at];
      }
    }
  }

 private:
  // Reads code up to its closing mark, and returns the position of that mark.
  std::size_t read_code(std::string_view text, std::size_t at, std::string_view closed) {
    for (; at < text.size() && text.substr(at, 2) != closed; ++at) {
      const char quote = text[at];
      if (quote != '\'' && quote != '"') continue;
      constexpr std::string_view complaint = "raise_exception(";
      const bool is_complaint = text.substr(0, at).ends_with(complaint);
      literal found{{}, is_complaint, at};
      for (++at; at < text.size() && text[at] != quote; ++at) {
        if (text[at] != '\\' || at + 1 == text.size()) {
          found.text += text[at];
        } else {
          const char c = text[++at];
          found.text += c == 'n' ? '\n' : (c == 't' ? '\t' : (c == 'r' ? '\r' : c));
        }
      }
      literals.push_back(std::move(found));
    }
    return at;
  }
};

// Recognises the form of a chat template by the marks that it writes, and reads from its literals the texts in which
// templates of one form differ. The template is not run: parts beyond its form, such as tools, are left out.
class chat_form_reader {
 public:
  // Makes a reader of a template. begin and end are the values of its variables bos_token and eos_token.
  chat_form_reader(std::string_view text, std::string_view begin, std::string_view end)
      : text_(text), begin_(begin), end_(end), parsed_(text) {}

  // The form of the template.
  //
  // Errors      model_error that says which forms are known
  chat_form read(const std::string& where) {
    for (const std::string_view other : {"[SYSTEM_PROMPT]", "[gMASK]", "keep_past_thinking"})
      if (has(other)) refuse(where);
    if (has("<|im_start|>")) {
      chatml();
    } else if (has("<|start_header_id|>")) {
      if (!llama3()) refuse(where);
    } else if (has("<start_of_turn>")) {
      gemma();
    } else if (has("<<SYS>>")) {
      llama2();
    } else if (has("[INST]")) {
      mistral();
    } else if (has("<|user|>") && has("<|assistant|>") && (has("<|end|>") || has("eos_token"))) {
      zephyr();
    } else {
      refuse(where);
    }
    form_.drops_thoughts = has("split('</think>')") || has("split(\"</think>\")");
    if (!read_reply() || has_other_text()) refuse(where);
    return form_;
  }

 private:
  [[noreturn]] static void refuse(const std::string& where) {
    raise<model_error>(where,
                       " has a chat template that is not known; known are ChatML, Llama 2, Llama 3, Gemma, "
                       "Mistral, Zephyr and Phi, by their marks <|im_start|>, <<SYS>>, <|start_header_id|>, "
                       "<start_of_turn>, [INST] and <|user|>.");
  }

  bool has(std::string_view what) const { return text_.find(what) != std::string_view::npos; }
  int count(std::string_view what) const {
    int n = 0;
    for (std::size_t at = text_.find(what); at != std::string_view::npos; at = text_.find(what, at + what.size()))
      ++n;
    return n;
  }
  bool trims() const { return has("trim") || has(".strip()"); }
  std::string begin_if_written() const { return has("bos_token") ? std::string(begin_) : std::string(); }

  // The first literal that contains a mark, or the mark itself if none does.
  std::string literal_with(std::string_view mark) const {
    for (const auto& literal : parsed_.literals)
      if (literal.text.find(mark) != std::string::npos) return literal.text;
    return std::string(mark);
  }

  void chatml() {
    const bool is_phi = has("<|im_sep|>");
    const std::string after_role = is_phi ? "<|im_sep|>" : "\n", after = is_phi ? "<|im_end|>" : "<|im_end|>\n";
    form_.begin = begin_if_written();
    for (const auto& [turn, role] :
         {std::pair{&form_.system, "system"}, {&form_.user, "user"}, {&form_.assistant, "assistant"}})
      *turn = {std::string("<|im_start|>") + role + after_role, after};
    form_.reply = form_.assistant.before;
    form_.end_of_turn = "<|im_end|>";
    // A whole turn of the system in one literal is the default message.
    for (const auto& [literal, is_complaint, at] : parsed_.literals) {
      const std::size_t end = literal.find("<|im_end|>");
      const std::size_t begin = form_.system.before.size();
      if (literal.compare(0, begin, form_.system.before) == 0 && end != std::string::npos && end > begin)
        form_.default_system = literal.substr(begin, end - begin);
    }
  }

  bool llama3() {
    form_.begin = std::string(begin_);
    for (const auto& [turn, role] :
         {std::pair{&form_.system, "system"}, {&form_.user, "user"}, {&form_.assistant, "assistant"}})
      *turn = {std::string("<|start_header_id|>") + role + "<|end_header_id|>\n\n", "<|eot_id|>"};
    form_.reply = form_.assistant.before;
    form_.end_of_turn = "<|eot_id|>";
    form_.system.trims = form_.user.trims = form_.assistant.trims = trims();
    if (!has("Cutting Knowledge Date")) return true;
    form_.system_preamble = literal_with("Cutting Knowledge Date");
    // The date is the template's, so that a chat gives the same prompt every day.
    for (const auto& [literal, is_complaint, at] : parsed_.literals) {
      const bool is_date =
          literal.size() == 11 && literal[2] == ' ' && literal[6] == ' ' && literal.find('%') == std::string::npos;
      if (!is_date) continue;
      form_.system_preamble += "Today Date: " + literal + "\n\n";
      return true;
    }
    return false;
  }

  void gemma() {
    form_.begin = begin_if_written();
    form_.user = {"<start_of_turn>user\n", "<end_of_turn>\n", trims()};
    form_.assistant = {"<start_of_turn>model\n", "<end_of_turn>\n", trims()};
    form_.reply = form_.assistant.before;
    form_.end_of_turn = "<end_of_turn>";
    form_.alternates = true;
    const bool refuses = has("System role not supported");
    form_.system_goes = refuses ? chat_form::system_place::nowhere : chat_form::system_place::first_user;
    form_.system.after = "\n\n";
  }

  void llama2() {
    form_.system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
    form_.user = {std::string(begin_) + "[INST] ", " [/INST]", trims()};
    form_.assistant = {" ", " " + std::string(end_), trims()};
    form_.end_of_turn = std::string(end_);
    form_.alternates = true;
    form_.system_goes = chat_form::system_place::first_user;
  }

  void mistral() {
    form_.begin = std::string(begin_);
    form_.user = {literal_with("[INST]"), literal_with("[/INST]")};
    const bool spaced =
        has("' ' + message") || has("\" \" + message") || has("' ' ~ message") || has("\" \" ~ message");
    const bool parts_turns = has("eos_token + ' '") || has("eos_token + \" \"");
    form_.assistant = {spaced ? " " : "", std::string(end_) + (parts_turns ? " " : ""), trims()};
    form_.end_of_turn = std::string(end_);
    form_.alternates = true;
    const bool in_last = has("loop.last and system_message");
    form_.system_goes = !has("system_message") ? chat_form::system_place::nowhere
                        : in_last              ? chat_form::system_place::last_user
                                               : chat_form::system_place::first_user;
    form_.system.after = "\n\n";
  }

  void zephyr() {
    form_.begin = begin_if_written();
    form_.end_of_turn = has("<|end|>") ? "<|end|>" : std::string(end_);
    const std::string after = form_.end_of_turn + "\n";
    // In some models only the assistant's messages are ended by a token: Tulu, OLMo 2, Falcon 3.
    const bool ends_all = has("<|end|>") || count("eos_token") >= 3;
    form_.system = {"<|system|>\n", ends_all ? after : "\n"};
    form_.user = {"<|user|>\n", ends_all ? after : "\n"};
    form_.assistant = {"<|assistant|>\n", after};
    form_.reply = form_.assistant.before;
    if (!has("system")) form_.system_goes = chat_form::system_place::nowhere;
  }

  // Reads the text after which the assistant answers. Templates of models that always think begin the thoughts there.
  // Returns false if a template does so only in some cases.
  bool read_reply() {
    const std::size_t asks = text_.rfind("add_generation_prompt");
    if (asks == std::string_view::npos || text_.find("<think>", asks) == std::string_view::npos) return true;
    // If thoughts are only added, empty, for callers who turn thinking off, they are not part of the reply.
    const std::string_view tail = text_.substr(asks);
    const auto tail_has = [&](std::string_view what) { return tail.find(what) != std::string_view::npos; };
    if (tail_has("enable_thinking is false") && !tail_has("else")) return true;
    std::vector<std::string> written;
    for (const auto& literal : parsed_.literals)
      if (literal.at > asks) written.push_back(literal.text);
    if (written.size() != 1 || written.front().compare(0, form_.reply.size(), form_.reply) != 0) return false;
    form_.reply = written.front();
    return true;
  }

  // True if the template writes sentences that its form does not have: text beside marks and roles, or a literal of at
  // least six words that neither is known nor speaks of tools.
  bool has_other_text() const {
    std::string rest;
    for (std::size_t at = 0; at < parsed_.outside.size(); ++at) {
      const char c = parsed_.outside[at];
      const std::size_t end =
          c == '<' ? parsed_.outside.find('>', at) : (c == '[' ? parsed_.outside.find(']', at) : at);
      if (c != '<' && c != '[') rest += c;
      if (end != std::string::npos) at = end;
    }
    for (const std::string_view role : {"system", "user", "assistant", "model"})
      if (const std::size_t at = rest.find(role); at != std::string::npos) rest.erase(at, role.size());
    if (std::any_of(rest.begin(), rest.end(), [](char c) { return static_cast<unsigned char>(c) > ' '; })) return true;
    bool speaks_of_tools = false;  // whether this literal or the one before does
    for (const auto& literal : parsed_.literals) {
      const auto names = [&](std::string_view word) { return literal.text.find(word) != std::string::npos; };
      const bool names_tools = names("tool") || names("function") || names("Function");
      const bool is_known = literal.is_complaint || names_tools || speaks_of_tools ||
                            (!form_.default_system.empty() && names(form_.default_system));
      if (!is_known && std::count(literal.text.begin(), literal.text.end(), ' ') >= 5) return true;
      speaks_of_tools = names_tools;
    }
    return false;
  }

  std::string_view text_, begin_, end_;
  template_text parsed_;
  chat_form form_;
};

}  // namespace detail

//! One message of a chat.
struct chat_message {
  std::string role;  //!< system, user or assistant
  std::string content;
};

//! Turns the messages of a chat into the prompt after which the assistant answers, in the form that a model was trained
//! to read.
//!
//! Model files bring a template in the language Jinja. It is not run: its form is recognised by the marks that it
//! writes, and must be one of ChatML, Llama 2, Llama 3, Gemma, Mistral, Zephyr and Phi. So marks and messages are told
//! apart, and messages are never trusted: if marks are special tokens, no message can contain one. Llama 2, the first
//! Mistral, some models like Zephyr, and templates with labels have marks of plain text, which a user can write, too.
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

  //! The template whose source is `text`. begin_mark and end_mark are the values of its variables bos_token and
  //! eos_token; `where` names it in messages.
  //!
  //! Errors      model_error if its form is unknown
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

  //! The text that ends an answer of the assistant: a special token or, in a template with labels, a text to stop at,
  //! which is empty if the user's label is.
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
