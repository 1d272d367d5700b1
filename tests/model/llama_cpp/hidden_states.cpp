// SPDX-License-Identifier: BSL-1.0
// Hidden states of a model that llama.cpp runs, and a draft head and a block that read them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/block_draft_model.hpp"
#include "espalier/model/llama/draft_head_model.hpp"
#include "espalier/model/llama/draft_target.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model/llama_cpp/tiny_gguf.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// The shape of the target of the head in eagle3.gguf.
std::string tiny_target(const std::string& name, const tiny_gguf& shape = {.vocab = 96, .layers = 7, .width = 32}) {
  const std::string file = std::string(ESPALIER_TEST_WORK) + "/" + name + ".gguf";
  shape.write(file);
  return file;
}

// A pass over a text of 5 tokens and a tree of three branches, the second of which is not asked for logits.
template <class BackendT, class KVStoreT>
void pass_tree(BackendT& target, KVStoreT& kv) {
  forward_batch batch;
  batch.begin_sequence(0, 0, 8);
  kv.append(0, 8);
  batch.add_chain(std::vector<token_id>{5, 17, 80, 3, 41}, 0, 1);
  for (int branch = 0; branch < 3; ++branch)
    batch.add_row(60 + branch, 5, 5 + branch, branch != 1).include_first(5);
  target.forward(kv, batch.view());
}

}  // namespace

TEST_CASE("llama.cpp's hidden states are those of llama_backend for the same file") {
  const std::string file = tiny_target("states");
  const llama_cpp_model model(file, {.threads = 1});
  llama_cpp_backend engine(model);
  llama_cpp_kv cache(model);
  llama_backend own = llama_backend::load(file, {.threads = 1});
  contiguous_kv rows(own.config().n_layers, own.config().kv_size(), 1, 32);
  for (const std::vector<int>& layers : {std::vector<int>{3}, std::vector<int>{3, 0, 4}}) {  // the second asks for more
    engine.keep_hidden(layers);
    own.keep_hidden(layers);
    cache.truncate(0, 0), rows.truncate(0, 0);
    pass_tree(engine, cache);
    pass_tree(own, rows);
    for (const int layer : layers) {
      for (int row = 0; row < 8; ++row) {
        const std::span<const float> found = engine.hidden(layer, row), expected = own.hidden(layer, row);
        REQUIRE(found.size() == expected.size());
        float difference = 0, size = 0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          difference = (std::max)(difference, std::abs(found[i] - expected[i]));
          size = (std::max)(size, std::abs(expected[i]));
        }
        INFO("layer " << layer << ", row " << row);
        CHECK(difference < 0.01F * size);  // the cache of llama.cpp has 16 bits
      }
    }
  }
  CHECK(engine.hidden_layers() == std::vector<int>{3, 0, 4});
  CHECK(says(message_of<option_error>([&] { (void)engine.hidden(1, 0); }), "after layer 1 are not kept"));
  CHECK(says(message_of<input_error>([&] { (void)engine.hidden(3, 8); }), "no row 8"));
}

TEST_CASE("texts that llama.cpp's model writes with trees over a head and a block are those that it writes alone") {
  const std::string file = tiny_target("head_target");
  const llama_cpp_model model(file, {.threads = 1});
  llama_cpp_backend engine(model);
  draft_head_model head = draft_head_model::load(std::string(ESPALIER_TEST_DATA) + "/golden/head_gguf/eagle3.gguf",
                                                 draft_target(file, engine, 1));
  CHECK(engine.hidden_layers() == std::vector<int>{1, 2, 3});
  llama_backend own = llama_backend::load(file, {.threads = 1});
  const std::vector<token_id> prompt{5, 17, 80, 3};
  int drafted = 0;
  const auto write = [&](auto&& drafter, auto policy, auto& target, auto&& cache) {
    auto decode = make_decoder(drafter, policy, greedy(), cache, target);
    decode.begin(prompt, {.max_tokens = 40});
    while (decode.step())
      drafted += static_cast<int>(decode.last_round().tree.n_nodes) - 1;
    const auto text = decode.current().tokens();
    return std::vector<token_id>(text.begin(), text.end());
  };
  const auto plainly = write(no_drafter(), plain(), engine, llama_cpp_kv(model));
  REQUIRE(plainly.size() == 44);
  CHECK(write(feature_steps(head), chain({.length = 4}), engine, llama_cpp_kv(model)) == plainly);
  CHECK(write(feature_steps(head), best_first({.budget = 12}), engine, llama_cpp_kv(model)) == plainly);
  block_draft_model block = block_draft_model::load(std::string(ESPALIER_TEST_DATA) + "/golden/head_gguf/dflash.gguf",
                                                    draft_target(file, engine, 1));
  CHECK(write(block_diffusion(block), best_first({.budget = 12}), engine, llama_cpp_kv(model)) == plainly);
  CHECK(drafted > 0);
}

TEST_CASE("states that llama.cpp does not give are refused by name") {
  const llama_cpp_model model(tiny_target("refused"), {.threads = 1});
  llama_cpp_backend engine(model);
  for (const int layer : {-1, 6, 7}) {
    CHECK(says(message_of<option_error>([&] { engine.keep_hidden(std::vector<int>{layer}); }),
               "after the layers 0 to 5", "layer " + std::to_string(layer)));
  }
  const llama_cpp_model gemma(tiny_target("gemma", {.architecture = "gemma2"}), {.threads = 1});
  llama_cpp_backend other(gemma);
  CHECK(says(message_of<option_error>([&] { other.keep_hidden(std::vector<int>{0}); }), "architecture gemma2"));
  CHECK(says(message_of<option_error>([&] { draft_target(tiny_target("other", {.vocab = 64}), engine); }),
             "has 96 tokens", "has 64: it is another model"));
}
