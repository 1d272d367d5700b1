// SPDX-License-Identifier: BSL-1.0
#include "espalier/c/espalier_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "../../../examples/c/parts.hpp"
#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/verifier/scene.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/sampling/lazy_rows.hpp"
#include "raises.hpp"

// The verification of C on the device beside the host's verifiers, which espalier_verify() runs.

using namespace espalier;
using namespace espalier_test;
namespace device = espalier::cuda;

namespace {

struct cuda_verifier {
  explicit cuda_verifier(std::string_view name, const char* options = nullptr) {
    REQUIRE(espalier_cuda_verifier_create(std::string(name).c_str(), options, &handle) == ESPALIER_OK);
  }
  cuda_verifier(const cuda_verifier&) = delete;
  cuda_verifier& operator=(const cuda_verifier&) = delete;
  ~cuda_verifier() { espalier_cuda_verifier_destroy(handle); }

  espalier_cuda_verifier* handle = nullptr;
};

espalier_tree_arrays arrays_of(tree_view t) {
  return {sizeof(espalier_tree_arrays),
          t.n_nodes,
          t.n_draws,
          t.token,
          t.parent,
          t.depth,
          t.log_prob,
          t.first_draw,
          t.next_draw,
          t.drawn_node};
}

// Texts over one vocabulary, with their rows on the device: the target's in another order than the nodes, the draft's
// backwards.
struct several_texts {
  several_texts(const std::vector<scene>& from, const std::vector<sampling_options>& samplings, std::uint32_t length)
      : scenes(from) {
    const std::int32_t vocab = scenes.front().vocab;
    const auto n_row = static_cast<std::size_t>(vocab);
    std::int32_t n_nodes = 0;
    for (const scene& one : scenes)
      n_nodes += one.tree.size();
    target_row_of.resize(static_cast<std::size_t>(n_nodes));
    std::iota(target_row_of.begin(), target_row_of.end(), 0);
    std::rotate(target_row_of.begin(), target_row_of.begin() + n_nodes / 3, target_row_of.end());
    draft_row_of.resize(target_row_of.size());
    std::iota(draft_row_of.rbegin(), draft_row_of.rend(), 0);
    logits.resize(target_row_of.size() * n_row), draft.resize(logits.size());
    std::size_t first = 0;
    for (std::size_t i = 0; i < scenes.size(); ++i) {
      for (std::int32_t u = 0; u < scenes[i].tree.size(); ++u) {
        const auto put = [&](const std::vector<float>& rows, std::int32_t row, std::vector<float>& to) {
          std::copy_n(&rows[scenes[i].size(u)], n_row, &to[static_cast<std::size_t>(row) * n_row]);
        };
        put(scenes[i].logits, target_row_of[first + static_cast<std::size_t>(u)], logits);
        put(scenes[i].draft, draft_row_of[first + static_cast<std::size_t>(u)], draft);
      }
      first += static_cast<std::size_t>(scenes[i].tree.size());
      trees.push_back(arrays_of(scenes[i].tree.view()));
    }
    for (std::size_t i = 0; i < scenes.size(); ++i) {
      const sampling_options& s = samplings[i % samplings.size()];
      texts.push_back({&trees[i],
                       {s.temperature, s.top_k, s.top_p, s.min_p},
                       {11 + i, static_cast<std::uint32_t>(3 * i), length + static_cast<std::uint32_t>(i)}});
    }
    target_on_device = to_device(logits), draft_on_device = to_device(draft);
    n = n_nodes, width = vocab;
  }

  espalier_rows target_rows() const { return {target_on_device.data(), n, width, target_row_of.data(), n}; }
  espalier_rows draft_rows() const { return {draft_on_device.data(), n, width, draft_row_of.data(), n}; }

  espalier_status verify(const cuda_verifier& with, cudaStream_t stream = nullptr) {
    const espalier_rows p = target_rows(), q = draft_rows();
    verdicts.assign(texts.size(), {-7, -7});
    return espalier_cuda_verify(with.handle, texts.data(), static_cast<std::int32_t>(texts.size()), &q, &p, stream,
                                verdicts.data());
  }

  verdict by_host(std::size_t i, parts::verifier_part& with) const {
    std::size_t first = 0;
    for (std::size_t before = 0; before < i; ++before)
      first += static_cast<std::size_t>(scenes[before].tree.size());
    const tree_view t = scenes[i].tree.view();
    const espalier_sampling& s = texts[i].sampling;
    lazy_rows<float> rows({s.temperature, s.top_k, s.top_p, s.min_p});
    rows.reserve(t.n_nodes, width);
    rows.open({logits.data(), n, width}, std::span(target_row_of).subspan(first, static_cast<std::size_t>(t.n_nodes)),
              0);
    parts::target_of<float, lazy_rows<float>> target(rows);
    philox_chance chance(texts[i].seed.seed, texts[i].seed.stream, texts[i].seed.length);
    with.reserve(t.n_draws, width);
    return with.verify(t, {{draft.data(), n, width}, &draft_row_of[first]}, target, chance);
  }

  const std::vector<scene>& scenes;
  std::vector<std::int32_t> target_row_of, draft_row_of;
  std::vector<float> logits, draft;
  std::vector<espalier_tree_arrays> trees;
  std::vector<espalier_cuda_text> texts;
  device::device_array<float> target_on_device, draft_on_device;
  std::int32_t n = 0, width = 0;
  std::vector<espalier_verdict> verdicts;
};

std::vector<scene> scenes_of(regime how, std::int32_t vocab, std::int32_t n, std::uint32_t seed) {
  std::vector<scene> made;
  for (std::int32_t i = 0; i < n; ++i)
    made.emplace_back(
        scene_options{how, vocab, i == 1 ? 0 : 5 + 4 * i, i % 2 == 0 ? 0.3 : 0.8, i % 3 == 2 ? 0.0F : 1.0F},
        seed + static_cast<std::uint32_t>(i));
  return made;
}

struct counts {
  int verdicts = 0, deep = 0;
};

void compare(several_texts& of, const cuda_verifier& on_device, parts::verifier_part& on_host, counts& n,
             cudaStream_t stream = nullptr) {
  const espalier_status status = of.verify(on_device, stream);
  INFO(espalier_cuda_error());
  REQUIRE(status == ESPALIER_OK);
  for (std::size_t i = 0; i < of.texts.size(); ++i) {
    INFO("text " << i);
    const verdict expected = of.by_host(i, on_host);
    REQUIRE(of.verdicts[i].accepted == expected.accepted);
    REQUIRE(of.verdicts[i].token == expected.token);
    ++n.verdicts;
    n.deep += expected.accepted > 0 ? 1 : 0;
  }
}

std::string error_of(espalier_status expected, espalier_status status) {
  REQUIRE(status == expected);
  return espalier_cuda_error();
}

const std::vector<sampling_options> drawn{
    {.temperature = 1.0F}, {.temperature = 0.7F, .top_k = 20}, {.temperature = 1.2F, .top_p = 0.9F}};
const std::vector<sampling_options> greedily{{.temperature = 0.0F}};

}  // namespace

TEST_CASE("every verifier by its name gives the host's verdicts for several texts on the device") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  int verifiers = 0;
  for (const std::string_view name : parts::verifier_names()) {
    INFO(name);
    const auto on_host = parts::make_verifier(name, "");
    const cuda_verifier on_device(name);
    counts n;
    std::uint32_t seed = 1;
    for (const regime how : {regime::iid, regime::without_replacement, regime::single_path}) {
      if (!compatible(how, on_host->lossless())) continue;
      for (const auto& samplings : {greedily, drawn}) {
        if (on_host->argmax_only() && samplings.front().temperature > 0) continue;
        // One verifier for more and fewer texts, over two vocabularies.
        for (const std::int32_t texts : {2, 4, 1}) {
          const std::vector<scene> scenes = scenes_of(how, texts == 1 ? 900 : 40, texts, seed);
          several_texts of(scenes, samplings, seed);
          compare(of, on_device, *on_host, n, stream);
          seed += 10;
        }
      }
    }
    CHECK(n.verdicts >= 7);
    CHECK(n.deep > 0);
    ++verifiers;
  }
  CHECK(verifiers == 12);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("a verifier of C on the device has options in words") {
  counts n;
  const auto on_host = parts::make_verifier("khisti", "window=2");
  const cuda_verifier on_device("khisti", "window=2");
  for (std::uint32_t seed = 100; seed < 110; ++seed) {
    const std::vector<scene> scenes = scenes_of(regime::iid, 60, 3, seed);
    several_texts of(scenes, drawn, seed);
    compare(of, on_device, *on_host, n);
  }
  espalier_cuda_verifier* none = nullptr;
  const auto refused = [&](const char* name, const char* options) {
    return error_of(ESPALIER_OPTION_ERROR, espalier_cuda_verifier_create(name, options, &none));
  };
  CHECK(refused("nave", nullptr) == "there is no verifier nave; the nearest name is naive.");
  CHECK(says(refused("khisti", "window=-3"), "option window must be "));
  CHECK(says(refused("naive", "window=3"), "has no options"));
  CHECK(error_of(ESPALIER_INPUT_ERROR, espalier_cuda_verifier_create(nullptr, nullptr, &none)) ==
        "the argument name is a null pointer.");
  CHECK(none == nullptr);
  CHECK(espalier_cuda_abi() == ESPALIER_CUDA_ABI);
}

TEST_CASE("rows stand in the order of all nodes where the caller does not say otherwise") {
  const std::vector<scene> scenes = scenes_of(regime::iid, 40, 3, 7);
  several_texts of(scenes, drawn, 7);
  const cuda_verifier with("specinfer");
  REQUIRE(of.verify(with) == ESPALIER_OK);
  const auto in_order = [&](const std::vector<float>& rows, const std::vector<std::int32_t>& row_of) {
    std::vector<float> sorted(rows.size());
    for (std::size_t u = 0; u < row_of.size(); ++u)
      std::copy_n(&rows[static_cast<std::size_t>(row_of[u]) * 40], 40, &sorted[u * 40]);
    return to_device(sorted);
  };
  const auto target = in_order(of.logits, of.target_row_of), draft = in_order(of.draft, of.draft_row_of);
  const espalier_rows p{target.data(), of.n, 40, nullptr, 0}, q{draft.data(), of.n, 40, nullptr, 0};
  std::vector<espalier_verdict> verdicts(3);
  REQUIRE(espalier_cuda_verify(with.handle, of.texts.data(), 3, &q, &p, nullptr, verdicts.data()) == ESPALIER_OK);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(verdicts[i].accepted == of.verdicts[i].accepted);
    CHECK(verdicts[i].token == of.verdicts[i].token);
  }
}

TEST_CASE("verifiers of C on the device refuse by a sentence what does not fit, and go on") {
  const std::vector<scene> scenes = scenes_of(regime::iid, 40, 3, 5);
  several_texts of(scenes, drawn, 5);
  const cuda_verifier with("specinfer"), greedy("greedy");
  REQUIRE(of.verify(with) == ESPALIER_OK);
  const std::vector<espalier_verdict> before = of.verdicts;
  const espalier_rows p = of.target_rows(), q = of.draft_rows();
  const auto n = static_cast<std::int32_t>(of.texts.size());
  const auto call = [&](const espalier_rows* draft, const espalier_rows* target) {
    return espalier_cuda_verify(with.handle, of.texts.data(), n, draft, target, nullptr, of.verdicts.data());
  };
  const auto refused = [&](const espalier_rows* draft, const espalier_rows* target) {
    return error_of(ESPALIER_INPUT_ERROR, call(draft, target));
  };

  CHECK(refused(&q, nullptr) == "the argument target is a null pointer.");
  CHECK(refused(nullptr, &p) == "the argument draft is a null pointer.");
  CHECK(error_of(ESPALIER_INPUT_ERROR,
                 espalier_cuda_verify(nullptr, of.texts.data(), n, &q, &p, nullptr, of.verdicts.data())) ==
        "the argument verifier is a null pointer.");
  CHECK(error_of(ESPALIER_INPUT_ERROR, espalier_cuda_verify(with.handle, of.texts.data(), n, &q, &p, nullptr,
                                                            nullptr)) == "the argument verdicts is a null pointer.");
  CHECK(espalier_cuda_verify(with.handle, nullptr, 0, &q, &p, nullptr, nullptr) == ESPALIER_OK);

  const espalier_rows on_host{of.logits.data(), p.n_rows, 40, p.row_of, p.n_nodes};
  CHECK(refused(&q, &on_host) == "the rows of target are not in the memory of a device.");
  CHECK(refused(&on_host, &p) == "the rows of draft are not in the memory of a device.");
  const espalier_rows narrow{q.data, q.n_rows, 39, q.row_of, q.n_nodes};
  CHECK(refused(&narrow, &p) == "the draft's rows have 39 tokens, but the target's have 40.");
  const espalier_rows few{p.data, p.n_rows - 1, 40, p.row_of, p.n_nodes};
  CHECK(says(refused(&q, &few), "target has " + std::to_string(p.n_rows - 1) + " rows, but node "));
  const espalier_rows short_list{p.data, p.n_rows, 40, p.row_of, p.n_nodes - 1};
  CHECK(says(refused(&q, &short_list), "target names the rows of "));
  const std::vector<std::int32_t> nowhere(static_cast<std::size_t>(p.n_rows), -1);
  const espalier_rows lacking{q.data, q.n_rows, 40, nowhere.data(), q.n_nodes};
  CHECK(refused(&lacking, &p) == "node 0 has children, but the draft has no row for it.");

  const auto changed = [&](auto change) {
    const espalier_tree_arrays kept = of.trees[2];
    change(of.trees[2]);
    const std::string sentence = refused(&q, &p);
    of.trees[2] = kept;
    return sentence;
  };
  CHECK(says(changed([](espalier_tree_arrays& t) { t.n_nodes = 0; }), "said to have 0 nodes and "));
  CHECK(says(changed([](espalier_tree_arrays& t) { t.n_draws = t.n_nodes - 2; }), "a draw for each other node"));
  CHECK(says(changed([](espalier_tree_arrays& t) { t.size = 8; }), "sizeof(espalier_tree_arrays)"));
  CHECK(says(changed([](espalier_tree_arrays& t) { t.parent = nullptr; }), "the argument parent is a null pointer"));
  std::vector<std::int32_t> other(of.trees[2].drawn_node, of.trees[2].drawn_node + of.trees[2].n_draws);
  other[0] = of.trees[2].n_nodes + 5;
  CHECK(says(changed([&](espalier_tree_arrays& t) { t.drawn_node = other.data(); }),
             "draw 0 of the tree of text 2 chose node "));
  std::vector<std::int32_t> tokens(of.trees[2].token, of.trees[2].token + of.trees[2].n_nodes);
  tokens[1] = 40;
  CHECK(changed([&](espalier_tree_arrays& t) { t.token = tokens.data(); }) ==
        "node 1 has token 40, but the vocabulary ends at 39.");

  CHECK(error_of(ESPALIER_OPTION_ERROR, of.verify(greedy)) ==
        "this verifier follows the target's most probable token: the temperature must be 0.");
  of.texts[1].sampling.min_p = 2;
  CHECK(says(error_of(ESPALIER_OPTION_ERROR, of.verify(with)), "option min_p is 2"));
  of.texts[1].sampling.min_p = 0;

  REQUIRE(of.verify(with) == ESPALIER_OK);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(of.verdicts[i].accepted == before[i].accepted);
    CHECK(of.verdicts[i].token == before[i].token);
  }
}

TEST_CASE("logits that are none are named, and no verdict is given") {
  std::vector<scene> scenes = scenes_of(regime::iid, 40, 3, 5);
  for (const std::string_view name : parts::verifier_names()) {
    INFO(name);
    if (!compatible(regime::iid, parts::make_verifier(name, "")->lossless())) continue;
    const cuda_verifier with(name);
    const auto& samplings = name == "greedy" ? greedily : drawn;
    scenes[2].logits[7] = std::numeric_limits<float>::quiet_NaN();
    several_texts bad(scenes, samplings, 5);
    CHECK(says(error_of(ESPALIER_NUMERIC_ERROR, bad.verify(with)),
               "the target's logit of token 7 after node 0 (the pending token) of sequence 2 is "));
    CHECK(bad.verdicts[0].token == -7);
    scenes[2].logits[7] = 0;
    several_texts good(scenes, samplings, 5);
    CHECK(good.verify(with) == ESPALIER_OK);
    // Rows of the draft are not checked: whatever they hold, the call returns, and the next one is as ever.
    const std::vector<espalier_verdict> verdicts = good.verdicts;
    for (const float wrong :
         {std::numeric_limits<float>::quiet_NaN(), 0.0F, -1.0F, std::numeric_limits<float>::infinity()}) {
      several_texts odd(scenes, samplings, 5);
      odd.draft.assign(odd.draft.size(), wrong);
      odd.draft_on_device = to_device(odd.draft);
      const espalier_status status = odd.verify(with);
      CHECK((status == ESPALIER_OK || status == ESPALIER_NUMERIC_ERROR));
      for (std::size_t i = 0; status == ESPALIER_OK && i < odd.verdicts.size(); ++i) {
        CHECK((odd.verdicts[i].accepted >= 0 && odd.verdicts[i].accepted < odd.trees[i].n_nodes));
        CHECK((odd.verdicts[i].token >= 0 && odd.verdicts[i].token < 40));
      }
    }
    REQUIRE(good.verify(with) == ESPALIER_OK);
    for (std::size_t i = 0; i < verdicts.size(); ++i)
      CHECK((good.verdicts[i].accepted == verdicts[i].accepted && good.verdicts[i].token == verdicts[i].token));
  }
}
