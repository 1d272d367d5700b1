// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cuda/decoder/text_model.cuh"
#include "espalier/backend/text.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/registry.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/registry/chosen_verifier.hpp"

// What decoders of the device write, beside the host's.
namespace espalier_test {

using namespace espalier;

inline constexpr text_model target_model{.salt = 1};
inline constexpr text_model draft_model{.salt = 2};

struct setting {
  std::int32_t vocab = 37;
  std::int32_t context = 150;
  std::int32_t draft_context = 150;
  std::vector<token_id> prompt{3, 1, 4, 1, 5};
  stop_conditions stop{.max_tokens = 24};
  decoder_options options{.text = {.seed = 0}};
  sampling_options draft{.temperature = 1};
  text_model target_law = target_model;
  text_model draft_law = draft_model;
  int turns = 1;  // the text goes on so often, each time up to `stop`, with what was learnt before
};

// What a decoder wrote: its tokens, round by round, why each tree was not larger, and why the text ended.
struct written {
  std::vector<std::vector<token_id>> rounds;
  std::vector<tree_limit> limits;
  status end = status::idle;

  template <class DecoderT>
  void take(DecoderT& decode, const setting& s) {
    decode.begin(s.prompt, s.stop);
    for (int turn = 1; turn <= s.turns; ++turn) {
      if (turn > 1) decode.resume({}, s.stop);
      while (decode.step()) {
        const auto committed = decode.last_round().committed;
        rounds.emplace_back(committed.begin(), committed.end());
        limits.push_back(decode.last_round().limited_by);
      }
    }
    end = decode.current().state();
  }
  std::vector<token_id> tokens() const {
    std::vector<token_id> all;
    for (const auto& round : rounds)
      all.insert(all.end(), round.begin(), round.end());
    return all;
  }
  friend bool operator==(const written&, const written&) = default;
};

// What the host's decoder writes with this policy and the registry's verifier of this name.
template <class PolicyT>
written host_text(const PolicyT& policy, std::string_view verifier, const setting& s) {
  text_backend target(s.vocab, s.target_law), draft(s.vocab, s.draft_law);
  token_kv kv(s.context), draft_kv(s.draft_context);
  written text;
  const auto with = [&](auto&& drafter) {
    auto decode =
        make_decoder(drafter, policy.make(), chosen_verifier<PolicyT::type::sampling>(verifier), kv, target, s.options);
    text.take(decode, s);
  };
  if constexpr (drafts<typename PolicyT::type>) {
    with(autoregressive(draft, draft_kv, s.draft));
  } else {
    with(no_drafter());
  }
  return text;
}

using device_model_drafter =
    espalier::cuda::autoregressive<device_text_backend&, espalier::cuda::contiguous_kv<float>&>;

// Rows of a pass of either model that rounds of one text need.
template <class PolicyT>
std::int32_t rows_for(const PolicyT& grown) {
  return espalier::cuda::most_asked<device_model_drafter>(grown) + 2;
}

// Every policy of the registry that the device has, over a drafter that is asked layer by layer.
template <class FunctionT>
void for_each_device_policy(const FunctionT& f) {
  boost::hana::for_each(tree_policies, [&]<class PolicyT>(const PolicyT& policy) {
    using policy_type = typename PolicyT::type;
    if constexpr (espalier::cuda::has_device_policy<policy_type>) {
      if constexpr (!drafts<policy_type> ||
                    espalier::cuda::TreePolicy<espalier::cuda::device_policy<policy_type>, device_model_drafter>) {
        PolicyT small = policy;
        if constexpr (requires { small.options.budget; }) small.options.budget = 12;
        f(small);
      }
    }
  });
}

// A verifier of the registry.
struct registered_verifier {
  std::string_view name;
  bool is_greedy;
};

// The verifiers that are lossless for trees of this regime.
inline std::vector<registered_verifier> verifiers_for(regime sampling) {
  std::vector<registered_verifier> found;
  boost::hana::for_each(verifiers, [&]<class VerifierT>(const VerifierT& verifier) {
    if (compatible(sampling, VerifierT::type::lossless))
      found.push_back({verifier.name, ArgmaxVerifier<typename VerifierT::type>});
  });
  return found;
}

}  // namespace espalier_test
