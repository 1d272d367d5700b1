// SPDX-License-Identifier: BSL-1.0
//
// Renders chats: reads a JSON object a line, with a template, its variables and a chat, and writes a line for each: the
// prompt as a JSON string, or an object with the error. compare.py compares them with jinja2's.

#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "espalier/core/error.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"

int main() {
  using nlohmann::ordered_json;
  std::string source;
  std::optional<espalier::chat_template> read;  // that of the line before, if its template was the same
  for (std::string line; std::getline(std::cin, line);) {
    const ordered_json asked = ordered_json::parse(line);
    ordered_json answer;
    try {
      if (!read || source != asked["template"]) {
        source = asked["template"].get<std::string>();
        read.reset();
        read = espalier::chat_template::of(source, asked["special"], "file");
      }
      const espalier::chat_template& chat = *read;
      espalier::chat_input input{.messages = asked["messages"], .tools = asked["tools"]};
      input.end = asked["add_generation_prompt"] ? espalier::chat_end::reply : espalier::chat_end::complete;
      input.now = asked["now"].get<std::time_t>();
      // Only variables that the template reads: others would be refused, and change nothing in jinja2.
      for (const auto& [name, value] : asked["variables"].items())
        if (chat.reads(name)) input.variables[name] = value;
      if (!chat.reads("tools")) input.tools = nullptr;
      std::string text;
      for (const espalier::prompt_piece& piece : chat.prompt(input))
        text += piece.text;
      answer = text;
    } catch (const espalier::model_error& error) {
      answer = {{"refused", error.what()}};
    } catch (const espalier::input_error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', true, ordered_json::error_handler_t::replace) << "\n";
  }
}
