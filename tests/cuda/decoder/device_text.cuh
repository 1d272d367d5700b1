// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "espalier/concepts/regime.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/registry.cuh"

// The text that a decoder on the device writes with a pair of the registry, and the comparison of all pairs with the
// host.
namespace espalier_test {

// What the device's decoder writes with this policy and the registry's verifier of this name.
template <class PolicyT>
written device_text(const PolicyT& policy, std::string_view verifier, const setting& s, bool replay = true) {
  auto grown = espalier::cuda::make_on_device(policy);
  const std::int32_t rows = rows_for(grown);
  device_text_backend target(s.vocab, s.target_law, rows), draft(s.vocab, s.draft_law, rows);
  espalier::cuda::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.draft_context);
  written text;
  const auto with = [&](auto&& drafter) {
    decoder_options options = s.options;
    options.replay = replay;
    auto decode = espalier::cuda::make_decoder(drafter, std::move(grown),
                                               named_verifier<PolicyT::type::sampling>{verifier}, kv, target, options);
    text.take(decode, s);
  };
  if constexpr (drafts<typename PolicyT::type>) {
    with(espalier::cuda::autoregressive(draft, draft_kv, s.draft));
  } else {
    with(espalier::cuda::no_drafter());
  }
  return text;
}

// What the trees of a policy are made of: each kind has a source of its own, since a compiler needs much memory for all
// policies.
enum class trees { paths, independent_draws, distinct_draws, chosen_nodes };
template <class PolicyT>
constexpr bool grows_paths = compatible(PolicyT::sampling, regime::single_path) || std::is_same_v<PolicyT, chain> ||
                             std::is_same_v<PolicyT, adaptive_chain>;
template <class PolicyT>
constexpr trees trees_of = grows_paths<PolicyT>                                         ? trees::paths
                           : compatible(PolicyT::sampling, regime::iid)                 ? trees::independent_draws
                           : compatible(PolicyT::sampling, regime::without_replacement) ? trees::distinct_draws
                                                                                        : trees::chosen_nodes;

// The functions that write texts with a policy, on the host and on the device.
struct text_writers {
  std::function<written(std::string_view verifier, const setting&)> on_host;
  std::function<written(std::string_view verifier, const setting&, bool replay)> on_device;
};

// Calls f(writers, verifier, number of the pair) for every pair of the registry that the device has, of policies with
// such trees. Returns how many there are.
template <trees Kind, class FunctionT>
int for_each_device_pair_of(const FunctionT& f) {
  int pairs = 0;
  for_each_device_policy([&]<class PolicyT>(const PolicyT& policy) {
    if constexpr (trees_of<typename PolicyT::type> == Kind) {
      const text_writers writers{
          [&](std::string_view verifier, const setting& s) { return host_text(policy, verifier, s); },
          [&](std::string_view verifier, const setting& s, bool replay) {
            return device_text(policy, verifier, s, replay);
          }};
      for (const registered_verifier& verifier : verifiers_for(PolicyT::type::sampling)) {
        INFO(policy.name << " with " << verifier.name);
        f(writers, verifier, ++pairs);
      }
    }
  });
  return pairs;
}

// Checks that host and device write the same text with a pair.
inline void check_same_text(const text_writers& write, const registered_verifier& verifier, int pair) {
  setting s;
  s.options.text.seed = 7;
  s.options.text.sampling.temperature = verifier.is_greedy ? 0.0F : 1.0F;
  const written expected = write.on_host(verifier.name, s);
  CHECK(write.on_device(verifier.name, s, true) == expected);
  if (pair % 5 == 0) CHECK(write.on_device(verifier.name, s, false) == expected);
}

// Checks the same over padded vocabularies and grammars.
inline void check_same_padded_text(const text_writers& write, const registered_verifier& verifier, int pair) {
  setting s;
  s.vocab = 45;
  s.stop.max_tokens = 15;
  s.options.text.seed = static_cast<std::uint64_t>(pair - 1);
  s.target_law.n_tokens = 37;
  s.target_law.is_masked = true;
  s.draft_law.n_tokens = 33;
  s.draft_law.is_masked = pair % 2 == 0;
  // Of the 45 tokens 17 to 33 are possible.
  s.draft = pair % 3 == 0 ? sampling_options{.temperature = 1, .top_k = 40} : sampling_options{.temperature = 1};
  if (!verifier.is_greedy) s.options.text.sampling = s.draft;
  if (!verifier.is_greedy && pair % 4 == 0) s.options.text.sampling.top_p = 0.9F;
  const written expected = write.on_host(verifier.name, s);
  CHECK(write.on_device(verifier.name, s, true) == expected);
  for (const std::vector<token_id>& round : expected.rounds)
    CHECK(std::all_of(round.begin(), round.end(), [](token_id t) { return t < 37; }));
}

}  // namespace espalier_test
