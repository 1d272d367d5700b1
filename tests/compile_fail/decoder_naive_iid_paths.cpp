// expect: not lossless for the trees of this policy
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/registry.hpp"

#ifdef ESPALIER_VALID
using policy = espalier::sampled_chain;
#else
using policy = espalier::iid_paths;
#endif

using composition =
    espalier::decoder<archetypes::step_drafter, policy, espalier::naive, archetypes::kv_store, archetypes::backend>;
static_assert(sizeof(composition) > 0);
