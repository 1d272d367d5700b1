// expect: cannot grow from this drafter
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/verifier/greedy.hpp"

#ifdef ESPALIER_VALID
using drafter = archetypes::step_drafter;
#else
struct drafter : archetypes::sequence_drafter {  // gives tokens, where a fixed tree asks for distributions
  espalier::node_rows<float> rows() const;
};
#endif

using composition =
    espalier::decoder<drafter, espalier::fixed, espalier::greedy, archetypes::kv_store, archetypes::backend>;
static_assert(sizeof(composition) > 0);
