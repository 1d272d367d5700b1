// SPDX-License-Identifier: BSL-1.0
#include <boost/hana/for_each.hpp>
#include <memory>

#include "espalier/registry.hpp"
#include "library_methods.hpp"
#include "parts.hpp"
#include "verifier_of.hpp"

namespace generate {

parts library_parts() {
  part_list<method> found;
  add_library_methods<method_group::chosen>(found);
  add_library_methods<method_group::independent>(found);
  add_library_methods<method_group::distinct>(found);
  parts all;
  boost::hana::for_each(espalier::tree_policies,
                        [&](const auto& part) { all.methods.add(found.find(part.name)->copy()); });
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    all.verifiers.add(std::make_unique<verifier_of<PartT>>(part));
  });
  return all;
}

}  // namespace generate
