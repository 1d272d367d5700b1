// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/parallel_head_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "raises.hpp"

// The references were computed in float64 by speculators' own class from the very weights in the folders.

namespace {

using namespace espalier;

static_assert(SharedDrafter<block_diffusion<parallel_head_model>>);
static_assert(BlockDrafter<block_diffusion<parallel_head_model>> &&
              !ConditionedBlockDrafter<block_diffusion<parallel_head_model>>);

const std::string heads = std::string(ESPALIER_TEST_DATA) + "/golden/heads/";

nlohmann::json golden_of(const std::string& name) {
  std::ifstream file(heads + name + "/golden.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

void pass_text(llama_backend& target, const std::vector<token_id>& text) {
  contiguous_kv kv(target.config().n_layers, target.config().kv_size(), 1, 32);
  forward_batch batch;
  batch.begin_sequence(0, 0, static_cast<std::int32_t>(text.size()));
  batch.add_chain(text, 0, 1);
  kv.append(0, static_cast<std::int32_t>(text.size()));
  target.forward(kv, batch.view());
}

std::vector<std::int32_t> numbers_from(int first, int n) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

std::vector<float> block_of(parallel_head_model& model, parallel_head_context& context, std::span<const token_id> text,
                            int length, int place = 0) {
  const parallel_head_request request{&context, text, place};
  model.forward(std::span(&request, 1), length);
  const vocab_rows<float> rows = model.logits(place, length);
  return {rows.data, rows.at(rows.n_rows)};
}

}  // namespace

TEST_CASE("a P-EAGLE head has the rows of speculators' own class, and drafts its tokens") {
  for (const char* name : {"peagle", "peagle_each"}) {
    CHECK(draft_kind_of(heads + name) == draft_kind::peagle);
    const nlohmann::json cases = golden_of(name);
    const auto text = cases["text"].get<std::vector<token_id>>();
    for (const int threads : {1, 3}) {
      llama_backend target = llama_backend::load(heads + "target", {.threads = threads});
      auto model = parallel_head_model::load(heads + name, target);
      CHECK(model.block_length() == 4);
      CHECK(std::vector<token_id>(model.tokens().begin(), model.tokens().end()) ==
            cases["tokens"].get<std::vector<token_id>>());
      pass_text(target, text);
      for (const nlohmann::json& block : cases["blocks"]) {
        const int at = block["pending_at"];
        INFO(name << ", " << threads << " threads, pending at " << at);
        auto context = model.make_context();
        model.read(context, target, numbers_from(0, at), 0);
        const auto rows = block_of(model, context, std::span(text).first(static_cast<std::size_t>(at) + 1), 4);
        const auto expected = block["logits"].get<std::vector<std::vector<double>>>();
        const std::size_t columns = expected[0].size();
        REQUIRE(rows.size() == 4 * columns);
        double difference = 0;
        for (std::size_t r = 0; r < 4; ++r) {
          const std::span<const float> row = std::span(rows).subspan(r * columns, columns);
          for (std::size_t v = 0; v < columns; ++v)
            difference = std::max(difference, std::abs(row[v] - expected[r][v]));
          CHECK(std::max_element(row.begin(), row.end()) - row.begin() ==
                std::max_element(expected[r].begin(), expected[r].end()) - expected[r].begin());
        }
        CHECK(difference < 1e-4);
      }
    }
  }
}

TEST_CASE("a P-EAGLE block depends on the text alone: not on earlier texts, on other texts, or on how it was read") {
  llama_backend target = llama_backend::load(heads + "target", {.threads = 2});
  auto model = parallel_head_model::load(heads + "peagle", target);
  const auto text = golden_of("peagle")["text"].get<std::vector<token_id>>();
  std::vector<token_id> other = text;
  other[4] = 50;
  const auto expected_of = [&](const std::vector<token_id>& whole, std::size_t n, int length) {
    auto context = model.make_context();
    pass_text(target, whole);
    model.read(context, target, numbers_from(0, static_cast<int>(n) - 1), 0);
    return block_of(model, context, std::span(whole).first(n), length);
  };
  const auto expected = expected_of(text, 9, 4), of_other = expected_of(other, 9, 4);
  const auto shorter = expected_of(text, 9, 2);
  CHECK(expected != of_other);
  // A row sees no later row.
  CHECK(std::equal(shorter.begin(), shorter.end(), expected.begin()));
  auto context = model.make_context();
  CHECK(block_of(model, context, std::span(text).first(1), 4) == expected_of(text, 1, 4));
  pass_text(target, text);
  for (int position = 0; position < 8; ++position) {
    model.read(context, target, numbers_from(position, 1), position);
    block_of(model, context, std::span(text).first(static_cast<std::size_t>(position) + 2), 4);
  }
  CHECK(block_of(model, context, std::span(text).first(9), 4) == expected);
  // Another text with the same first tokens.
  pass_text(target, other);
  model.read(context, target, numbers_from(4, 4), 4);
  CHECK(block_of(model, context, std::span(other).first(9), 4) == of_other);
  // The text before it again, one pass for two texts, with a place left out.
  auto second = model.make_context();
  model.read(second, target, numbers_from(0, 8), 0);
  pass_text(target, text);
  model.read(context, target, numbers_from(4, 4), 4);
  const std::vector<parallel_head_request> requests{{&second, std::span(other).first(9), 2},
                                                    {&context, std::span(text).first(9), 0}};
  model.forward(requests, 4);
  const auto rows_at = [&](int place) {
    const vocab_rows<float> rows = model.logits(place, 4);
    return std::vector<float>(rows.data, rows.at(4));
  };
  CHECK(rows_at(0) == expected);
  CHECK(rows_at(2) == of_other);
  // A failed pass leaves no row behind that was not computed.
  std::vector<token_id> wrong(text.begin(), text.begin() + 8);
  wrong.push_back(96);
  CHECK(says(message_of<input_error>([&] { block_of(model, context, wrong, 4); }), "token 96", "ends at 95"));
  CHECK(block_of(model, context, std::span(text).first(9), 4) == expected);
}

TEST_CASE("a P-EAGLE block allocates nothing once a pass had as many rows") {
  llama_backend target = llama_backend::load(heads + "target", {.threads = 1});
  auto model = parallel_head_model::load(heads + "peagle", target);
  const auto text = golden_of("peagle")["text"].get<std::vector<token_id>>();
  auto context = model.make_context(), first = model.make_context();
  pass_text(target, text);
  const std::vector<std::int32_t> rows = numbers_from(0, 11);
  for (auto* each : {&first, &context}) {
    const allocation_count count;
    model.read(*each, target, rows, 0);
    const parallel_head_request request{each, text};
    model.forward(std::span(&request, 1), 4);
    const std::int64_t allocations = count.so_far();
    if (each == &context) CHECK(allocations == 0);
  }
}

TEST_CASE("a P-EAGLE head that does not fit is refused by name") {
  llama_backend target = llama_backend::load(heads + "target", {.threads = 1});
  const auto load = [&](const std::string& path) {
    return message_of<model_error>([&] { parallel_head_model::load(path, target); });
  };
  CHECK(says(load(heads + "plain"), "plain/config.json is of no P-EAGLE head", "draft_head_model"));
  CHECK(says(message_of<model_error>([&] { draft_head_model::load(heads + "peagle", target); }),
             "peagle/config.json is of a P-EAGLE head", "parallel_head_model"));
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "espalier_peagle";
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    std::filesystem::create_directories(folder);
    nlohmann::json config = nlohmann::json::parse(std::ifstream(heads + "peagle/config.json"));
    config[nlohmann::json::json_pointer(pointer)] = value;
    std::ofstream(folder / "config.json") << config;
    std::filesystem::copy_file(heads + "peagle/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    const std::string message = load(folder.string());
    std::filesystem::remove_all(folder);
    return message;
  };
  CHECK(with("/mask_token_id", 95).empty());
  CHECK(says(with("/mask_token_id", 96), "\"mask_token_id\" is 96", "95"));
  CHECK(says(with("/mask_token_id", nullptr), "lacks \"mask_token_id\""));
  CHECK(says(with("/speculators_model_type", "eagle3"), "is of no P-EAGLE head"));
  CHECK(says(with("/transformer_layer_config/vocab_size", 100), "\"vocab_size\" is 100", "heads/target", "96"));
  CHECK(says(with("/transformer_layer_config/max_position_embeddings", 3), "\"max_position_embeddings\" is 3", "4"));
  CHECK(says(with("/eagle_aux_hidden_state_layer_ids", {1, 4}), "\"fc.weight\"", "[32, 96]", "[32, 64]"));
  CHECK(says(with("/speculators_config/proposal_methods/0/speculative_tokens", 0), "\"speculative_tokens\" is 0"));
}
