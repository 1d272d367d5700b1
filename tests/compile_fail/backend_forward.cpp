// expect: HasForward
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/backend.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::backend;
#else
struct candidate : archetypes::backend {
  espalier::logits_view forward(espalier::forward_batch_view);  // knows no KV store
};
#endif

static_assert(espalier::Backend<candidate, archetypes::kv_store>);
