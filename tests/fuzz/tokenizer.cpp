// SPDX-License-Identifier: BSL-1.0
//
// Any bytes are a GGUF file, or a tokenizer.json, a zero byte and a text. Either is refused with a model_error, or
// gives a tokenizer whose tokens are in its range, whatever text it is given, or which refuses the text with an
// input_error. And any bytes are a chat template, or are refused as one with a model_error; a template that is run gives
// a prompt, or an input_error.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace {

using namespace espalier;

void check(const tokenizer& of, const std::vector<token_id>& tokens) {
  for (const token_id token : tokens)
    if (token < 0 || token >= of.size()) std::abort();
  (void)of.decode(tokens);
}

void use(const tokenizer& of, std::string_view text) {
  try {
    check(of, of.encode(text));
    check(of, of.encode_trusted(text));
    check(of, of.encode_pieces(std::vector<prompt_piece>{{"<s>", true}, {std::string(text), false}, {"</s>", true}}));
    check(of, of.encode_prompt("a b"));
  } catch (const input_error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (bytes.starts_with("GGUF")) {
      const gguf_file file(std::make_unique<std::istringstream>(bytes), "fuzz");
      use(tokenizer::from_gguf(file.metadata()), "The ab\xC3\xA9\xFF  12345 <s> \xE6\xBC\xA2\n\n");
    } else {
      const std::size_t end = (std::min)(bytes.find('\0'), size);
      use(tokenizer::from_json(std::string_view(bytes).substr(0, end), "fuzz"), std::string_view(bytes).substr(end));
    }
  } catch (const model_error&) {
  }
  try {
    const auto chat = chat_template::of(bytes, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "fuzz");
    chat_input input{.messages = {{{"role", "system"}, {"content", " Be kind. "}},
                                  {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a<b>\xC3\xA9"}}}}},
                                  {{"role", "assistant"},
                                   {"content", "<think>x</think>Hi"},
                                   {"tool_calls", {{{"name", "f"}, {"arguments", {{"x", 1.5}, {"y", nullptr}}}}}}}}};
    if (chat.reads("tools")) input.tools = {{{"name", "f"}, {"parameters", {{"type", "object"}}}}};
    (void)chat.prompt(input);
  } catch (const model_error&) {
  } catch (const input_error&) {
  }
  return 0;
}
