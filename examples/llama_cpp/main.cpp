// SPDX-License-Identifier: BSL-1.0
// Writes a text with models that llama.cpp runs: llama_cpp MODEL.gguf PROMPT [DRAFT.gguf [HOST:PORT...]]
// With a draft, trees; without one, prompt look-up. The model's layers lie on the servers, if there are any.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

namespace {

template <class DecoderT>
void write(DecoderT&& decode, const llama_cpp_model& model, const std::string& prompt) {
  decode.begin(model.tokens(prompt), {.max_tokens = 128, .tokens = model.end_tokens()});
  while (decode.step()) {
    for (const token_id t : decode.last_round().committed)
      std::fputs(model.piece(t).c_str(), stdout);
    std::fflush(stdout);
  }
  std::puts("");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  if (given.size() < 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf PROMPT [DRAFT.gguf [HOST:PORT...]]\n", argv[0]);
    return 2;
  }
  try {
    llama_cpp_options options;
    if (given.size() > 3) options.servers.assign(given.begin() + 3, given.end());
    const llama_cpp_model model(given[0], options);
    llama_cpp_kv cache(model, {.capacity = 4096});
    if (given.size() > 2) {
      const llama_cpp_model small(given[2]);
      autoregressive drafter(llama_cpp_backend(small), llama_cpp_kv(small, {.capacity = 4096}));
      write(make_decoder(drafter, dynatree({.budget = 32}), greedy(), cache, llama_cpp_backend(model)), model,
            given[1]);
    } else {
      write(make_decoder(prompt_lookup(), chain(), greedy(), cache, llama_cpp_backend(model)), model, given[1]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
