// SPDX-License-Identifier: BSL-1.0
// Hidden states of a module of PyTorch, and a draft head that reads them. golden/heads/target/model.pt is what
// examples/torch_backend/export.py --attention eager --hidden-layers 2,1,3 makes of golden/heads/target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "../llama/batch_writer.hpp"
#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/draft_head_model.hpp"
#include "espalier/model/llama/draft_target.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/torch/torch_backend.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::string heads = std::string(ESPALIER_TEST_DATA) + "/golden/heads";

contiguous_kv cache_for(const torch_backend& backend, int n_sequences) {
  return {backend.module().shape().n_layers, backend.module().shape().row_size, n_sequences, 64};
}

}  // namespace

TEST_CASE("the hidden states of a module of PyTorch are those of llama_backend for the same model") {
  torch_backend module(torch_module::load(heads + "/target/model.pt"));
  llama_backend own = llama_backend::load(heads + "/target", {.threads = 1});
  const std::vector<int> layers{1, 2, 3};
  module.keep_hidden(layers);
  own.keep_hidden(layers);
  forward_batch batch;
  contiguous_kv cache = cache_for(module, 2), rows = cache_for(module, 2);
  for (int text = 0; text < 2; ++text) {  // two texts of one batch, of 3 and 4 rows
    cache.append(text, 3 + text), rows.append(text, 3 + text);
    batch.begin_sequence(text, 0, 3 + text);
    std::vector<token_id> tokens{5 + text, 17, 80, 3};
    tokens.resize(static_cast<std::size_t>(3 + text));
    llama_driver::add_whole_chain(batch, tokens, 0);
  }
  module.forward(cache, batch.view());
  own.forward(rows, batch.view());
  for (const int layer : layers) {
    for (int row = 0; row < batch.n_rows(); ++row) {
      const std::span<const float> found = module.hidden(layer, row), expected = own.hidden(layer, row);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        CHECK(std::abs(found[i] - expected[i]) < 1e-4F);
    }
  }
  CHECK(says(message_of<input_error>([&] { (void)module.hidden(1, batch.n_rows()); }), "and no row"));
  CHECK(says(message_of<option_error>([&] {
               module.keep_hidden(std::vector<int>{1, 4});
             }),
             "after layer 4", "--hidden-layers"));
}

TEST_CASE("texts that a module of PyTorch writes with trees over a head are those that it writes alone") {
  torch_backend target(torch_module::load(heads + "/target/model.pt"));
  draft_head_model head = draft_head_model::load(heads + "/plain", draft_target(heads + "/target", target, 1));
  const auto write = [&](auto&& drafter, auto policy) {
    auto decode = make_decoder(drafter, policy, greedy(), cache_for(target, 1), target);
    const auto text = decode.generate(std::vector<token_id>{5, 17, 80, 3}, {.max_tokens = 40});
    return std::vector<token_id>(text.begin(), text.end());
  };
  const std::vector<token_id> plainly = write(no_drafter(), plain());
  REQUIRE(plainly.size() == 40);
  CHECK(write(feature_steps(head), chain({.length = 4})) == plainly);
  CHECK(write(feature_steps(head), best_first({.budget = 12})) == plainly);
}
