// expect: a cascade merges deterministic trees only
// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/iid_paths.hpp"

#ifdef ESPALIER_VALID
using second = espalier::chain;
#else
using second = espalier::iid_paths;
#endif

static_assert(sizeof(espalier::cascade<espalier::chain, second>) > 0);
