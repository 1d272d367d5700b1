// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "program.cuh"
#include "prompts_file.hpp"

namespace bench {

//! The tokens that a decoder has written after a prompt, with its rounds and its time.
struct written_text {
  std::vector<espalier::token_id> tokens;
  int rounds = 0;
  double seconds = 0;
};

//! A function that writes a text of at most max_tokens tokens after a prompt.
using text_writer = std::function<written_text(const std::vector<espalier::token_id>& prompt, int max_tokens)>;

//! The text_writer of a decoder.
template <class DecoderT>
text_writer writing_with(std::shared_ptr<DecoderT> decode) {
  return [decode](const std::vector<espalier::token_id>& prompt, int max_tokens) {
    written_text out;
    const auto start = std::chrono::steady_clock::now();
    decode->begin(prompt, {.max_tokens = max_tokens});
    while (decode->step())
      ++out.rounds;
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto tokens = decode->current().written();
    out.tokens.assign(tokens.begin(), tokens.end());
    return out;
  };
}

//! The arguments of a program that writes texts: the models beside the target, and the prompts.
struct text_arguments {
  std::string draft{}, block{}, prompts = ESPALIER_BENCH_PROMPTS;

  void add_to(program& to) {
    to.add("--draft", draft, "a smaller model, where the models' folder has none");
    to.add("--block", block, "a block draft, likewise");
    to.add("--prompts", prompts, "prompts, one a line as JSON with a list \"tokens\"");
  }

  //! The prompts as tokens of the target.
  //!
  //! Errors      input_error for a prompt without tokens, or with one outside the vocabulary
  std::vector<std::vector<espalier::token_id>> read_prompts(int vocab_size) const {
    std::vector<std::vector<espalier::token_id>> found;
    for (const models::prompt& p : models::read_prompts(prompts)) {
      const bool are_known =
          std::all_of(p.tokens.begin(), p.tokens.end(), [=](espalier::token_id t) { return t < vocab_size; });
      if (p.tokens.empty() || !are_known) {
        espalier::raise<espalier::input_error>(prompts, ", line ", p.line,
                                               " must have a list \"tokens\" of the model's vocabulary, below ",
                                               vocab_size, ".");
      }
      found.push_back(p.tokens);
    }
    return found;
  }
};

}  // namespace bench
