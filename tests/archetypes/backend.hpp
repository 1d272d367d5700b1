// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "archetypes/kv_store.hpp"
#include "espalier/concepts/backend.hpp"

namespace archetypes {

//! A Backend with nothing superfluous: for compiling only.
struct backend {
  std::int32_t vocab_size() const;
  espalier::logits_view forward(kv_store&, espalier::forward_batch_view);
};
static_assert(espalier::Backend<backend, kv_store>);

struct double_backend : backend {
  espalier::vocab_rows<double> forward(kv_store&, espalier::forward_batch_view);
};
static_assert(espalier::Backend<double_backend, kv_store>);
static_assert(!espalier::detail::HasMaxRows<backend>);

}  // namespace archetypes
