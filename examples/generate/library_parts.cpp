// SPDX-License-Identifier: BSL-1.0
#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <memory>

#include "espalier/registry.hpp"
#include "espalier/registry/part.hpp"
#include "espalier/verifier/approximate.hpp"
#include "espalier/verifier/approximate/deferral.hpp"
#include "espalier/verifier/approximate/threshold_acceptance.hpp"
#include "method_of.hpp"
#include "parts.hpp"
#include "verifier_of.hpp"

namespace generate {

namespace {

// A rule that changes the text, in the form in which a decoder takes it.
template <class RuleT, class OptionsT>
struct changing : espalier::approximate<RuleT> {
  explicit changing(const OptionsT& options) : espalier::approximate<RuleT>(RuleT(options)) {}
};
template <class RuleT, class OptionsT>
using changing_part = espalier::part<changing<RuleT, OptionsT>, OptionsT>;

// The names say that the text is changed, and no method takes a rule unless a flag names it.
constexpr auto changing_rules = boost::hana::make_tuple(
    changing_part<espalier::typical_acceptance, espalier::typical_acceptance_options>{
        "approximate-typical", "CHANGES THE TEXT: accept what the target might typically write"},
    changing_part<espalier::relaxed_acceptance, espalier::relaxed_acceptance_options>{
        "approximate-relaxed", "CHANGES THE TEXT: accept the target's best tokens"},
    changing_part<espalier::deferral, espalier::deferral_options>{
        "approximate-deferral", "CHANGES THE TEXT: accept the draft's draw where the draft is sure"});

}  // namespace

parts library_parts() {
  parts all;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    all.methods.add(std::make_unique<method_of<PartT>>(part));
  });
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    all.verifiers.add(std::make_unique<verifier_of<PartT>>(part));
  });
  boost::hana::for_each(changing_rules, [&]<class PartT>(const PartT& part) {
    all.verifiers.add(std::make_unique<verifier_of<PartT>>(part));
  });
  return all;
}

}  // namespace generate
