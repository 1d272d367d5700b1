// SPDX-License-Identifier: BSL-1.0
#include <boost/hana/for_each.hpp>
#include <memory>

#include "espalier/registry.hpp"
#include "method_of.hpp"
#include "parts.hpp"
#include "verifier_of.hpp"

namespace generate {

parts library_parts() {
  parts all;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    all.methods.add(std::make_unique<method_of<PartT>>(part));
  });
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    all.verifiers.add(std::make_unique<verifier_of<PartT>>(part));
  });
  return all;
}

}  // namespace generate
