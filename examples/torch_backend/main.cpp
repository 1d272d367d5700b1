// SPDX-License-Identifier: BSL-1.0
// Continues the tokens that it reads, with a model of PyTorch: torch_backend TARGET.pt [DRAFT.pt] < tokens
// With a draft, trees; without one, prompt look-up. export.py writes such files from models of Hugging Face, and
// text.py makes tokens of text.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <utility>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/torch/torch_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

namespace {

contiguous_kv cache_for(const torch_backend& backend) {
  const torch_shape& shape = backend.module().shape();
  return {shape.n_layers, shape.row_size, 1, std::min(2048, backend.max_positions())};
}

template <class DecoderT>
void write(DecoderT&& decode, const std::vector<token_id>& prompt) {
  const auto start = std::chrono::steady_clock::now();
  int tokens = 0, rounds = 0;
  decode.begin(prompt, {.max_tokens = 128});
  while (decode.step()) {
    for (const token_id t : decode.last_round().committed)
      std::printf("%d ", t), ++tokens;
    std::fflush(stdout);
    ++rounds;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "\n%d tokens in %d rounds, %.1f s\n", tokens, rounds, seconds.count());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s TARGET.pt [DRAFT.pt] < tokens\n", argv[0]);
    return 2;
  }
  try {
    const std::vector<token_id> prompt(std::istream_iterator<token_id>(std::cin), {});
    if (!std::cin.eof())
      espalier::raise<espalier::input_error>("the prompt has something that is no token after ", prompt.size(),
                                             " tokens.");
    torch_backend target(torch_module::load(argv[1]));
    contiguous_kv cache = cache_for(target);
    if (argc == 3) {
      torch_backend draft(torch_module::load(argv[2]));
      contiguous_kv draft_cache = cache_for(draft);
      write(make_decoder(autoregressive(std::move(draft), std::move(draft_cache)), dynatree({.budget = 16}), greedy(),
                         cache, target),
            prompt);
    } else {
      write(make_decoder(prompt_lookup(), chain(), greedy(), cache, target), prompt);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
