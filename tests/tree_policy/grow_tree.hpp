// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/row_drafter.hpp"

// One tree of at most `limit` draws below the root token 0. The drafter counts its passes anew.
template <class PolicyT, espalier::Chance ChanceT>
espalier::tree<> grow(PolicyT&& policy, espalier::testing::row_drafter& drafter, ChanceT& chance, int limit = 1 << 20) {
  espalier::tree<> t(policy.max_nodes());
  t.reset(0, limit);
  drafter.reserve(policy.max_nodes());
  drafter.passes = 0;
  espalier::grow(policy, t, drafter, chance);
  return t;
}

// The same by a policy that draws nothing.
template <class PolicyT>
espalier::tree<> grow(PolicyT& policy, espalier::testing::row_drafter& drafter, int limit = 1 << 20) {
  espalier::philox_chance chance(0, 0, 0);
  return grow(policy, drafter, chance, limit);
}
