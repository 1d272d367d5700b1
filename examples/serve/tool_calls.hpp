// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace serve {

//! The form in which a model writes calls of functions. A call is a JSON object with the name and the arguments, alone
//! or in a list, between two texts; or the name stands before the object of the arguments, with a text in between.
struct call_form {
  std::string begin{};                      //!< text before a call, or before a list of calls
  std::string end{};                        //!< text after it
  bool is_list = false;                     //!< true if calls stand in a JSON array
  bool names_before = false;                //!< true if the name stands before the object of the arguments
  std::string middle{};                     //!< text between such a name and the object
  std::string name_key = "name";            //!< member of a call's object
  std::string arguments_key = "arguments";  //!< member of a call's object
  bool arguments_as_text = false;           //!< true if the template takes the arguments of earlier calls as text
  bool content_as_text = false;             //!< true if the template takes no null as content of a message with calls
  //! special tokens in `begin`, `middle` and `end`, and their texts
  std::vector<std::pair<espalier::token_id, std::string>> marks{};

  //! The form in which a chat template writes calls, read from what it writes for a conversation with one; none if it
  //! writes calls in a form that this struct cannot hold. For a template that does not read tools it is a JSON object
  //! with "name" and "arguments" and nothing else.
  static std::optional<call_form> of(const espalier::chat_template& chat, const espalier::tokenizer& tokenizer);

  //! The form of the call of `name` with the arguments `arguments` in `text`, a reply of the assistant that consists of
  //! this call; none if it has another form. `end_of_turn` is the text that ends the reply.
  static std::optional<call_form> in(std::string_view text, std::string_view name,
                                     const nlohmann::ordered_json& arguments, std::string_view end_of_turn);
};

//! A function that a model may call.
struct tool {
  std::string name;
  nlohmann::ordered_json parameters;  //!< JSON schema of the arguments
};

//! The functions that a request offers, and how they may be called.
struct tool_use {
  call_form form;
  std::vector<tool> tools;  //!< functions that may be called
  bool must_call = false;   //!< true if the whole text is a call, after form.begin, which is part of the prompt
  bool one_name = false;    //!< true if the request names the function
  bool parallel = true;     //!< true if more than one call may be made

  //! The JSON schema of a text that must be a call. Pre: one tool, if the name stands before the arguments
  std::string schema() const;
  //! Text at the end of the prompt of a text that must be a call.
  std::string opening() const;
};

//! A call that a model has written.
struct tool_call {
  std::string name;
  std::string arguments;  //!< text of a JSON object, as the model wrote it
};

//! Parts calls of functions from a text that is given piece by piece. Text that only looks like a call is content.
//!
//! Law         the parts are the same however the text was cut into pieces, except that content may come in more pieces
class call_reader {
 public:
  struct parts {
    std::string content{};
    std::vector<tool_call> calls{};
  };

  explicit call_reader(const tool_use& use);

  //! Reads a further piece of the text.
  parts push(std::string_view text);
  //! Ends the text: what may have become a call is content.
  parts finish();

 private:
  enum class state { content, call, after_call };

  // Text before the call that is being read; the opening of a text that must be a call is part of the prompt.
  std::string_view opened() const { return use_.must_call ? std::string_view() : begin_; }
  void read_content(parts& found, bool is_end);
  bool read_call(parts& found);
  std::optional<std::size_t> read_name(std::string_view text, std::string& name, bool& is_cut) const;
  bool take(std::string_view value, std::vector<tool_call>& calls) const;
  bool take_object(std::string_view object, std::vector<tool_call>& calls) const;
  const tool* find(std::string_view name) const;

  const tool_use& use_;
  std::string_view begin_, end_;  // texts of the form, without white space at their ends
  state state_ = state::content;
  std::string waiting_;       // text that has not been told
  bool at_start_ = true;      // no content so far but white space
  bool drops_space_ = false;  // after a call white space is no content
  int n_calls_ = 0;
};

//! Puts the special tokens of calls back into a text, where they stand in it.
class marked_text {
 public:
  marked_text(const call_form& form, const espalier::tokenizer& tokenizer) : form_(form), tokenizer_(tokenizer) {}

  //! The next bytes of the text, with the marks before, within and after them. `bytes` are those that may be shown,
  //! `tokens` those that were written, whose bytes may be held back.
  std::string push(std::string_view bytes, std::span<const espalier::token_id> tokens);

 private:
  const call_form& form_;
  const espalier::tokenizer& tokenizer_;
  std::size_t shown_ = 0, written_ = 0;                           // bytes
  std::deque<std::pair<std::size_t, const std::string*>> marks_;  // marks to come, with their positions
};

}  // namespace serve
