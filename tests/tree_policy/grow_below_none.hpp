// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/row_drafter.hpp"

// One tree of any size below a root that is no token. The drafter counts its passes anew.
template <class PolicyT, class ChanceT>
espalier::tree<> grow_below_none(PolicyT policy, espalier::testing::row_drafter& drafter, ChanceT& chance) {
  espalier::tree<> t(policy.max_nodes());
  t.reset(-1);
  drafter.reserve(policy.max_nodes());
  drafter.passes = 0;
  espalier::grow(policy, t, drafter, chance);
  return t;
}
