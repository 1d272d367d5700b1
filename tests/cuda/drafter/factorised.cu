// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/factorised.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/drafter/block_scene.cuh"
#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace block_scene;

namespace {

using drafter_type = gpu::factorised<gpu::block_diffusion<model_type<float>&>>;
static_assert(gpu::StepDrafter<drafter_type>);
static_assert(gpu::RenumberingDrafter<drafter_type>);
static_assert(gpu::FeatureDrafter<drafter_type, target_type<float>>);

// The probabilities of a row of logits over the whole vocabulary; `tokens` are those of its columns, or none.
row_type probabilities(const row_type& logits, const std::vector<token_id>& tokens, std::size_t vocab) {
  row_type row(vocab);
  double total = 0;
  for (const float x : logits)
    total += std::exp(static_cast<double>(x));
  for (std::size_t i = 0; i < logits.size(); ++i)
    row[tokens.empty() ? i : static_cast<std::size_t>(tokens[i])] =
        static_cast<float>(std::exp(static_cast<double>(logits[i])) / total);
  return row;
}

}  // namespace

TEST_CASE("The row of a node is the block's at its depth, corrected by its path, over the target's vocabulary") {
  for (const char* name : {"dflash", "dflash_few", "dspark_gated", "dspark_few", "xpress", "xpress_few"}) {
    const std::string folder = golden + "heads/" + name;
    const nlohmann::json cases = json_of(folder + "/golden.json");
    const auto text = cases["text"].get<std::vector<token_id>>();
    const auto tokens = cases.value("tokens", std::vector<token_id>());
    auto target = target_of_heads<float>(block_draft_config::load(folder));
    auto model = model_type<float>::load(folder, target);
    const nlohmann::json& block = cases["blocks"].back();
    const auto expected = block["logits"].get<std::vector<row_type>>();
    const auto length = static_cast<std::int32_t>(expected.size());
    const auto path = block.value("path", std::vector<token_id>(expected.size(), 3));
    const int at = block["pending_at"];
    drafter_type drafter((gpu::block_diffusion(model)));
    drafter.reserve(8, 1, to_device(std::vector<gpu::fault>(1)).data());
    read_before(drafter, target, text, at);
    tree<> along(8);
    along.reset(text[static_cast<std::size_t>(at)]);
    for (std::int32_t depth = 0; depth < length + 1; ++depth)
      along.append(depth, path[static_cast<std::size_t>(std::min(depth, length - 1))], 0);
    const device_text on_device(text, {at + 1});
    const espalier_test::device_sequence there(along.view(), at + 1, 8);
    const gpu::text_batch texts = on_device.with(there);
    INFO(name);
    // Two rounds: the second begins anew.
    for (int round = 0; round < 2; ++round) {
      const auto root = to_device(std::vector<node_id>{root_node});
      drafter.propose(texts, {root.data(), 1, 0}, nullptr);
      for (node_id u = 1; u < length + 1; u += 2) {
        const auto two = to_device(std::vector<node_id>{u, u + 1 < length + 1 ? u + 1 : no_node});
        drafter.propose(texts, {two.data(), 2, 0}, nullptr);
      }
      const auto rows = rows_of_nodes(drafter.rows(), length + 2);
      for (std::int32_t u = 0; u < length; ++u)
        CHECK(most_apart(rows[static_cast<std::size_t>(u)],
                         probabilities(expected[static_cast<std::size_t>(u)], tokens, 96)) < 1e-5);
      CHECK(rows[static_cast<std::size_t>(length)].size() == 96);
      if (!model.corrects())
        CHECK(rows[static_cast<std::size_t>(length)] == rows[static_cast<std::size_t>(length) - 1]);
      CHECK(rows.back().empty());
      const auto was = to_device(std::vector<node_id>{0, no_node, 1, 2, 3, 4, 5, 6, 7});
      drafter.renumber(texts, {was.data(), 9}, nullptr);
      const auto moved = rows_of_nodes(drafter.rows(), 3);
      CHECK(moved[0] == rows[0]);
      CHECK(moved[1].empty());
      CHECK(moved[2] == rows[1]);
      drafter.commit(texts, {}, nullptr);
    }
  }
}

TEST_CASE("Trees over published blocks write the target's greedy text, deeper than the block, too") {
  const std::vector<token_id> prompt{5, 17, 3, 40};
  for (const char* name : {"dflash_few", "dspark_rnn", "xpress_few"}) {
    const std::string folder = golden + "heads/" + name;
    auto target = target_of_heads<float>(block_draft_config::load(folder));
    auto model = model_type<float>::load(folder, target);
    gpu::contiguous_kv<float> kv(target.config().n_layers, target.config().kv_size(), 1, 64);
    const auto expected = written(gpu::make_decoder(gpu::no_drafter(), gpu::plain(), greedy(), kv, target), prompt, 12);
    INFO(name);
    CHECK(written(gpu::make_decoder(gpu::block_diffusion(model), gpu::chain({.length = 3}), greedy(), kv, target),
                  prompt, 12) == expected);
    CHECK(written(gpu::make_decoder(gpu::factorised(gpu::block_diffusion(model)), gpu::chain({.length = 6}), greedy(),
                                    kv, target),
                  prompt, 12) == expected);
    CHECK(written(gpu::make_decoder(gpu::factorised(gpu::block_diffusion(model)), gpu::dynatree({.budget = 12}),
                                    greedy(), kv, target),
                  prompt, 12) == expected);
    // Sampled paths have a row for each node, with zeros where the block has no column.
    CHECK(written(
              gpu::make_decoder(gpu::factorised(gpu::block_diffusion(model)), gpu::iid_paths({.paths = 2, .length = 3}),
                                traversal(), kv, target, {.text = {.sampling = {.temperature = 1}, .seed = 3}}),
              prompt, 12)
              .size() == 12);
  }
}
