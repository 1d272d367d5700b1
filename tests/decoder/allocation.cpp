// SPDX-License-Identifier: BSL-1.0
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/registry.hpp"
#include "untyped.hpp"
#include "verifier_of.hpp"

using namespace espalier;

namespace {

// As many rows as fit, each asking for logits.
forward_batch largest_batch(token_kv& kv, std::int32_t rows) {
  forward_batch batch;
  rows = std::min(rows, kv.capacity());
  batch.begin_sequence(0, 0, rows);
  for (std::int32_t i = 0; i < rows; ++i)
    batch.add_row(0, i, i, true);
  return batch;
}

template <class PolicyT, class VerifierT>
void require_none(PolicyT policy, VerifierT verifier, const setting& s) {
  const std::vector<token_id> prompt{3, 1, 4, 1, 5};
  composition<PolicyT, VerifierT> c(std::move(policy), s, verifier);
  // The backends of these tests take memory when they first see a large batch.
  c.target.inner.forward(c.kv, largest_batch(c.kv, 320).view());
  c.draft.inner.forward(c.draft_kv, largest_batch(c.draft_kv, 320).view());
  c.decode.begin(prompt, {.strings = {"no such text"}});
  const auto piece = [](token_id) { return std::string_view("ab"); };
  int rounds = 0;
  allocation_count count;
  while (c.decode.step(piece))
    ++rounds;
  const std::int64_t allocations = count.so_far();
  REQUIRE(rounds > 10);
  REQUIRE(allocations == 0);
}

}  // namespace

TEST_CASE("no round allocates, from the first on: policies x commit modes x orders") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const node_order order : {node_order::insertion, node_order::heavy_path}) {
      const setting s{.target = {.seed = 51},
                      .draft = {.seed = 51, .noise = 0.4},
                      .context = 400,
                      .draft_context = 330,
                      .target_mode = mode,
                      .draft_mode = mode,
                      .options = {.order = order}};
      for_each_policy([&](auto policy, const char* name) {
        INFO(name);
        require_none(policy, greedy(), s);
      });
    }
  }
}

TEST_CASE("no round allocates with any sampled pair, whatever the truncation") {
  for (const sampling_options sampling :
       {sampling_options{.temperature = 1}, sampling_options{.temperature = 1, .top_k = 5},
        sampling_options{.temperature = 0.7F, .top_p = 0.9F, .min_p = 0.01F}}) {
    const setting s{.target = {.seed = 52},
                    .draft = {.seed = 52, .noise = 0.4},
                    .context = 300,
                    .draft_context = 300,
                    .draft_sampling = sampling,
                    .options = {.text = {.sampling = sampling}}};
    for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
      using verifier_type = typename std::decay_t<decltype(verifier)>::type;
      if constexpr (!ArgmaxVerifier<verifier_type>) {
        INFO(policy.name << " with " << verifier.name);
        require_none(untyped(policy.make()), verifier_of(policy, verifier), s);
      }
    });
  }
}
