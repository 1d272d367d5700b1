// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cstdint>
#include <optional>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/decoder/check_parts.hpp"

namespace espalier::cuda::detail {

// The number of texts that rounds are made for, and the options of the rounds.
struct rounds_shape {
  node_order order = node_order::insertion;
  std::int32_t max_texts = 1;
  std::int32_t first_sequence = 0;    // sequence of the cache that place 0 has
  std::int32_t max_rows = 1 << 30;    // the most rows of a pass
  std::int32_t prefill_rows = 0;      // the most rows of a pass that read prompts beside trees
  bool share_budget = false;          // trees share the rows of a pass by what nodes are expected to gain
  std::optional<cost_model> costs{};  // costs of passes, by which the number of rows is chosen
  bool keeps_learnt = false;          // the host gets what was learnt of each text
  bool replay = true;                 // rounds are captured as graphs and replayed
};

// Checks the types of a decoder's five parts on the device, given without references; for a part that does not fit, a
// static_assert says in a sentence what is wrong. Returns true.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
constexpr bool check_round_parts() {
  static_assert(Drafter<DrafterT>, "the first part must be a drafter on the device: cuda::Drafter");
  static_assert(KVStore<KVStoreT>, "the fourth part must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<BackendT, KVStoreT>,
                "the fifth part must be a backend on the device that can use the KV store: cuda::Backend. "
                "cuda::on_host makes one of a host backend, with copies in between");
  static_assert(
      TreePolicy<TreePolicyT, DrafterT>,
      "the second part must be a tree policy on the device that can grow from this drafter: cuda::TreePolicy");
  static_assert(
      compatible(TreePolicyT::sampling, VerifierT::lossless),
      "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
      "be one of those that the verifier handles");
  static_assert(!espalier::detail::NamesReset<TreePolicyT> || ResettingPolicy<TreePolicyT>,
                "the policy's member reset cannot be called as reset(place, stream): see cuda::ResettingPolicy");
  static_assert(!(espalier::detail::NamesPrefix<KVStoreT> || espalier::detail::NamesRemember<KVStoreT>) ||
                    PrefixKVStore<KVStoreT>,
                "the store's members prefix, version and remember cannot all be called: see cuda::PrefixKVStore");
  return true;
}

}  // namespace espalier::cuda::detail
