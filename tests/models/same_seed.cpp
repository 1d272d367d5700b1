// SPDX-License-Identifier: BSL-1.0
// The bundled models at a temperature: the seed decides the text, and nothing about how the passes are run does.
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/registry.hpp"
#include "models/sampled_pairs.hpp"
#include "verifier_of.hpp"

using namespace espalier;

namespace {

#if defined(NDEBUG)
constexpr std::int32_t max_tokens = 20;
#else
constexpr std::int32_t max_tokens = 5;  // a build with sanitizers looks for other faults
#endif

// How passes are run.
struct machinery {
  llama_backend& target;
  llama_backend& draft;
  commit_mode commit = commit_mode::compact;
  node_order order = node_order::insertion;
};

llama_backend load(const std::string& part, int threads, int max_rows) {
  return llama_backend::load(std::string(MODELS_FOLDER "/") + part,
                             {.threads = threads, .max_rows = max_rows, .weights = weight_storage::f32});
}

template <class PolicyT, class VerifierT>
std::vector<token_id> write(const machinery& with, PolicyT policy, VerifierT verifier, std::uint64_t seed) {
  const std::vector<token_id> prompt{1, 676, 938, 4002, 4045, 1121, 339, 328};  // "He bought 3 apples for $"
  const auto cache_of = [&](const llama_backend& model) {
    return contiguous_kv(model.config().n_layers, model.config().kv_size(), 1, 64, with.commit);
  };
  contiguous_kv kv = cache_of(with.target);
  autoregressive drafter(with.draft, cache_of(with.draft));
  const decoder_options options{.text = {.sampling = {.temperature = 1}, .seed = seed}, .order = with.order};
  auto decode = make_decoder(drafter, policy, verifier, kv, with.target, options);
  const auto text = decode.generate(prompt, {.max_tokens = max_tokens});
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("a seed writes one text, however the passes are run: every sampled pair", "[models][same_seed]") {
  // One thread where it does not matter: other tests run beside this one.
  llama_backend target = load("target", 1, 64), draft = load("draft", 1, 64);
  llama_backend target_of_two = load("target", 2, 64), draft_of_two = load("draft", 2, 64);
  llama_backend narrow_target = load("target", 1, 8),
                narrow_draft = load("draft", 1, 2);  // prompts and layers in parts
  const machinery usual{target, draft};
  const machinery others[] = {
      {target, draft, commit_mode::truncate, node_order::depth_first},
      {target_of_two, draft_of_two, commit_mode::compact, node_order::breadth_first},
      {narrow_target, narrow_draft},
      {narrow_target, narrow_draft, commit_mode::truncate, node_order::heavy_path},
  };
  for_each_sampled_pair([&](auto policy, const auto& verifier) {
    INFO(policy.name << " with " << verifier.name);
    policy.options = small(policy.options);
    const std::vector<token_id> text = write(usual, policy.make(), verifier_of(policy, verifier), 7);
    REQUIRE(text.size() == max_tokens);
    for (const machinery& other : others) {
      INFO("commit " << name_of(other.commit) << ", order " << name_of(other.order) << ", max_rows "
                     << other.target.max_rows());
      CHECK(write(other, policy.make(), verifier_of(policy, verifier), 7) == text);
    }
    CHECK(write(usual, policy.make(), verifier_of(policy, verifier), 8) != text);
  });
}
