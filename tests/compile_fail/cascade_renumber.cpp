// expect: each of its step drafters must have renumber
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/drafter.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"

struct drafter : archetypes::step_drafter {
#ifdef ESPALIER_VALID
  void renumber(std::span<const espalier::node_id> was);
#endif
};

void grow(espalier::cascade<espalier::chain>& policy, espalier::tree<>& tree, espalier::joint<drafter>& drafters,
          espalier::philox_chance& chance) {
  espalier::grow(policy, tree, drafters, chance);
}
