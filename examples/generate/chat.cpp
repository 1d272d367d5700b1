// SPDX-License-Identifier: BSL-1.0
#include "chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../models/price_table.hpp"
#include "chat_prompt.hpp"
#include "methods.hpp"
#include "pairings.hpp"
#include "terminal.hpp"
#include "text_stream.hpp"

namespace generate {

void chat(models::model_set& models, const arguments& asked, std::istream& in, std::ostream& out) {
  if (models.text.chat_template_text().empty())
    throw usage_error("--chat needs a model that was trained to chat: " + models.text.where() +
                      " has no chat template.");
  const espalier::chat_template form = chat_of(models.text);
  const pairing parts = pairings(asked).front();
  const bool colour = wants_colour();
  if (is_terminal()) {
    out << fmt::format("{} drafts, {} verifies. /new begins another chat, the end of the input (Ctrl-D) ends it.\n",
                       parts.method, parts.verifier);
    if (asked.price) out << asked.price->in_words() << "\n";
  }
  nlohmann::ordered_json messages = opening(asked);
  std::string line;
  while (out << (is_terminal() ? "\n> " : "") << std::flush && std::getline(in, line)) {
    if (line.empty()) continue;
    if (line == "/new") {
      messages = opening(asked);
      continue;
    }
    messages.push_back(chat_message("user", line));
    const std::vector<espalier::token_id> prompt = form.tokens(models.text, {.messages = messages});
    if (static_cast<int>(prompt.size()) >= models.context()) {
      messages.erase(messages.size() - 1);
      out << fmt::format(
          "With this the chat has {} tokens, but the model follows {}: say less, or begin another with "
          "/new.\n",
          prompt.size(), models.context() - 1);
      continue;
    }
    text_stream stream(out, colour);
    const auto show = [&](const espalier::round_record& r) { stream.push_round(r, models.text); };
    written_text answer = write(models, asked, parts.method, parts.verifier, prompt, show);
    stream.finish();
    const std::vector<espalier::token_id>& ends = models.text.ends_of_text();
    if (!answer.tokens.empty() && std::binary_search(ends.begin(), ends.end(), answer.tokens.back()))
      answer.tokens.pop_back();
    messages.push_back(chat_message("assistant", models.text.decode(answer.tokens)));
    out << "\n";
    if (is_terminal()) {
      const espalier::statistics& s = answer.statistics;
      out << fmt::format("[{} tokens, {:.1f} a second, {:.2f} a round]\n", s.tokens, s.throughput(),
                         s.tokens_per_round());
    }
  }
}

}  // namespace generate
