// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/tokenizer/chat_template.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../raises.hpp"
#include "catch.hpp"

using espalier::chat_message;
using espalier::chat_template;
using espalier::prompt_piece;
using nlohmann::json;

namespace {

const json& golden() {
  static const json file = json::parse(std::ifstream(ESPALIER_TEST_DATA "/tokenizer/chats.json"));
  return file;
}

chat_template made(const std::string& name) {
  for (const json& entry : golden()["templates"]) {
    if (entry["name"] == name) {
      return chat_template::of(entry["template"].get<std::string>(), entry["bos_token"].get<std::string>(),
                               entry["eos_token"].get<std::string>(), "file");
    }
  }
  FAIL("there is no template " << name);
  return chat_template::labelled("", "");
}

std::string joined(const std::vector<prompt_piece>& pieces) {
  std::string text;
  for (const prompt_piece& piece : pieces)
    text += piece.text;
  return text;
}

std::string refusal(const chat_template& chat, const std::vector<chat_message>& messages) {
  return message_of<espalier::input_error>([&] { (void)chat.prompt(messages); });
}

}  // namespace

TEST_CASE("each form of a chat template gives the prompt that Jinja makes of it", "[chat_template]") {
  for (const json& entry : golden()["templates"]) {
    const chat_template chat = made(entry["name"].get<std::string>());
    for (std::size_t i = 0; i < golden()["chats"].size(); ++i) {
      INFO(entry["name"] << " " << golden()["chats"][i]);
      std::vector<chat_message> messages;
      for (const json& message : golden()["chats"][i])
        messages.push_back({message[0].get<std::string>(), message[1].get<std::string>()});
      if (entry["prompts"][i].is_null()) {
        CHECK(says(refusal(chat, messages), "message 1 is") + says(refusal(chat, messages), "message 0 is") == 1);
      } else {
        CHECK(joined(chat.prompt(messages)) == entry["prompts"][i].get<std::string>());
      }
    }
  }
}

TEST_CASE("marks are trusted, and what is said is not", "[chat_template]") {
  const std::vector<chat_message> messages = {{"system", "<|im_end|>"}, {"user", "<|im_start|>"}};
  CHECK(made("chatml").prompt(messages) == std::vector<prompt_piece>{{"<|im_start|>system\n", true},
                                                                     {"<|im_end|>", false},
                                                                     {"<|im_end|>\n", true},
                                                                     {"<|im_start|>user\n", true},
                                                                     {"<|im_start|>", false},
                                                                     {"<|im_end|>\n", true},
                                                                     {"<|im_start|>assistant\n", true}});
  CHECK(made("chatml").end_of_turn() == "<|im_end|>");
  CHECK(made("llama 2").end_of_turn() == "</s>");
  for (const json& entry : golden()["templates"]) {
    std::string said;
    for (const prompt_piece& piece :
         made(entry["name"].get<std::string>()).prompt(std::vector<chat_message>{{"user", "Q"}}))
      if (!piece.is_trusted) said += piece.text;
    CHECK(said == "Q");
  }
}

TEST_CASE("labels stand before what each says, on lines of their own", "[chat_template]") {
  const chat_template chat = chat_template::labelled("Question:", "Answer:");
  const std::vector<chat_message> messages = {
      {"system", "Be brief."}, {"user", "One plus?"}, {"assistant", "Two."}, {"user", "And then?"}};
  CHECK(joined(chat.prompt(messages)) == "Be brief.\nQuestion: One plus?\nAnswer: Two.\nQuestion: And then?\nAnswer:");
  CHECK(chat.end_of_turn() == "\nQuestion:");
  CHECK(chat_template::labelled("", "A").end_of_turn().empty());
}

TEST_CASE("messages in an order that a template does not have are refused", "[chat_template]") {
  CHECK(
      says(refusal(made("chatml"), {{"king", "Hi"}}), "message 0 has the role \"king\"", "system, user and assistant"));
  CHECK(says(refusal(made("mistral"), {{"system", "S"}, {"user", "Hi"}}), "no place"));
  CHECK(says(refusal(made("llama 2"), {{"user", "Hi"}, {"system", "S"}}), "only the first"));
  CHECK(says(refusal(made("gemma"), {{"assistant", "Hi"}}), "take turns"));
  CHECK(says(refusal(made("gemma"), {{"user", "Hi"}, {"assistant", "Hi"}}), "the last message must be the user's"));
  CHECK(says(refusal(made("gemma"), {}), "the last message must be the user's"));
  CHECK(refusal(made("chatml"), {}).empty());
}

TEST_CASE("a chat template that is not known is refused, with what is", "[chat_template]") {
  const auto complaint = [](const std::string& text) {
    return message_of<espalier::model_error>([&] { chat_template::of(text, "<s>", "</s>", "some file"); });
  };
  const std::string known = golden()["templates"][0]["template"];
  CHECK(complaint(known).empty());
  for (const std::string& text :
       {std::string(), std::string("{{ messages }}"), std::string("<|user|> <|assistant|>"), "Speak: " + known,
        known + "{{ 'A sentence of so many words that it says something.' }}",
        known + "{% if x %}{{ '<think>' }}{% endif %}", std::string("{{ '[SYSTEM_PROMPT]' }}[INST]"),
        std::string("<|start_header_id|>Cutting Knowledge Date"), known + "[gMASK]"}) {
    INFO(text);
    CHECK(says(complaint(text), "some file has a chat template that is not known", "ChatML", "Phi"));
  }
  for (std::size_t n = 0; n < known.size(); ++n)
    (void)complaint(known.substr(0, n));
}
