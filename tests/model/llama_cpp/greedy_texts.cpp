// SPDX-License-Identifier: BSL-1.0
// Greedy texts of a real model beside plain decoding through the same backend: where they part, two tokens are nearly
// as good.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

TEST_CASE("llama_cpp_backend: texts of a model in words, by look-up and by trees", "[texts]") {
  const std::string file = ESPALIER_TEST_GGUF;
  if (file.empty()) {
    WARN("ESPALIER_GGUF names no model: nothing was written.");
    return;
  }
  const llama_cpp_model model(file, {.threads = 1});
  llama_cpp_backend target(model);
  REQUIRE(model.piece(model.tokens("tree", false).at(0)) == "tree");
  REQUIRE(!model.end_tokens().empty());
  const stop_conditions stop{.max_tokens = 32, .tokens = model.end_tokens()};
  int n_texts = 0, n_different = 0;
  for (const char* words : {"The history of the printing press begins", "A list of the planets: Mercury, Venus,",
                            "def fibonacci(n):\n", "One two three one two three one two"}) {
    const std::vector<token_id> prompt = model.tokens(words);
    const auto write = [&](auto&& drafter, auto policy) {
      auto decode = make_decoder(drafter, policy, greedy(), llama_cpp_kv(model), target);
      const std::span<const token_id> text = decode.generate(prompt, stop);
      return std::vector<token_id>(text.begin(), text.end());
    };
    const std::vector<token_id> expected = write(no_drafter(), plain());
    REQUIRE(!expected.empty());
    autoregressive same(llama_cpp_backend{model}, llama_cpp_kv{model});
    for (const std::vector<token_id>& text :
         {write(prompt_lookup(), chain({.length = 6})), write(same, fixed({.depth = 3, .breadth = 2, .budget = 12}))}) {
      ++n_texts;
      const auto [here, there] = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end());
      if (here == text.end() && there == expected.end()) continue;
      ++n_different;
      REQUIRE(here != text.end());
      REQUIRE(there != expected.end());
      std::vector<token_id> before = prompt;
      before.insert(before.end(), text.begin(), here);
      llama_cpp_kv kv(model);
      forward_batch batch;
      kv.append(0, static_cast<std::int32_t>(before.size()));
      batch.begin_sequence(0, 0, static_cast<std::int32_t>(before.size()));
      batch.add_chain(before, 0, 1);
      const auto row = kv.pass(batch.view()).row(0);
      const float gap = std::abs(row[static_cast<std::size_t>(*here)] - row[static_cast<std::size_t>(*there)]);
      INFO("the gap of the two logits is " << gap);
      REQUIRE(gap < 1.0F);
    }
  }
  WARN(n_different << " of " << n_texts << " texts differ from plain decoding's.");
}
