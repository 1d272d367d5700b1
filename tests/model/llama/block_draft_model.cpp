// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/block_draft_model.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "model/llama/llama_driver.hpp"
#include "raises.hpp"

// The references were computed in float64 by examples/models/block.py (tests/data/golden/make_block_golden.py), and for
// DFlash by its own classes (make_head_golden.py).

using namespace espalier;
using llama_driver::row_type;

namespace {

vocab_rows<float> forward_one(block_draft_model& model, block_draft_context& context, token_id pending, int position,
                              int length) {
  static std::vector<token_id> text(64, -5);  // of which only the last token is read
  text[static_cast<std::size_t>(position)] = pending;
  const block_draft_request request{&context, std::span(text).first(static_cast<std::size_t>(position) + 1)};
  model.forward(std::span(&request, 1), length);
  return model.logits(0, length);
}

const std::string golden = std::string(ESPALIER_TEST_DATA) + "/golden/";

llama_backend load_target(int threads = 1, int max_positions = 0) {
  return llama_backend::load(golden + "llama_tied", {.threads = threads, .max_positions = max_positions});
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

nlohmann::json reference() {
  return nlohmann::json::parse(contents(golden + "block/golden.json"));
}

// The target's pass over a text, whose hidden states stay readable.
void pass_over(llama_backend& target, const std::vector<token_id>& text) {
  recurrent_kv kv = llama_driver::cache_for(target, 64);
  forward_batch batch;
  const auto n = static_cast<int>(text.size());
  kv.append(0, n);
  batch.begin_sequence(0, 0, n);
  llama_driver::add_whole_chain(batch, text, 0);
  target.forward(kv, batch.view());
}

std::vector<std::int32_t> numbers_from(int first, int n) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

// The rows of the block whose pending token stands at `position` of the text, its states read in parts of `at_once`.
std::vector<row_type> block_of(llama_backend& target, block_draft_model& model, const std::vector<token_id>& text,
                               int position, int length, int at_once = 64) {
  auto context = model.make_context();
  pass_over(target, text);
  for (int first = 0; first < position; first += at_once)
    model.read(context, target, numbers_from(first, std::min(at_once, position - first)), first);
  return llama_driver::rows_of(forward_one(model, context, text[static_cast<std::size_t>(position)], position, length));
}

// Checks the corrected rows of the blocks in a folder against those of golden blocks, in which null is minus infinity,
// and that the paths that are called greedy are.
void check_paths(const std::string& folder, const nlohmann::json& cases, const nlohmann::json& blocks) {
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto config = block_draft_config::load(folder);
  const auto tokens = cases.value("tokens", std::vector<token_id>());
  for (const int threads : {1, 3}) {
    llama_backend target = llama_backend::load(golden + "heads/target", {.threads = threads});
    auto model = block_draft_model::load(folder, target);
    const int length = model.block_length();
    CHECK(std::vector<token_id>(model.tokens().begin(), model.tokens().end()) == tokens);
    auto other = model.make_context();
    for (const nlohmann::json& block : blocks) {
      const int at = block["pending_at"];
      const auto path = block.value("path", std::vector<token_id>(static_cast<std::size_t>(length), 3));
      const nlohmann::json& expected = block["logits"];
      INFO(folder << ", " << threads << " threads, pending at " << at << ", path " << nlohmann::json(path).dump());
      auto context = model.make_context();
      pass_over(target, text);
      model.read(context, target, numbers_from(0, at), 0);
      const auto before = std::span(text).first(static_cast<std::size_t>(at) + 1);
      const std::vector<token_id> three{3};
      const std::vector<block_draft_request> requests{{&other, three, 0}, {&context, before, 2}};
      model.forward(requests, length);
      tree<> along(8);
      along.reset(before.back());
      along.append(root_node, 50, 0);  // a node beside the path, which must change nothing
      node_id node = root_node;
      double difference = 0;
      REQUIRE(expected.size() == static_cast<std::size_t>(length));
      for (int depth = 0; depth < length; ++depth) {
        const auto place = static_cast<std::size_t>(depth);
        const std::span<const float> plain = model.logits(2, length).row(depth);
        std::vector<float> row(plain.begin(), plain.end());
        model.correct(2, along, node, row);
        REQUIRE(row.size() == expected[place].size());
        for (std::size_t v = 0; v < row.size(); ++v) {
          REQUIRE(std::isfinite(row[v]) != expected[place][v].is_null());
          if (!expected[place][v].is_null())
            difference = std::max(difference, std::abs(row[v] - expected[place][v].get<double>()));
        }
        const auto best = static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
        if (block.value("is_greedy", false))
          CHECK((tokens.empty() ? static_cast<token_id>(best) : tokens[best]) == path[place]);
        node = along.append(node, path[place], 0);
      }
      CHECK(difference < 1e-4);
    }
  }
}

// A folder with another config.json or model.safetensors, and what loading it says.
std::string refusal(const std::string& config, const std::string& weights) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "espalier_block_draft";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json", std::ios::binary) << config;
  std::ofstream(folder / "model.safetensors", std::ios::binary) << weights;
  llama_backend target = load_target();
  const std::string message = message_of<model_error>([&] { block_draft_model::load(folder.string(), target); });
  std::filesystem::remove_all(folder);
  return message;
}

}  // namespace

TEST_CASE("the logits of a block agree with the reference, at every length and place") {
  const nlohmann::json cases = reference();
  const auto text = cases["tokens"].get<std::vector<token_id>>();
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  CHECK(model.vocab_size() == 72);
  CHECK(model.block_length() == 7);
  CHECK(model.max_positions() == 64);
  CHECK(model.weight_bytes() > 28000U);
  REQUIRE(cases["blocks"].size() == 5);
  for (const nlohmann::json& block : cases["blocks"]) {
    const auto expected = block["logits"].get<std::vector<std::vector<double>>>();
    const auto rows = block_of(target, model, text, block["pending_at"].get<int>(), static_cast<int>(expected.size()));
    double difference = 0.0, largest = 0.0;
    REQUIRE(rows.size() == expected.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      REQUIRE(rows[r].size() == expected[r].size());
      for (std::size_t v = 0; v < rows[r].size(); ++v) {
        REQUIRE(std::isfinite(rows[r][v]));
        difference = std::max(difference, std::abs(static_cast<double>(rows[r][v]) - expected[r][v]));
        largest = std::max(largest, std::abs(expected[r][v]));
      }
    }
    INFO("pending at " << block["pending_at"] << ", " << rows.size() << " rows");
    CHECK(difference / largest < 1e-5);
  }
}

TEST_CASE("a DFlash block's logits and greedy drafts are those of its own code, in both layouts") {
  const nlohmann::json cases = nlohmann::json::parse(contents(golden + "heads/dflash/golden.json"));
  const auto text = cases["text"].get<std::vector<token_id>>();
  for (const char* name : {"dflash", "dflash_speculators"}) {
    const std::string folder = golden + "heads/" + name;
    const block_draft_config config = block_draft_config::load(folder);
    CHECK(config.hidden_layers == std::vector<int>{1, 3, 5});
    CHECK(config.mask_token == 94);
    CHECK(draft_kind_of(folder) == draft_kind::block);
    for (const int threads : {1, 3}) {
      llama_backend target = llama_backend::load(golden + "heads/target", {.threads = threads});
      auto model = block_draft_model::load(folder, target);
      CHECK(model.block_length() == 4);
      CHECK(model.vocab_size() == 96);
      for (const nlohmann::json& block : cases["blocks"]) {
        const int at = block["pending_at"];
        const auto expected = block["logits"].get<std::vector<std::vector<double>>>();
        const auto rows = block_of(target, model, text, at, 4);
        REQUIRE(rows.size() == expected.size());
        double difference = 0;
        for (std::size_t r = 0; r < rows.size(); ++r) {
          REQUIRE(rows[r].size() == expected[r].size());
          for (std::size_t v = 0; v < rows[r].size(); ++v)
            difference = std::max(difference, std::abs(static_cast<double>(rows[r][v]) - expected[r][v]));
          CHECK(std::max_element(rows[r].begin(), rows[r].end()) - rows[r].begin() ==
                std::max_element(expected[r].begin(), expected[r].end()) - expected[r].begin());
        }
        INFO(name << ", " << threads << " threads, pending at " << at);
        CHECK(difference < 1e-4);
        CHECK(block_of(target, model, text, at, 4, 1) == rows);
      }
    }
  }
}

TEST_CASE("a block has the rows of speculators' own class along every path, and drafts its tokens") {
  static_assert(ConditionedBlockDrafter<block_diffusion<block_draft_model>>);
  for (const char* name :
       {"dspark", "dspark_gated", "dspark_rnn", "dspark_few", "dflash_few", "dflash2", "xpress", "xpress_few"}) {
    const nlohmann::json golden_of = nlohmann::json::parse(contents(golden + "heads/" + name + "/golden.json"));
    check_paths(golden + "heads/" + name, golden_of, golden_of["blocks"]);
  }
  CHECK(block_draft_config::load(golden + "heads/dspark_gated").block_length == 3);
  CHECK(block_draft_config::load(golden + "heads/dspark_rnn").markov == block_draft_config::markov_kind::rnn);
  CHECK(block_draft_config::load(golden + "heads/dflash_few").head_size == 64);
  CHECK(block_draft_config::load(golden + "heads/dflash2").selector_candidates == 5);
  const block_draft_config xpress = block_draft_config::load(golden + "heads/xpress");
  CHECK(xpress.refiner_rank == 6);
  CHECK(xpress.refiner_inner == 12);
  CHECK(xpress.block_length == 3);
  CHECK(block_draft_config::load(golden + "heads/xpress_few").refiner_inner == 32);
  for (const char* name : {"dspark", "dflash_few", "dflash2", "dflash2_zlab", "xpress"})
    CHECK(draft_kind_of(golden + "heads/" + name) == draft_kind::block);
}

TEST_CASE("causal blocks, windows, scaled angles and logits give the rows of z-lab's and speculators' own classes") {
  int variants = 0;
  for (const char* name : {"dflash", "dflash_few", "dflash2", "xpress", "xpress_few"}) {
    const std::string folder = golden + "heads/" + name;
    const nlohmann::json golden_of = nlohmann::json::parse(contents(folder + "/golden.json"));
    for (const nlohmann::json& variant : nlohmann::json::parse(contents(folder + "/variants.json"))) {
      INFO(name << " with " << variant["config"].dump());
      nlohmann::json config = nlohmann::json::parse(contents(folder + "/config.json"));
      config.merge_patch(variant["config"]);
      const std::filesystem::path other = std::filesystem::temp_directory_path() / "espalier_block_variant";
      std::filesystem::create_directories(other);
      std::ofstream(other / "config.json") << config;
      std::filesystem::copy_file(folder + "/model.safetensors", other / "model.safetensors",
                                 std::filesystem::copy_options::overwrite_existing);
      check_paths(other.string(), golden_of, variant["blocks"]);
      std::filesystem::remove_all(other);
      ++variants;
    }
  }
  CHECK(variants == 12);
}

TEST_CASE("a DFlash2 block of z-lab's layout drafts the paths of its own class") {
  const std::string folder = golden + "heads/dflash2_zlab";
  const nlohmann::json cases = nlohmann::json::parse(contents(folder + "/golden.json"));
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto config = block_draft_config::load(folder);
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  auto model = block_draft_model::load(folder, target);
  for (const nlohmann::json& block : cases["blocks"]) {
    const int at = block["pending_at"];
    block_of(target, model, text, at, 3);
    tree<> along(4);
    along.reset(text[static_cast<std::size_t>(at)]);
    std::vector<token_id> path;
    for (node_id node = root_node; path.size() < 3; node = along.append(node, path.back(), 0)) {
      const std::span<const float> plain = model.logits(0, 3).row(static_cast<std::int32_t>(path.size()));
      std::vector<float> row(plain.begin(), plain.end());
      model.correct(0, along, node, row);
      path.push_back(static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    CHECK(path == block["path"].get<std::vector<token_id>>());
  }
}

TEST_CASE("blocks that llama.cpp's converter has written as GGUF files have the rows of their folders") {
  for (const auto& [file, name] :
       {std::pair{"dflash", "dflash"}, std::pair{"dspark", "dspark_few"}, std::pair{"dflash2", "dflash2"}}) {
    const std::string path = golden + "head_gguf/" + file + ".gguf", folder = golden + "heads/" + name;
    CHECK(draft_kind_of(path) == draft_kind::block);
    const nlohmann::json golden_of = nlohmann::json::parse(contents(folder + "/golden.json"));
    check_paths(path, golden_of, golden_of["blocks"]);
    const auto in_file = block_draft_config::load(path), in_folder = block_draft_config::load(folder);
    CHECK(in_file.is_gguf());
    CHECK(in_file.hidden_layers == in_folder.hidden_layers);
    CHECK(in_file.block_length == in_folder.block_length);
    // Equal weights give equal numbers, bit for bit.
    const auto text = golden_of["text"].get<std::vector<token_id>>();
    llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
    auto of_file = block_draft_model::load(path, target), of_folder = block_draft_model::load(folder, target);
    CHECK(block_of(target, of_file, text, 5, 3) == block_of(target, of_folder, text, 5, 3));
  }
  const nlohmann::json dflash = nlohmann::json::parse(contents(golden + "heads/dflash/golden.json"));
  const nlohmann::json variants = nlohmann::json::parse(contents(golden + "heads/dflash/variants.json"));
  check_paths(golden + "head_gguf/dflash_causal.gguf", dflash, variants[0]["blocks"]);
  check_paths(golden + "head_gguf/dflash_windows.gguf", dflash, variants[2]["blocks"]);
  check_paths(golden + "head_gguf/dflash_scaled.gguf", dflash, variants[3]["blocks"]);
  // A number of the metadata lies behind its key and the four bytes that say its kind.
  std::string unscaled = contents(golden + "head_gguf/dflash_scaled.gguf");
  for (const std::string key : {"dflash.logit_scale", "dflash.embedding_scale"}) {
    const std::size_t at = unscaled.find(key);
    REQUIRE(at != std::string::npos);
    unscaled.replace(at + key.size() + 4, 4, std::string(4, '\0'));
  }
  gguf_file zeros(std::make_unique<std::istringstream>(unscaled), "zeros");
  CHECK(block_draft_config::parse(zeros).output_scale == 1.0F);
  CHECK(block_draft_config::parse(zeros).embedding_scale == 1.0F);
  CHECK(block_draft_config::load(golden + "head_gguf/dflash_scaled.gguf").output_scale == 0.7F);
  const std::string path = golden + "head_gguf/dflash.gguf";
  llama_backend few = llama_backend::load(golden + "llama_tied", {.threads = 1});
  CHECK(says(message_of<model_error>([&] { block_draft_model::load(path, few); }),
             "dflash.gguf: \"target_layers\" is 6", "llama_tied has 2 layers"));
  CHECK(says(message_of<model_error>([&] { block_draft_config::load(golden + "head_gguf/eagle3.gguf"); }),
             "\"general.architecture\" is \"eagle3\", but must be dflash"));
}

TEST_CASE("trees over a block with a reduced vocabulary draft its tokens alone, whoever asks") {
  const std::string folder = golden + "heads/dspark_few";
  const nlohmann::json cases = nlohmann::json::parse(contents(folder + "/golden.json"));
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto tokens = cases["tokens"].get<std::vector<token_id>>();
  const auto config = block_draft_config::load(folder);
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  auto model = block_draft_model::load(folder, target);
  CHECK(std::vector<token_id>(model.tokens().begin(), model.tokens().end()) == tokens);
  pass_over(target, text);
  block_diffusion blocks(model);
  blocks.reserve(4);
  blocks.begin(text);
  blocks.read(target, numbers_from(0, static_cast<int>(text.size()) - 1));
  tree<> root(4);
  root.reset(text.back());
  const auto answer = ask(blocks, root, std::vector<node_id>{root_node}, 4);
  CHECK(answer.logits.vocab == 40);
  CHECK(answer.token_of(7) == tokens[7]);
  factorised drafter(blocks);
  drafter.reserve(4);
  drafter.propose(root, std::vector<node_id>{root_node});
  const std::span<const float> row = drafter.rows().row(root_node);
  REQUIRE(row.size() == 96);
  for (token_id t = 0; t < 96; ++t)
    CHECK((row[static_cast<std::size_t>(t)] > 0) == (std::find(tokens.begin(), tokens.end(), t) != tokens.end()));
}

TEST_CASE("a greedy chain over a block that corrects drafts the tokens of speculators' own class, with no allocation") {
  const std::string folder = golden + "heads/" + GENERATE("dspark_rnn", "xpress", "xpress_few");
  INFO(folder);
  const nlohmann::json cases = nlohmann::json::parse(contents(folder + "/golden.json"));
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto config = block_draft_config::load(folder);
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  factorised drafter(block_diffusion(block_draft_model::load(folder, target)));
  drafter.reserve(8);
  const nlohmann::json& last = cases["blocks"].at(cases["blocks"].size() - 2);
  REQUIRE(last["is_greedy"].get<bool>());
  REQUIRE(last["pending_at"] == text.size() - 1);
  pass_over(target, text);
  drafter.begin(text);
  drafter.read(target, numbers_from(0, static_cast<int>(text.size()) - 1));
  tree<> chain(8);
  chain.reset(text.back());
  std::vector<token_id> drafted;
  node_id node = root_node;
  const allocation_count count;
  std::int64_t allocations = 0;
  for (int depth = 0; depth < config.block_length; ++depth) {
    drafter.propose(chain, std::span(&node, 1));
    const std::span<const float> row = drafter.rows().row(node);
    allocations = count.so_far();
    node = chain.append(node, static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin()), 0);
    if (depth == 0) CHECK(allocations == 0);
    drafted.push_back(chain.view().token[node]);
  }
  CHECK(drafted == last["path"].get<std::vector<token_id>>());
  // A token that the vocabulary does not have, on the path.
  tree<> wrong(8);
  wrong.reset(text.back());
  const node_id outside = wrong.append(root_node, 96, 0);
  auto model = block_draft_model::load(folder, target);
  std::vector<float> row(96);
  CHECK(says(message_of<input_error>([&] { model.correct(0, wrong, outside, row); }), "token 96", "ends at 95"));
}

TEST_CASE("a row of an XPress block depends on the node's path alone, in whatever order nodes are asked about") {
  const std::string folder = golden + "heads/" + GENERATE("xpress", "xpress_few");
  INFO(folder);
  const nlohmann::json cases = nlohmann::json::parse(contents(folder + "/golden.json"));
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto at = static_cast<int>(text.size()) - 1;
  // Two paths that share their first token, another one, and nodes below the last row.
  tree<> t(16);
  t.reset(text.back());
  const node_id a = t.append(root_node, 7, 0), b = t.append(root_node, 90, 0), aa = t.append(a, 33, 0),
                ab = t.append(a, 51, 0), ba = t.append(b, 33, 0), aaa = t.append(aa, 12, 0), aba = t.append(ab, 12, 0),
                deep = t.append(aaa, 4, 0), deeper = t.append(deep, 5, 0), a_last = t.append(a, 12, 0),
                aa_last = t.append(aa, 4, 0);
  std::vector<std::vector<row_type>> found;
  for (const int threads : {1, 3}) {
    llama_backend target = llama_backend::load(golden + "heads/target", {.threads = threads});
    auto model = block_draft_model::load(folder, target);
    const int length = model.block_length();
    const auto row_of = [&](node_id node) {
      row_type row(static_cast<std::size_t>(model.config().columns()));
      model.correct(0, t, node, row);
      return row;
    };
    std::vector<row_type> alone;
    auto context = model.make_context();
    pass_over(target, text);
    model.read(context, target, numbers_from(0, at), 0);
    const block_draft_request request{&context, text};
    for (node_id node = 0; node < t.view().n_nodes; ++node) {
      model.forward(std::span(&request, 1), length);
      alone.push_back(row_of(node));
    }
    std::vector<node_id> order{deeper, aba, root_node, aaa, b, aa, ba, a, ab, deep, aaa, aba, aaa, root_node, deeper};
    for (const node_id node : order)
      CHECK(row_of(node) == alone[static_cast<std::size_t>(node)]);
    // A path that was refused leaves nothing behind.
    tree<> wrong(8);
    wrong.reset(96);
    const node_id below = wrong.append(wrong.append(root_node, 3, 0), 4, 0);
    row_type row(alone.front().size());
    CHECK(says(message_of<input_error>([&] { model.correct(0, wrong, below, row); }), "token 96", "ends at 95"));
    for (const node_id node : order)
      CHECK(row_of(node) == alone[static_cast<std::size_t>(node)]);
    const auto differ = [&](node_id x, node_id y) {
      return alone[static_cast<std::size_t>(x)] != alone[static_cast<std::size_t>(y)];
    };
    CHECK(differ(aa, ba));  // they have the same token, at the same depth
    CHECK(differ(deep, deeper));
    // A node below the last row has the row of a node at the last row's depth with its token.
    CHECK(!differ(length == 3 ? aaa : deep, length == 3 ? a_last : aa_last));
    found.push_back(alone);
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("the token before the pending one, which a refiner reads, must be one of the vocabulary") {
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  auto model = block_draft_model::load(golden + "heads/xpress", target);
  auto context = model.make_context();
  const std::vector<token_id> text{96, 3};
  pass_over(target, {1, 3});
  model.read(context, target, numbers_from(0, 1), 0);
  const block_draft_request request{&context, text};
  model.forward(std::span(&request, 1), 3);
  tree<> t(2);
  t.reset(3);
  std::vector<float> row(96);
  CHECK(says(message_of<input_error>([&] { model.correct(0, t, root_node, row); }), "token 96", "ends at 95"));
}

TEST_CASE("what an XPress block needs and is not computed is refused by its name, and so are tensors that do not fit") {
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(contents(golden + "heads/xpress/config.json"));
    config[key] = value;
    return config;
  };
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    return message_of<model_error>([&] { block_draft_config::parse(with(key, value).dump(), "config.json"); });
  };
  CHECK(says(refused("xpress_rank", 0), "\"xpress_rank\" is 0", "from 1"));
  CHECK(says(refused("xpress_mlp_ratio", 0.5), "\"xpress_mlp_ratio\" is 0.5", "from 1"));
  CHECK(says(refused("num_jacobi_passes", 0), "\"num_jacobi_passes\" is 0", "from 1"));
  nlohmann::json large = with("block_size", 1024);
  large["xpress_rank"] = 257;
  CHECK(says(message_of<model_error>([&] { block_draft_config::parse(large.dump(), "config.json"); }),
             "\"xpress_rank\" is 257, but must be at most 256 with a \"block_size\" of 1024."));

  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "espalier_xpress";
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  const auto loading = [&](const nlohmann::json& config, const std::string& weights = "xpress") {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
    std::filesystem::copy_file(golden + "heads/" + weights + "/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    const std::string message = message_of<model_error>([&] { block_draft_model::load(folder.string(), target); });
    std::filesystem::remove_all(folder);
    return message;
  };
  CHECK(loading(with("num_jacobi_passes", 1)).empty());
  CHECK(says(loading(with("block_size", 5)),
             "xpress/model.safetensors: tensor \"refiner_head.mix_l\" has shape [6, 4, 4]",
             "xpress/config.json makes it [6, 5, 5]."));
  CHECK(says(loading(with("xpress_rank", 5)), "\"refiner_head.token_embed.weight\"", "[96, 6]", "[96, 5]"));
  CHECK(says(loading(with("xpress_mlp_ratio", 3)), "\"refiner_head.mlp_gate.weight\"", "[12, 6]", "[18, 6]"));
  CHECK(says(loading(with("draft_vocab_size", 64)), "lacks tensor \"lm_head.weight\"", "heads/target", "96", "64"));
  CHECK(says(loading(with("speculators_model_type", "dflash")), "\"refiner_head.down_g.weight\" (and 8 more)",
             "has no place in what", "xpress/config.json makes"));
  nlohmann::json of_other = nlohmann::json::parse(contents(golden + "heads/dspark/config.json"));
  of_other["speculators_model_type"] = "xpress";
  CHECK(says(loading(of_other, "dspark"), "model.safetensors lacks tensor \"refiner_head.token_embed.weight\""));
}

TEST_CASE("what a DSpark block needs and is not computed is refused by its name, and so are tensors that do not fit") {
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(contents(golden + "heads/dspark/config.json"));
    config[key] = value;
    return config;
  };
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    return message_of<model_error>([&] { block_draft_config::parse(with(key, value).dump(), "config.json"); });
  };
  CHECK(says(refused("markov_head_type", "lstm"), "\"markov_head_type\" is \"lstm\"", "\"gated\" or \"rnn\""));
  CHECK(says(refused("markov_rank", -1), "\"markov_rank\" is -1"));
  CHECK(says(refused("markov_rank", 0), "\"markov_rank\" is 0", "confidence_head_with_markov"));
  CHECK(says(refused("draft_vocab_size", 97), "\"draft_vocab_size\" is 97", "96"));
  nlohmann::json rnn = with("markov_head_type", "rnn");
  rnn["sample_from_anchor"] = false;
  CHECK(says(message_of<model_error>([&] { block_draft_config::parse(rnn.dump(), "config.json"); }),
             "\"sample_from_anchor\" is false", "rnn"));
  nlohmann::json without = with("markov_rank", 0);
  without["confidence_head_with_markov"] = false;
  CHECK(block_draft_config::parse(without.dump(), "config.json").markov_gates() == 0);

  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "espalier_dspark";
  llama_backend target = llama_backend::load(golden + "heads/target", {.threads = 1});
  const auto loading = [&](const nlohmann::json& config) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
    std::filesystem::copy_file(golden + "heads/dspark/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    const std::string message = message_of<model_error>([&] { block_draft_model::load(folder.string(), target); });
    std::filesystem::remove_all(folder);
    return message;
  };
  CHECK(loading(with("block_size", 4)).empty());
  CHECK(says(loading(with("markov_rank", 5)), "\"markov_head.markov_w1.weight\"", "[96, 6]", "[96, 5]"));
  CHECK(says(loading(with("draft_vocab_size", 64)), "lacks tensor \"lm_head.weight\"", "heads/target", "96", "64"));
  CHECK(says(loading(with("markov_head_type", "gated")), "lacks tensor \"markov_head.gate_proj.weight\""));
  CHECK(says(loading(with("enable_confidence_head", false)), "confidence_head.proj", "has no place"));
}

TEST_CASE("what a DFlash block needs and is not computed is refused by its name") {
  const auto with = [&](const std::string& name, const char* pointer, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(contents(golden + "heads/" + name + "/config.json"));
    config[nlohmann::json::json_pointer(pointer)] = value;
    return message_of<model_error>([&] { block_draft_config::parse(config.dump(), "config.json"); });
  };
  CHECK(says(with("dflash", "/dflash_config/selector_rank", 8), "lacks \"conv_kernel_size\""));
  CHECK(says(with("dflash", "/dflash_config/mask_token_id", 96), "\"mask_token_id\" is 96", "95"));
  CHECK(
      says(with("dflash", "/dflash_config/target_layer_ids", {3, 1}), "target_layer_ids", "ascending numbers from 0"));
  CHECK(says(with("dflash", "/dflash_config/use_swa", true), "\"use_swa\" is true"));
  CHECK(says(with("dflash", "/dflash_config/attention_value_scale", 0.5), "\"attention_value_scale\" is 0.5"));
  CHECK(says(with("dflash_speculators", "/transformer_layer_config/is_causal", true), "is_causal"));
  CHECK(says(with("dflash2", "/conv_group_size", 5), "\"conv_group_size\" is 5", "must divide the hidden size, 32"));
  CHECK(says(with("dflash2", "/conv_kernel_size", 5), "\"conv_kernel_size\" is 5", "at most \"block_size\", 4"));
  CHECK(says(with("dflash2", "/selector_top_k", 97), "\"selector_top_k\" is 97", "96"));
  CHECK(says(with("dflash2", "/draft_vocab_size", 64), "\"draft_vocab_size\" is 64", "96, all tokens"));
  CHECK(says(with("dflash", "/attention_bias", true), "attention_bias"));
  for (const char* pointer : {"/partial_rotary_factor", "/rope_parameters/partial_rotary_factor"})
    CHECK(says(with("dflash", pointer, 0.5), "\"partial_rotary_factor\"", "4 of 8 dimensions", "must all be"));
  CHECK(says(with("dflash_speculators", "/transformer_layer_config/partial_rotary_factor", 0.5),
             "transformer_layer_config", "partial_rotary_factor"));
  CHECK(says(with("dflash_speculators", "/speculators_model_type", "medusa"),
             "\"medusa\", but must be \"dflash\", \"dflash2\", \"dspark\" or \"xpress\""));
  CHECK(
      says(with("dflash_speculators", "/aux_hidden_state_layer_ids", {0, 2}), "aux_hidden_state_layer_ids", "from 1"));
  // Layers that the file does not name are at equal distances.
  nlohmann::json config = nlohmann::json::parse(contents(golden + "heads/dflash/config.json"));
  config["dflash_config"].erase("target_layer_ids");
  config["num_target_layers"] = 36;
  CHECK(block_draft_config::parse(config.dump(), "config.json").hidden_layers == std::vector<int>{1, 33});
  const auto refused_by = [](llama_options options, const char* target) {
    llama_backend other = llama_backend::load(golden + target, options);
    return message_of<model_error>([&] { block_draft_model::load(golden + "heads/dflash", other); });
  };
  CHECK(says(refused_by({.threads = 1}, "llama_tied"), "heads/dflash/config.json: \"target_layers\" is 6",
             "llama_tied has 2 layers"));
}

TEST_CASE("a block is the same bit for bit with any number of threads and however its context came") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  const auto expected = block_of(target, model, text, 13, 7);
  for (const int at_once : {1, 3, 5})
    CHECK(block_of(target, model, text, 13, 7, at_once) == expected);
  for (const int threads : {2, 3}) {
    llama_backend other = load_target(threads);
    auto same = block_draft_model::load(golden + "block", other);
    CHECK(block_of(other, same, text, 13, 7) == expected);
    CHECK(block_of(other, same, text, 13, 7, 4) == expected);
  }
}

TEST_CASE("a context holds what was read of its own text, and a block before it changes nothing") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  std::vector<token_id> other = text;
  std::reverse(other.begin(), other.end());
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  const auto expected = block_of(target, model, text, 13, 7);
  auto context = model.make_context(), second = model.make_context();
  pass_over(target, text);
  model.read(context, target, numbers_from(0, 6), 0);
  forward_one(model, context, text[6], 6, 7);  // writes from position 6 on
  model.read(context, target, numbers_from(6, 7), 6);
  pass_over(target, other);
  model.read(second, target, numbers_from(0, 13), 0);
  CHECK(llama_driver::rows_of(forward_one(model, context, text[13], 13, 7)) == expected);
  // What is read again replaces what was there.
  pass_over(target, text);
  model.read(second, target, numbers_from(0, 13), 0);
  CHECK(llama_driver::rows_of(forward_one(model, second, text[13], 13, 7)) == expected);
  CHECK(block_of(target, model, other, 13, 7) != expected);
}

TEST_CASE("blocks of several texts in one pass are bitwise those of each alone") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  std::vector<token_id> other = text;
  std::reverse(other.begin(), other.end());
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  auto a = model.make_context(), b = model.make_context(), c = model.make_context();
  pass_over(target, text);
  model.read(a, target, numbers_from(0, 13), 0);
  pass_over(target, other);
  model.read(b, target, numbers_from(0, 9), 0);
  for (const int length : {7, 3}) {
    // Rows of a block see each other: a shorter one is another.
    const auto first = block_of(target, model, text, 13, length), second = block_of(target, model, other, 9, length);
    const auto alone = block_of(target, model, text, 0, length);
    // Places in any order, with one left out.
    const std::vector<block_draft_request> requests{
        {&b, std::span(other).first(10), 4}, {&a, std::span(text).first(14), 1}, {&c, std::span(text).first(1), 2}};
    model.forward(requests, length);
    const auto rows = [&](int place) { return llama_driver::rows_of(model.logits(place, length)); };
    CHECK(rows(1) == first);
    CHECK(rows(4) == second);
    CHECK(rows(2) == alone);
  }
}

TEST_CASE("states of texts that are read in turn, in parts and again, give each the blocks that it has alone") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  std::vector<token_id> other = text;
  std::reverse(other.begin(), other.end());
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  const auto first = block_of(target, model, text, 13, 7), second = block_of(target, model, other, 13, 7);
  auto a = model.make_context(), b = model.make_context();
  // What was given up and read otherwise leaves no trace, whether a pass has taken it in between or not.
  for (const bool is_taken : {false, true}) {
    pass_over(target, other);
    model.read(a, target, numbers_from(3, 8), 3);
    if (is_taken) forward_one(model, a, text[11], 11, 7);
    for (int position = 0; position < 13; ++position) {
      pass_over(target, text);
      model.read(a, target, numbers_from(position, 1), position);
      pass_over(target, other);
      model.read(b, target, numbers_from(position, 1), position);
    }
    {
      auto gone = model.make_context();
      model.read(gone, target, numbers_from(0, 5), 0);
    }
    const std::vector<block_draft_request> requests{{&a, std::span(text).first(14), 0},
                                                    {&b, std::span(other).first(14), 1}};
    model.forward(requests, 7);
    CHECK(llama_driver::rows_of(model.logits(0, 7)) == first);
    CHECK(llama_driver::rows_of(model.logits(1, 7)) == second);
  }
}

TEST_CASE("with no text before it a block sees the pending token alone") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  const auto alone = block_of(target, model, text, 0, 7);
  auto context = model.make_context();
  CHECK(llama_driver::rows_of(forward_one(model, context, text[0], 0, 7)) == alone);
  CHECK(llama_driver::rows_of(forward_one(model, context, text[1], 0, 7)) != alone);
  for (const row_type& row : alone)
    CHECK(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("a block at the last position that the target has, and states beyond it") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  llama_backend target = load_target(), shorter = load_target(1, 14);
  auto model = block_draft_model::load(golden + "block", target);
  auto bounded = block_draft_model::load(golden + "block", shorter);
  CHECK(bounded.max_positions() == 14);
  const auto expected = block_of(target, model, text, 13, 7);
  auto context = bounded.make_context();
  pass_over(target, text);
  bounded.read(context, target, numbers_from(0, 14), 0);
  bounded.read(context, target, numbers_from(0, 3), 14);
  bounded.read(context, target, numbers_from(0, 3), 20);
  CHECK(llama_driver::rows_of(forward_one(bounded, context, text[13], 13, 7)) == expected);
}

TEST_CASE("neither reading nor a block allocates, from the first on") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  for (const int threads : {1, 2}) {
    llama_backend target = load_target(threads);
    auto model = block_draft_model::load(golden + "block", target);
    auto context = model.make_context();
    pass_over(target, text);
    const std::vector<std::int32_t> rows = numbers_from(0, 13);
    const allocation_count count;
    model.read(context, target, rows, 0);
    forward_one(model, context, text[13], 13, 7);
    forward_one(model, context, text[13], 13, 2);
    const std::int64_t allocations = count.so_far();
    CHECK(allocations == 0);
  }
}

TEST_CASE("a block draft makes its target keep the states that it reads, and must fit it") {
  llama_backend bare = llama_backend::load(golden + "llama_tied", {.threads = 1});
  block_draft_model::load(golden + "block", bare);
  CHECK(bare.hidden_layers() == std::vector<int>{0, 1});
  llama_backend wide = llama_backend::load(golden + "qwen3", {.threads = 1});
  CHECK(says(message_of<model_error>([&] { block_draft_model::load(golden + "block", wide); }),
             "block/config.json: \"hidden_size\" is 32", "qwen3 has 36 numbers"));
  CHECK(wide.hidden_layers().empty());

  llama_backend target = load_target();
  auto model = block_draft_model::load(golden + "block", target);
  auto context = model.make_context();
  for (const token_id bad : {-1, 72})
    CHECK(says(message_of<input_error>([&] { forward_one(model, context, bad, 0, 7); }), std::to_string(bad),
               "ends at 71"));
  struct narrow_states {
    std::vector<float> numbers = std::vector<float>(31);
    std::span<const float> hidden(int, int) const { return numbers; }
  };
  CHECK(says(message_of<input_error>([&] { model.read(context, narrow_states(), numbers_from(0, 1), 0); }),
             "31 numbers", "reads 32"));
}

TEST_CASE("folders of a block draft that do not fit are refused by name") {
  const std::string config = contents(golden + "block/config.json");
  const std::string weights = contents(golden + "block/model.safetensors");
  CHECK(refusal(config, weights).empty());
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = nlohmann::json::parse(config);
    changed[key] = value;
    return refusal(changed.dump(), weights);
  };
  const auto without = [&](const char* key) {
    nlohmann::json changed = nlohmann::json::parse(config);
    changed.erase(key);
    return refusal(changed.dump(), weights);
  };
  for (const char* key :
       {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "max_position_embeddings", "block_size", "target_layers"}) {
    CHECK(says(without(key), "config.json lacks \"" + std::string(key) + "\""));
  }
  CHECK(says(with("model_type", "llama"), "\"model_type\" is \"llama\"", "espalier_block"));
  CHECK(says(with("hidden_act", "gelu"), "\"hidden_act\" is \"gelu\"", "silu"));
  CHECK(says(with("block_size", 1), "\"block_size\" is 1", "from 2"));
  CHECK(says(with("head_dim", 11), "\"head_dim\" is 11", "even"));
  CHECK(says(with("num_key_value_heads", 4), "\"num_attention_heads\" is 6", "multiple"));
  for (const nlohmann::json& bad :
       {nlohmann::json(), nlohmann::json(3), nlohmann::json::array(), nlohmann::json({0, 1}), nlohmann::json({2, 1}),
        nlohmann::json({1, 1}), nlohmann::json({1.5}), nlohmann::json({"1"}), nlohmann::json({1, 4097})}) {
    INFO(bad.dump());
    CHECK(says(with("target_layers", bad), "\"target_layers\""));
  }
  CHECK(says(with("target_layers", {1, 3}), "\"target_layers\" is 3", "has 2 layers"));
  // The weights are those of another shape then.
  CHECK(says(with("target_layers", {1}), "\"fc.weight\"", "[32, 64]", "[32, 32]"));
  CHECK(says(with("block_size", 9), "\"mask_embed\"", "[7, 32]", "[8, 32]"));
  CHECK(says(with("num_hidden_layers", 3), "lacks tensor \"layers.2."));
  CHECK(says(with("num_hidden_layers", 1), "tensor \"layers.1.input_layernorm.weight\"", "has no place"));
  CHECK(says(with("intermediate_size", 1 << 22), "gate_proj", "[44, 32]"));
  for (std::size_t n : {std::size_t{0}, std::size_t{7}, weights.size() / 2, weights.size() - 1})
    CHECK(says(refusal(config, weights.substr(0, n)), "model.safetensors"));
  CHECK(says(refusal("", weights), "config.json", "not a JSON object"));
  llama_backend target = load_target();
  CHECK(says(message_of<model_error>([&] { block_draft_model::load(golden + "nowhere", target); }),
             "nowhere/config.json cannot be opened"));
}
