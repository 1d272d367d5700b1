// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <memory>

#include "espalier/concepts/regime.hpp"
#include "espalier/registry.hpp"
#include "library_methods.hpp"
#include "method_of.hpp"

namespace generate {

//! The group of a method.
template <class PartT>
constexpr method_group group_of() {
  using policy = typename PartT::type;
  if (espalier::compatible(policy::sampling, espalier::regime::deterministic)) return method_group::chosen;
  return espalier::compatible(policy::sampling, espalier::regime::iid) ? method_group::independent
                                                                       : method_group::distinct;
}

template <method_group Group>
void add_library_methods(part_list<method>& to) {
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    if constexpr (group_of<PartT>() == Group) to.add(std::make_unique<method_of<PartT>>(part));
  });
}

}  // namespace generate
