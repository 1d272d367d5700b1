// expect: not lossless for the trees of this policy
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/decoder/decoder.hpp"

struct iid_policy {
  static constexpr espalier::regime sampling = espalier::regime::iid;
  std::int32_t max_nodes() const;
  std::span<const espalier::node_id> begin(espalier::tree<>&);
  std::span<const espalier::node_id> take(espalier::tree<>&, espalier::node_rows<float>, espalier::philox_chance&);
  void observe(espalier::tree_view, espalier::verdict);
};

struct some_verifier {
#ifdef ESPALIER_VALID
  static constexpr espalier::regime lossless = espalier::regime::iid;
#else
  static constexpr espalier::regime lossless = espalier::regime::without_replacement;
#endif
  template <class TargetRowsT>
  espalier::verdict verify(espalier::tree_view, espalier::node_rows<float>, TargetRowsT&, espalier::philox_chance&);
};

using composition =
    espalier::decoder<archetypes::step_drafter, iid_policy, some_verifier, archetypes::kv_store, archetypes::backend>;
static_assert(sizeof(composition) > 0);
