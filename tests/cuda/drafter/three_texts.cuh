// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/drafter/block_scene.cuh"
#include "espalier/core/token.hpp"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"

namespace espalier_test {

// Three prompts, of which two begin alike, and the 10 tokens that plain decoding writes after each.
struct three_texts {
  std::vector<std::vector<espalier::token_id>> prompts{
      {5, 17, 80, 3}, {9}, {5, 17, 80, 3, 41, 41, 62, 9, 30, 30, 30, 2, 71, 8, 8, 1, 4}};
  std::vector<std::vector<espalier::token_id>> plainly{};

  template <class TargetT>
  explicit three_texts(TargetT& target) {
    const auto& c = target.config();
    espalier::cuda::contiguous_kv<float> kv(c.n_layers, c.kv_size(), 1, 128);
    for (const auto& prompt : prompts)
      plainly.push_back(
          block_scene::written(espalier::cuda::make_decoder(espalier::cuda::no_drafter(), espalier::cuda::plain(),
                                                            espalier::greedy(), kv, target),
                               prompt, 10));
  }

  // Checks that the texts are the same where a drafter drafts for all of them at once.
  template <class TargetT, class DrafterT, class PolicyT>
  void check_together(TargetT& target, DrafterT drafter, PolicyT policy) const {
    const auto& c = target.config();
    espalier::cuda::contiguous_kv<float> kv(c.n_layers, c.kv_size(), 3, 128);
    auto many = espalier::cuda::make_batch_decoder(std::move(drafter), std::move(policy), espalier::greedy(), kv,
                                                   target, {.max_texts = 3, .prefill_rows = 7});
    std::vector<espalier::text_id> ids;
    for (const auto& prompt : prompts)
      ids.push_back(many.add(prompt, {.max_tokens = 10}));
    std::map<espalier::text_id, std::vector<espalier::token_id>> texts;
    for (int step = 0; step < 200 && !many.idle(); ++step) {
      for (const espalier::text_event& e : many.step()) {
        REQUIRE(!e.error);
        texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
      }
    }
    for (std::size_t i = 0; i < ids.size(); ++i)
      CHECK(texts[ids[i]] == plainly[i]);
  }
};

}  // namespace espalier_test
