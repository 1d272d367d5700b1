// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "archetypes/kv_store.hpp"
#include "espalier/decoder/check_parts.hpp"

// Parts of a decoder with nothing superfluous, of which a case exchanges one: for compiling only.
namespace parts {

struct drafter : archetypes::step_drafter {
  void renumber(std::span<const espalier::node_id> was);
};

struct policy {
  static constexpr espalier::regime sampling = espalier::regime::deterministic;
  std::int32_t max_nodes() const;
  std::span<const espalier::node_id> begin(espalier::tree<>&);
  std::span<const espalier::node_id> take(espalier::tree<>&, espalier::node_rows<float>, espalier::philox_chance&);
  std::span<const espalier::node_id> take(espalier::tree<>&, espalier::token_run, espalier::philox_chance&);
  void observe(espalier::tree_view, espalier::verdict);
};

struct verifier {
  static constexpr espalier::regime lossless = espalier::regime::any;
  espalier::verdict verify(espalier::tree_view, espalier::node_rows<float>, espalier::lazy_rows<>&,
                           espalier::philox_chance&);
};

template <class DrafterT, class PolicyT = policy, class VerifierT = verifier, class KVStoreT = archetypes::kv_store,
          class BackendT = archetypes::backend>
constexpr bool fit() {
  return espalier::detail::fit<espalier::detail::part_mistake<DrafterT, PolicyT, VerifierT, KVStoreT, BackendT>>();
}

}  // namespace parts
