// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/block_diffusion.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/drafter/block_scene.cuh"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/drafter/factorised.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "model/llama/batch_writer.hpp"
#include "raises.hpp"

// The references were computed by examples/models/block.py in float64: tests/data/golden/make_block_golden.py.

using namespace block_scene;
using llama_driver::device_rows;
using llama_driver::difference;

namespace {

static_assert(gpu::BlockDrafter<gpu::block_diffusion<model_type<float>>>);
static_assert(gpu::BlockDrafter<gpu::block_diffusion<model_type<__nv_bfloat16>&>>);

template <class NumberT>
target_type<NumberT> load_target(std::vector<int> hidden_layers = {0, 1}) {
  return target_type<NumberT>::load(golden + "llama_tied", {.max_rows = 65, .hidden_layers = std::move(hidden_layers)});
}

nlohmann::json reference() {
  return json_of(golden + "block/golden.json");
}

// Notes how many rows of each path it is given.
struct noting_model {
  struct context {};

  std::int32_t vocab_size() const { return 5; }
  std::int32_t block_length() const { return 4; }
  std::int32_t max_positions() const { return 100; }
  context make_context(std::int32_t) const { return {}; }
  template <class BackendT>
  void read(context&, const BackendT&, const gpu::state_rows& rows, cudaStream_t) {
    most_rows = rows.max;
  }
  vocab_rows<float> forward(context&, const gpu::text_batch&, std::int32_t, cudaStream_t) { return {}; }

  std::int32_t most_rows = 0;
};

// The greatest difference between the rows of a published block and those of golden blocks.
template <class NumberT>
double difference_of_blocks(const std::string& path, const std::vector<token_id>& text, const nlohmann::json& blocks) {
  auto target = target_of_heads<NumberT>(block_draft_config::load(path));
  auto model = model_type<NumberT>::load(path, target);
  const device_text on_device(text);
  double greatest = 0;
  for (const nlohmann::json& block : blocks) {
    const auto expected = block["logits"].get<std::vector<row_type>>();
    const int position = block["pending_at"].get<int>();
    gpu::block_diffusion drafter(model);
    REQUIRE(drafter.block_length() == static_cast<int>(expected.size()));
    drafter.reserve(8, 1, nullptr);
    read_before(drafter, target, text, position);
    on_device.set_size(position + 1);
    const auto rows = device_rows(drafter.propose_block(on_device.texts(), nullptr));
    REQUIRE(rows.size() == expected.size());
    REQUIRE(rows[0].size() == expected[0].size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t v = 0; v < rows[r].size(); ++v)
        greatest = std::max(greatest, std::abs(static_cast<double>(rows[r][v]) - static_cast<double>(expected[r][v])));
    }
  }
  return greatest;
}

// The greatest difference between the rows of a published block along the paths of golden blocks and those of the
// golden blocks, in which null is minus infinity.
double difference_along_paths(const std::string& folder, const nlohmann::json& cases, const nlohmann::json& blocks) {
  const auto text = cases["text"].get<std::vector<token_id>>();
  auto target = target_of_heads<float>(block_draft_config::load(folder));
  auto model = model_type<float>::load(folder, target, 2);
  REQUIRE(model.corrects());
  const int length = model.block_length();
  double greatest = 0;
  for (const nlohmann::json& block : blocks) {
    const int at = block["pending_at"];
    const auto tokens = block.value("path", std::vector<token_id>(static_cast<std::size_t>(length), 3));
    INFO(folder << ", pending at " << at << ", path " << nlohmann::json(tokens).dump());
    gpu::block_diffusion drafter(model);
    drafter.reserve(8, 2, nullptr);
    drafter.reserve_corrections(8, 2);
    read_before(drafter, target, text, at);
    tree<> along(8);
    along.reset(text[static_cast<std::size_t>(at)]);
    along.append(root_node, 50, 0);  // another path, on which nothing depends
    std::vector<node_id> path_nodes{root_node};
    for (const token_id t : tokens)
      path_nodes.push_back(along.append(path_nodes.back(), t, 0));
    // The root comes first, alone, and then the others, among padding; the second text is at its first token.
    const device_text on_device(text, {at + 1, 1});
    espalier_test::device_sequences trees(2, 8);
    trees.set(0, along.view(), at + 1), trees.set(1, along.view(), 1);
    const gpu::text_batch texts = on_device.with(trees);
    drafter.propose_block(texts, nullptr);
    const auto root = to_device(std::vector<node_id>{root_node});
    std::vector<row_type> rows{device_rows(drafter.corrected(texts, {root.data(), 1, 0}, nullptr))[0]};
    std::vector<node_id> list{no_node};
    list.insert(list.end(), path_nodes.begin() + 1, path_nodes.begin() + length);
    const auto others = to_device(list);
    const auto found = device_rows(drafter.corrected(texts, {others.data(), length, 0}, nullptr));
    REQUIRE(found.size() == static_cast<std::size_t>(2 * length));
    rows.insert(rows.end(), found.begin() + 1, found.begin() + length);
    const nlohmann::json& expected = block["logits"];
    REQUIRE(rows.size() == expected.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      REQUIRE(rows[r].size() == expected[r].size());
      for (std::size_t v = 0; v < rows[r].size(); ++v) {
        REQUIRE(std::isfinite(rows[r][v]) != expected[r][v].is_null());
        if (!expected[r][v].is_null())
          greatest = std::max(greatest, std::abs(static_cast<double>(rows[r][v]) - expected[r][v].get<double>()));
      }
    }
  }
  return greatest;
}

}  // namespace

TEMPLATE_TEST_CASE("The logits of a block agree with the reference, at every length and place", "", float, __half,
                   __nv_bfloat16) {
  const double tolerance = std::is_same_v<TestType, float> ? 1e-5 : std::is_same_v<TestType, __half> ? 6e-3 : 4e-2;
  const nlohmann::json cases = reference();
  const auto text = cases["tokens"].get<std::vector<token_id>>();
  auto target = load_target<TestType>();
  auto model = model_type<TestType>::load(golden + "block", target);
  CHECK(model.vocab_size() == 72);
  CHECK(model.block_length() == 7);
  CHECK(model.max_positions() == 64);
  const device_text on_device(text);
  REQUIRE(cases["blocks"].size() == 5);
  for (const nlohmann::json& block : cases["blocks"]) {
    const auto expected = block["logits"].get<std::vector<row_type>>();
    const int position = block["pending_at"].get<int>();
    gpu::block_diffusion drafter(model, {.length = static_cast<int>(expected.size())});
    REQUIRE(drafter.block_length() == static_cast<int>(expected.size()));
    drafter.reserve(8, 1, nullptr);
    drafter.begin(0, on_device.texts().text(0), text, 0, nullptr);
    read_before(drafter, target, text, position);
    on_device.set_size(position + 1);
    INFO("pending at " << position << ", " << expected.size() << " rows");
    const auto logits = drafter.propose_block(on_device.texts(), nullptr);
    CHECK(difference(device_rows(logits), expected) < tolerance);
    CHECK(device_rows(drafter.propose_block(on_device.texts(), nullptr)) == device_rows(logits));
    CHECK(drafter.propose_block(on_device.texts(), nullptr).data == logits.data);
  }
}

TEST_CASE("In a round the accepted path is read, at the places that its tokens take, captured or not") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  const device_text on_device(text);
  const int pending = 6;

  // As it should come out: all states from one pass.
  gpu::block_diffusion expected(model);
  expected.reserve(8, 1, nullptr);
  auto whole_kv = target_cache<float>(target);
  pass_over(target, whole_kv, text, 0, 13);
  expected.read(target, 0, 0, 13, nullptr);
  on_device.set_size(9 + 1);
  const auto wanted = device_rows(expected.propose_block(on_device.texts(), nullptr));

  // A tree whose nodes 0, 2 and 5 are the text's tokens 6, 7 and 8.
  const llama_driver::tree tree{{text[6], 3, text[7], 60, 61, text[8], 62}, {-1, 0, 0, 1, 2, 2, 5}};
  forward_batch batch;
  batch.begin_sequence(0, pending, 7);
  llama_driver::add_tree(batch, tree, pending);
  const device_batch uploaded(batch.view(), 2);
  const auto rows = to_device(std::vector<std::int32_t>{0, 2, 5, 77, 78, 79, 80, 81, 82});
  const gpu::stream stream;
  for (const bool captured : {false, true}) {
    gpu::block_diffusion drafter(model);
    drafter.reserve(8, 1, nullptr);
    auto kv = target_cache<float>(target);
    pass_over(target, kv, text, 0, pending);
    // As a prompt's pass, or as a chunk of another text's round, which may have had more rows.
    if (captured) {
      drafter.read(target, 0, 0, pending, nullptr);
    } else {
      const auto chunks = to_device(std::vector<gpu::prompt_chunk>{{0, 0, pending, 0}});
      drafter.read(target, chunks.data(), 1, pending + 3, nullptr);
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    on_device.set_size(pending + 1);
    const auto n = to_device(std::vector<std::int32_t>{captured ? 0 : 3});
    const gpu::path_view path{nullptr, nullptr, rows.data(), n.data(), nullptr, 9};
    const auto round = [&](cudaStream_t s) {
      target.forward(kv, uploaded.view(), s);
      drafter.read(target, on_device.texts(), path, uploaded.view().sequences, s);
      drafter.commit(on_device.texts(), path, s);
    };
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (captured) {
      const gpu::graph graph(stream.get(), [&] { round(stream.get()); });
      graph.launch(stream.get());  // a fault: nothing is accepted, and nothing read
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      const std::int32_t accepted = 3;
      n.upload(std::span<const std::int32_t>(&accepted, 1), nullptr);
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      graph.launch(stream.get());
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    } else {
      round(nullptr);
    }
    on_device.set_size(9 + 1);
    CHECK(difference(device_rows(drafter.propose_block(on_device.texts(), nullptr)), wanted) < 1e-6);
  }
}

TEST_CASE("A text beyond the model's last position has a block that means nothing, and harms nothing") {
  std::mt19937 random(3);
  const auto text = llama_driver::random_tokens(random, 70, 72);
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  const device_text on_device(text);
  gpu::block_diffusion drafter(model);
  CHECK(drafter.capacity() == 64);
  drafter.reserve(8, 1, nullptr);
  auto kv = target_cache<float>(target);
  pass_over(target, kv, text, 0, 60);
  drafter.read(target, 0, 0, 60, nullptr);
  for (const std::int32_t size : {60, 64}) {  // the last place that the model knows is 63
    on_device.set_size(size);
    if (size == 64) drafter.read(target, 0, 60, 10, nullptr);
    for (const row_type& row : device_rows(drafter.propose_block(on_device.texts(), nullptr)))
      CHECK(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
  }
  on_device.set_size(60);
  const auto before = device_rows(drafter.propose_block(on_device.texts(), nullptr));
  on_device.set_size(70);
  drafter.propose_block(on_device.texts(), nullptr);
  on_device.set_size(60);
  CHECK(device_rows(drafter.propose_block(on_device.texts(), nullptr)) == before);
}

TEST_CASE("A block drafter reads the states of paths that are deeper than its block, in a joint and node by node") {
  noting_model model;
  const gpu::path_view paths{.max = 30};
  const auto rows_of = [&](auto&& drafter, const auto& policy) {
    gpu::reserve_draft(drafter, policy, 1, nullptr);
    espalier::part_of(drafter, part_index<0>()).read(model, {}, paths, nullptr, nullptr);
    return model.most_rows;
  };
  const auto drafters = [&] { return gpu::joint(gpu::block_diffusion(model), gpu::prompt_lookup()); };
  CHECK(gpu::block_diffusion(model).capacity() == 100);
  CHECK(rows_of(drafters(), gpu::cascade{gpu::best_first({.budget = 8}), gpu::chain({.length = 10})}) == 11);
  CHECK(rows_of(drafters(), gpu::cascade{gpu::best_first({.budget = 8}), gpu::chain({.length = 2})}) == 5);
  const auto by_node = [&] { return gpu::factorised(gpu::block_diffusion(model)); };
  CHECK(rows_of(by_node(), gpu::dynatree({.budget = 12, .max_depth = 6})) == 8);  // nodes reach depth 7
  CHECK(rows_of(by_node(), gpu::chain({.length = 2})) == 5);
}

TEST_CASE("Published DFlash blocks have the rows of their own classes, with each switch and in each layout") {
  for (const char* name : {"dflash", "dflash_few"}) {
    const std::string folder = golden + "heads/" + name;
    const nlohmann::json cases = json_of(folder + "/golden.json");
    const auto text = cases["text"].get<std::vector<token_id>>();
    INFO(name);
    CHECK(difference_of_blocks<float>(folder, text, cases["blocks"]) < 1e-4);
    CHECK(difference_of_blocks<__nv_bfloat16>(folder, text, cases["blocks"]) < 0.2);
    for (const nlohmann::json& variant : json_of(folder + "/variants.json")) {
      INFO(variant["config"].dump());
      const changed_folder other(folder, variant["config"]);
      CHECK(difference_of_blocks<float>(other.path(), text, variant["blocks"]) < 1e-4);
    }
  }
  const nlohmann::json cases = json_of(golden + "heads/dflash/golden.json");
  const nlohmann::json variants = json_of(golden + "heads/dflash/variants.json");
  const auto text = cases["text"].get<std::vector<token_id>>();
  CHECK(difference_of_blocks<float>(golden + "heads/dflash_speculators", text, cases["blocks"]) < 1e-4);
  CHECK(difference_of_blocks<float>(golden + "head_gguf/dflash.gguf", text, cases["blocks"]) < 1e-4);
  CHECK(difference_of_blocks<float>(golden + "head_gguf/dflash_causal.gguf", text, variants[0]["blocks"]) < 1e-4);
  CHECK(difference_of_blocks<float>(golden + "head_gguf/dflash_windows.gguf", text, variants[2]["blocks"]) < 1e-4);
  CHECK(difference_of_blocks<float>(golden + "head_gguf/dflash_scaled.gguf", text, variants[3]["blocks"]) < 1e-4);
}

TEST_CASE("Blocks with windows of several texts in one pass are those of each alone, and can be captured") {
  const std::string folder = golden + "heads/dflash";
  const changed_folder windowed(folder, json_of(folder + "/variants.json")[1]["config"]);
  const auto text = json_of(folder + "/golden.json")["text"].get<std::vector<token_id>>();
  auto target = target_of_heads<float>(block_draft_config::load(windowed.path()));
  auto model = model_type<float>::load(windowed.path(), target, 3);
  CHECK(model.tokens() == nullptr);
  const std::vector<std::int32_t> sizes{2, static_cast<std::int32_t>(text.size()), 7};
  gpu::block_diffusion together(model);
  together.reserve(8, 3, nullptr);
  std::vector<row_type> expected;
  for (std::int32_t place = 0; place < 3; ++place) {
    gpu::block_diffusion alone(model);
    alone.reserve(8, 1, nullptr);
    auto kv = target_cache<float>(target);
    const std::int32_t size = sizes[static_cast<std::size_t>(place)];
    pass_over(target, kv, text, 0, size - 1);
    alone.read(target, 0, 0, size - 1, nullptr);
    together.read(target, place, 0, size - 1, nullptr);
    const device_text one(text, {size});
    for (const row_type& row : device_rows(alone.propose_block(one.texts(), nullptr)))
      expected.push_back(row);
  }
  const device_text all(text, sizes);
  const vocab_rows<float> logits = together.propose_block(all.texts(), nullptr);
  CHECK(device_rows(logits) == expected);
  const gpu::stream stream;
  const gpu::graph graph(stream.get(), [&] { together.propose_block(all.texts(), stream.get()); });
  gpu::require(cudaMemset(const_cast<float*>(logits.data), 0, expected.size() * 96 * sizeof(float)), "cudaMemset");
  graph.launch(stream.get());
  gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  CHECK(device_rows(logits) == expected);
}

TEST_CASE("The lists of a block with a reduced vocabulary hold the target's tokens, in the order of its columns") {
  const std::string folder = golden + "heads/dflash_few";
  const nlohmann::json cases = json_of(folder + "/golden.json");
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto tokens = cases["tokens"].get<std::vector<token_id>>();
  auto target = target_of_heads<float>(block_draft_config::load(folder));
  auto model = model_type<float>::load(folder, target);
  CHECK(model.vocab_size() == 96);
  gpu::block_diffusion drafter(model);
  const auto found = to_device(std::vector<gpu::fault>(1));
  drafter.reserve(8, 1, found.data());
  auto kv = target_cache<float>(target);
  const auto size = static_cast<std::int32_t>(text.size());
  pass_over(target, kv, text, 0, size - 1);
  drafter.read(target, 0, 0, size - 1, nullptr);
  const device_text on_device(text, {size});
  const gpu::block_rows block = gpu::ask(on_device.texts(), drafter, gpu::node_list{}, nullptr);
  REQUIRE(block.logits.vocab == 64);
  const std::vector<row_type> rows = device_rows(block.logits);
  constexpr std::int32_t k = 5;
  const gpu::device_array<token_id> listed(rows.size() * k);
  const gpu::device_array<float> log_probs(rows.size() * k);
  const gpu::token_lists lists{.tokens = listed.data(), .log_probs = log_probs.data(), .k = k};
  gpu::top_tokens<float>(64).of_blocks(on_device.texts(), block, block.length, lists, row_origin::of_block(0), nullptr);
  const std::vector<token_id> device_tokens = espalier_test::to_host(listed);
  std::vector<token_id> expected;
  for (const row_type& row : rows) {
    std::vector<std::size_t> columns(row.size());
    std::iota(columns.begin(), columns.end(), std::size_t{0});
    std::stable_sort(columns.begin(), columns.end(), [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
    for (std::size_t rank = 0; rank < k; ++rank)
      expected.push_back(tokens[columns[rank]]);
  }
  CHECK(device_tokens == expected);
}

TEST_CASE(
    "A block that corrects has the rows of its own class along every path, on a text of its own or among others") {
  static_assert(gpu::ConditionedBlockDrafter<gpu::block_diffusion<model_type<float>>>);
  static_assert(!gpu::ConditionedBlockDrafter<gpu::block_diffusion<noting_model>>);
  for (const char* name : {"dspark", "dspark_gated", "dspark_rnn", "dspark_few", "dflash2", "xpress", "xpress_few"}) {
    const std::string folder = golden + "heads/" + name;
    const nlohmann::json cases = json_of(folder + "/golden.json");
    CHECK(difference_along_paths(folder, cases, cases["blocks"]) < 1e-4);
  }
  const nlohmann::json few = json_of(golden + "heads/dspark_few/golden.json");
  CHECK(difference_along_paths(golden + "head_gguf/dspark.gguf", few, few["blocks"]) < 1e-4);
  const nlohmann::json dflash2 = json_of(golden + "heads/dflash2/golden.json");
  CHECK(difference_along_paths(golden + "head_gguf/dflash2.gguf", dflash2, dflash2["blocks"]) < 1e-4);
  for (const char* name : {"dflash2", "xpress", "xpress_few"}) {
    const std::string folder = golden + "heads/" + name;
    for (const nlohmann::json& variant : json_of(folder + "/variants.json")) {
      INFO(name << " with " << variant["config"].dump());
      const changed_folder other(folder, variant["config"]);
      CHECK(difference_along_paths(other.path(), json_of(folder + "/golden.json"), variant["blocks"]) < 1e-4);
    }
  }
}

TEMPLATE_TEST_CASE("Rows of an XPress block by node are those of their paths, below the last row, too", "", float,
                   __nv_bfloat16) {
  const std::string folder = golden + "heads/xpress";
  const nlohmann::json cases = json_of(folder + "/golden.json");
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto size = static_cast<int>(text.size());
  auto target = target_of_heads<TestType>(block_draft_config::load(folder));
  auto model = model_type<TestType>::load(folder, target, 2);
  gpu::block_diffusion drafter(model);
  drafter.reserve(8, 2, nullptr);
  drafter.reserve_corrections(8, 2);
  read_before(drafter, target, text, size - 1);
  // The tokens of a golden path, which is greedy; beside it another path, and nodes below the last row, at depth 2.
  const nlohmann::json& block = cases["blocks"].at(cases["blocks"].size() - 2);
  REQUIRE(block["pending_at"] == size - 1);
  const auto path = block["path"].get<std::vector<token_id>>();
  tree<> t(8);
  t.reset(text.back());
  const node_id a = t.append(root_node, path[0], 0), aa = t.append(a, path[1], 0), b = t.append(root_node, 7, 0),
                ba = t.append(b, path[1], 0), ac = t.append(a, 5, 0), below = t.append(aa, 5, 0),
                wrong = t.append(b, 96, 0);
  const device_text on_device(text, {size, 1});
  espalier_test::device_sequences trees(2, 8);
  trees.set(0, t.view(), size), trees.set(1, t.view(), 1);
  const gpu::text_batch texts = on_device.with(trees);
  drafter.propose_block(texts, nullptr);
  const auto nodes = to_device(std::vector<node_id>{aa, ba, below, no_node, root_node, ac, wrong, a});
  const vocab_rows<float> corrected = drafter.corrected(texts, {nodes.data(), 8, 0}, nullptr);
  const std::vector<row_type> rows = device_rows(corrected);
  const auto expected = block["logits"].get<std::vector<row_type>>();
  const double tolerance = std::is_same_v<TestType, float> ? 1e-4 : 0.5;
  CHECK(most_apart(rows[4], expected[0]) < tolerance);
  CHECK(most_apart(rows[7], expected[1]) < tolerance);
  CHECK(most_apart(rows[0], expected[2]) < tolerance);
  CHECK(most_apart(rows[1], expected[2]) > 1e-3);
  CHECK(rows[2] == rows[5]);  // `below` has the row of depth 2 with its own token before it
  CHECK(std::all_of(rows[6].begin(), rows[6].end(), [](float x) { return std::isnan(x); }));
  const gpu::stream stream;
  const gpu::graph graph(stream.get(), [&] {
    drafter.propose_block(texts, stream.get());
    drafter.corrected(texts, {nodes.data(), 8, 0}, stream.get());
  });
  gpu::require(cudaMemset(const_cast<float*>(corrected.data), 0, rows.size() * 96 * sizeof(float)), "cudaMemset");
  graph.launch(stream.get());
  gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  const std::vector<row_type> again = device_rows(corrected);
  for (const std::size_t i : {0U, 1U, 2U, 4U, 5U, 7U})
    CHECK(again[i] == rows[i]);
}

TEST_CASE("What the device does not compute of a block is refused by name, loaded or made from a config") {
  const changed_folder high(golden + "heads/dspark", {{"markov_rank", 5000}});
  const block_draft_config config = block_draft_config::load(high.path());
  auto target = target_of_heads<float>(config);
  const std::string expected = high.path() +
                               "/config.json: \"markov_rank\" is 5000, but the device computes at most "
                               "4096; the host's espalier::block_draft_model computes any.";
  CHECK(message_of<model_error>([&] { model_type<float>::load(high.path(), target); }) == expected);
  CHECK(message_of<model_error>([&] { model_type<float>(config, {}, target); }) == expected);
  CHECK(says(message_of<model_error>([&] { model_type<float>::load(golden + "heads/peagle", target); }),
             "peagle/config.json is of a P-EAGLE head: parallel_head_model reads it."));
}

TEST_CASE("What does not fit the target is named") {
  auto other = load_target<float>({1});
  CHECK(message_of<option_error>([&] { model_type<float>::load(golden + "block", other); }) ==
        "option hidden_layers of the target does not list layer 0, which the block draft reads; it must list 0, 1.");
  auto qwen = target_type<float>::load(golden + "qwen3");
  CHECK(message_of<model_error>([&] { model_type<float>::load(golden + "block", qwen); }) ==
        golden + "block/config.json: \"hidden_size\" is 32, but the target has 36 numbers in a hidden state.");
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  CHECK(message_of<option_error>([&] { gpu::block_diffusion(model, {.length = 8}); }) ==
        "option length of a block is 8, but must lie between 0 and 7.");
  gpu::block_diffusion drafter(model);
  CHECK_THROWS_AS(drafter.begin(0, {}, {}, 0, nullptr), input_error);
}
