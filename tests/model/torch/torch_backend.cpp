// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/torch/torch_backend.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../llama/batch_writer.hpp"
#include "catch.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

// golden/llama/model.pt is what examples/torch_backend/export.py --attention eager makes of golden/llama.

using namespace espalier;

namespace {

const std::string folder = std::string(ESPALIER_TEST_DATA) + "/golden/llama";

torch_backend tiny(const torch_options& options = {}) {
  return torch_backend(torch_module::load(folder + "/model.pt"), options);
}

contiguous_kv cache_for(const torch_backend& backend, int capacity, int n_sequences = 1) {
  return {backend.module().shape().n_layers, backend.module().shape().row_size, n_sequences, capacity};
}

nlohmann::json golden() {
  return nlohmann::json::parse(std::ifstream(folder + "/golden.json"));
}

// Largest difference of rows first, first + 1, ... as a share of the largest expected number.
double relative_error(logits_view found, int first, const nlohmann::json& expected) {
  double difference = 0.0, largest = 0.0;
  for (std::size_t r = 0; r < expected.size(); ++r) {
    for (std::size_t i = 0; i < expected[r].size(); ++i) {
      const double number = expected[r][i].get<double>();
      const auto row = found.row(first + static_cast<int>(r));
      difference = std::max(difference, std::abs(static_cast<double>(row[i]) - number));
      largest = std::max(largest, std::abs(number));
    }
  }
  return difference / largest;
}

void read(torch_backend& backend, contiguous_kv& kv, int sequence, const std::vector<token_id>& tokens) {
  const int n = static_cast<int>(tokens.size());
  forward_batch batch;
  kv.append(sequence, n);
  batch.begin_sequence(sequence, 0, n);
  llama_driver::add_whole_chain(batch, tokens, 0);
  backend.forward(kv, batch.view());
  std::vector<std::int32_t> kept(tokens.size());
  for (std::size_t i = 0; i < kept.size(); ++i)
    kept[i] = static_cast<std::int32_t>(i);
  kv.commit(sequence, kept);
}

}  // namespace

TEST_CASE("a chain and a tree of two texts agree with transformers, in one batch") {
  const nlohmann::json expected = golden();
  const auto tokens = expected["tokens"].get<std::vector<token_id>>();
  const auto prefix = expected["tree"]["prefix"].get<std::vector<token_id>>();
  const llama_driver::tree tree{expected["tree"]["tokens"], expected["tree"]["parents"]};
  const int n_tokens = static_cast<int>(tokens.size()), n_nodes = static_cast<int>(tree.tokens.size());
  torch_backend backend = tiny();
  CHECK(backend.vocab_size() == 72);
  CHECK(backend.max_positions() == 64);
  contiguous_kv kv = cache_for(backend, 32, 2);
  read(backend, kv, 1, prefix);
  forward_batch batch;
  kv.append(0, n_tokens);
  batch.begin_sequence(0, 0, n_tokens);
  llama_driver::add_whole_chain(batch, tokens, 0);
  kv.append(1, n_nodes);
  batch.begin_sequence(1, kv.size(1), n_nodes);
  llama_driver::add_tree(batch, tree, kv.size(1));
  const logits_view logits = backend.forward(kv, batch.view());
  REQUIRE(logits.n_rows == n_tokens + n_nodes);
  CHECK(relative_error(logits, 0, expected["logits"]) < 1e-5);
  CHECK(relative_error(logits, n_tokens, expected["tree"]["logits"]) < 1e-5);
}

TEST_CASE("a tree that a module drafts layer by layer writes plain decoding's text in fewer rounds") {
  torch_backend target = tiny();
  contiguous_kv cache = cache_for(target, 64);
  const std::vector<token_id> prompt{1, 17, 5, 42};
  const stop_conditions stop{.max_tokens = 40};
  auto plainly = make_decoder(no_drafter(), plain(), greedy(), cache_for(target, 64), target);
  const auto expected = plainly.generate(prompt, stop);
  const std::vector<token_id> text(expected.begin(), expected.end());
  int rounds = 0;
  auto by_trees =
      make_decoder(autoregressive(tiny(), cache_for(target, 64)), dynatree({.budget = 16}), greedy(), cache, target);
  const auto written = by_trees.generate(prompt, stop, [&](const round_record&) { ++rounds; });
  CHECK(std::vector<token_id>(written.begin(), written.end()) == text);
  CHECK(rounds <= 20);
}

TEST_CASE("what does not fit a module of PyTorch is a sentence") {
  torch_backend backend = tiny({.max_rows = 4, .max_positions = 32});
  contiguous_kv kv = cache_for(backend, 32);
  const auto forward = [&](std::vector<token_id> tokens, contiguous_kv& cache) {
    forward_batch batch;
    cache.append(0, static_cast<int>(tokens.size()));
    batch.begin_sequence(0, 0, static_cast<int>(tokens.size()));
    llama_driver::add_whole_chain(batch, tokens, 0);
    backend.forward(cache, batch.view());
  };
  CHECK_THROWS_WITH(forward({1, 2, 3, 4, 5}, kv), Catch::Matchers::Contains("at most 4"));
  kv.truncate(0, 0);
  CHECK_THROWS_WITH(forward({1, 72}, kv), Catch::Matchers::Contains("token 72"));
  kv.truncate(0, 0);
  contiguous_kv other(3, 16, 1, 32);
  CHECK_THROWS_WITH(forward({1}, other), Catch::Matchers::Contains("3 layers of 16"));
  forward({1, 2, 3}, kv);
  CHECK_THROWS_WITH(tiny({.max_positions = 65}), Catch::Matchers::Contains("64 positions"));

  // The module itself fails, and the next pass works.
  torch_module module = torch_module::load(folder + "/model.pt");
  const at::Tensor none = at::empty({0}, at::kLong), keys = at::zeros({2, 8, 16});
  CHECK_THROWS_AS(module(none, none, none, at::empty({0, 0}, at::kFloat), none, keys, keys), torch_error);
  kv.truncate(0, 0);
  forward({1, 2, 3}, kv);
}

TEST_CASE("files that hold no module are refused by name") {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "espalier_no_module.pt";
  CHECK_THROWS_WITH(torch_module::load("no_such_file.pt"), Catch::Matchers::Contains("no_such_file.pt"));
  std::ofstream(path) << "no module";
  CHECK_THROWS_AS(torch_module::load(path.string()), model_error);
  std::ifstream whole(folder + "/model.pt", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  std::ofstream(path, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  CHECK_THROWS_WITH(torch_module::load(path.string()), Catch::Matchers::Contains(path.string()));
  const torch::jit::Module module = torch::jit::load(folder + "/model.pt");
  module.save(path.string());  // without its shape
  CHECK_THROWS_WITH(torch_module::load(path.string()), Catch::Matchers::Contains("does not say its vocab_size"));
  module.save(path.string(),
              {{"espalier.json", R"({"vocab_size": 4294967368, "n_layers": 2, "row_size": 16, "max_positions": 64})"}});
  CHECK_THROWS_WITH(torch_module::load(path.string()), Catch::Matchers::Contains("vocab_size is 4294967368"));
  module.save(path.string(),
              {{"espalier.json", R"({"vocab_size": 72, "n_layers": 2, "row_size": 16777217, "max_positions": 64})"}});
  CHECK_THROWS_WITH(torch_module::load(path.string()),
                    Catch::Matchers::Contains(path.string()) && Catch::Matchers::Contains("row_size is 16777217"));
  CHECK_THROWS_AS(torch_module(module, {.vocab_size = 72, .n_layers = 2, .row_size = 0, .max_positions = 64}, at::kCPU),
                  option_error);
  std::filesystem::remove(path);
}
