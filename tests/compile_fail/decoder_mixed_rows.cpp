// expect: both must be float, or both double
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/registry.hpp"

struct double_drafter : archetypes::step_drafter {
  void propose(espalier::tree_view, std::span<const espalier::node_id>);
  espalier::node_rows<double> rows() const;
};

#ifdef ESPALIER_VALID
using drafter = archetypes::step_drafter;
#else
using drafter = double_drafter;
#endif

using composition =
    espalier::decoder<drafter, espalier::iid_paths, espalier::specinfer, archetypes::kv_store, archetypes::backend>;
static_assert(sizeof(composition) > 0);
