// SPDX-License-Identifier: BSL-1.0
// Writes prompts as tokens of a model, for machines without the libraries of tokenizers: the first ones of each domain,
// one a line, as measure_decoding reads them. prompts.jsonl and smollm2_prompts.jsonl beside this file are from here:
//
//     prompt_tokens --model examples/models --prompts examples/models/prompts.jsonl
//     prompt_tokens --model SmolLM2-135M-Instruct.Q4_1.gguf --prompts examples/models/smollm2/prompts.jsonl --most 2
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../program.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/tokenizer/chat_template.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "prompts_file.hpp"

namespace {

using namespace espalier;

tokenizer tokenizer_of(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return tokenizer::load(path);
  return tokenizer::from_gguf(gguf_file(path).metadata());
}

// The message of a user for a model that chats, the beginning of a text for any other model.
std::vector<token_id> tokens_of(const tokenizer& of, const std::string& text, bool without_thinking) {
  if (of.chat_template_text().empty()) return of.encode_prompt(text);
  const nlohmann::ordered_json said{{"role", "user"}, {"content", text}};
  chat_input input{.messages = nlohmann::ordered_json::array({said})};
  if (without_thinking) input.variables = {{"enable_thinking", false}};
  return chat_template::of(of).tokens(of, input);
}

}  // namespace

int main(int argc, char** argv) {
  std::string model, prompts;
  int most = 4;
  bool without_thinking = false;
  bench::program program("prompt_tokens", "Prompts as tokens, one a line on stdout.");
  program.add("--model", model, "a GGUF file, or a folder with a tokenizer");
  program.add("--prompts", prompts, "one a line as JSON with \"text\" and \"domain\"");
  program.add("--most", most, "of each domain");
  program.add("--without-thinking", without_thinking, "chat templates get enable_thinking as false");
  return program.run(argc, argv, [&] {
    const tokenizer of = tokenizer_of(model);
    std::map<std::string, int> count;
    for (const models::prompt& p : models::read_prompts(prompts)) {
      if (++count[p.domain] > most) continue;
      const nlohmann::ordered_json line{
          {"domain", p.domain}, {"tokens", p.tokens.empty() ? tokens_of(of, p.text, without_thinking) : p.tokens}};
      std::printf("%s\n", line.dump().c_str());
    }
    return 0;
  });
}
