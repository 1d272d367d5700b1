// expect: HasVocabSize
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::backend;
#else
struct candidate {  // how many tokens a row has is not said
  espalier::logits_view forward(archetypes::kv_store&, espalier::forward_batch_view);
};
#endif

static_assert(espalier::Backend<candidate, archetypes::kv_store>);
