// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/registry.cuh"

// The text that a decoder on the device writes with a pair of the registry, and the comparison of all pairs with the
// host.
namespace espalier_test {

template <class PolicyT, class VerifierT>
written device_text(const PolicyT& policy, const VerifierT& verifier, const setting& s, bool replay = true) {
  auto grown = espalier::cuda::make_on_device(policy);
  const std::int32_t rows = rows_for(grown);
  device_text_backend target(s.vocab, s.target_law, rows), draft(s.vocab, s.draft_law, rows);
  espalier::cuda::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.draft_context);
  written text;
  const auto with = [&](auto&& drafter) {
    decoder_options options = s.options;
    options.replay = replay;
    auto decode = espalier::cuda::make_decoder(drafter, std::move(grown), verifier.make(), kv, target, options);
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
// pairs.
enum class trees { paths, independent_draws, others };
template <class PolicyT>
constexpr trees trees_of = compatible(PolicyT::sampling, regime::single_path) ? trees::paths
                           : compatible(PolicyT::sampling, regime::iid)       ? trees::independent_draws
                                                                              : trees::others;

// Calls f for every pair of the registry that the device has, of policies with such trees. Returns how many there are.
template <trees Kind, class FunctionT>
int for_each_device_pair_of(const FunctionT& f) {
  int pairs = 0;
  for_each_device_pair([&]<class PolicyT, class VerifierT>(const PolicyT& policy, const VerifierT& verifier) {
    if constexpr (trees_of<typename PolicyT::type> == Kind) {
      INFO(policy.name << " with " << verifier.name);
      ++pairs;
      f(policy, verifier, pairs);
    }
  });
  return pairs;
}

// Checks that host and device write the same text. Returns the number of pairs.
template <trees Kind>
int check_same_text() {
  return for_each_device_pair_of<Kind>([]<class VerifierT>(const auto& policy, const VerifierT& verifier, int pair) {
    setting s;
    s.options.text.seed = 7;
    s.options.text.sampling.temperature = ArgmaxVerifier<typename VerifierT::type> ? 0.0F : 1.0F;
    const written expected = host_text(policy, verifier, s);
    CHECK(device_text(policy, verifier, s) == expected);
    if (pair % 5 == 0) CHECK(device_text(policy, verifier, s, false) == expected);
  });
}

// Checks the same over padded vocabularies and grammars.
template <trees Kind>
int check_same_padded_text() {
  return for_each_device_pair_of<Kind>([]<class VerifierT>(const auto& policy, const VerifierT& verifier, int pair) {
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
    if (!ArgmaxVerifier<typename VerifierT::type>) s.options.text.sampling = s.draft;
    if (!ArgmaxVerifier<typename VerifierT::type> && pair % 4 == 0) s.options.text.sampling.top_p = 0.9F;
    const written expected = host_text(policy, verifier, s);
    CHECK(device_text(policy, verifier, s) == expected);
    for (const std::vector<token_id>& round : expected.rounds)
      CHECK(std::all_of(round.begin(), round.end(), [](token_id t) { return t < 37; }));
  });
}

}  // namespace espalier_test
