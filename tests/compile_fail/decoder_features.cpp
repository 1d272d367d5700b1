// expect: this drafter reads hidden states, which this backend does not offer
// SPDX-License-Identifier: BSL-1.0
#include <cstdint>
#include <span>

#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/registry.hpp"

struct hidden_backend : archetypes::backend {
  float hidden(int layer, int row) const;
};

struct reading_drafter : archetypes::step_drafter {
  std::int32_t n_read() const;
  void read(const hidden_backend&, std::span<const std::int32_t>);
};

#ifdef ESPALIER_VALID
using backend = hidden_backend;
#else
using backend = archetypes::backend;
#endif

using composition =
    espalier::decoder<reading_drafter, espalier::chain, espalier::greedy, archetypes::kv_store, backend>;
static_assert(sizeof(composition) > 0);
