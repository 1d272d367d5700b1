// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <memory>

#include "espalier/registry/part.hpp"
#include "method_of.hpp"
#include "parts.hpp"
#include "run_program.hpp"
#include "verifier_of.hpp"

namespace generate {

//! The parts of a list of `espalier::part`, such as boost::hana::make_tuple() of them: tree policies and verifiers.
template <class ListT>
parts parts_of(const ListT& list) {
  parts all;
  boost::hana::for_each(list, [&]<class PartT>(const PartT& part) {
    using type = typename PartT::type;
    static_assert(
        espalier::detail::NamesRegime<type> != espalier::detail::NamesLossless<type>,
        "a part of the list must be a tree policy, which names its regime as `sampling`, or a verifier, which "
        "names its regimes as `lossless`");
    if constexpr (espalier::detail::NamesRegime<type>) {
      all.methods.add(std::make_unique<method_of<PartT>>(part));
    } else {
      all.verifiers.add(std::make_unique<verifier_of<PartT>>(part));
    }
  });
  return all;
}

//! The program generate with parts of one's own beside the library's: a program of one file is
//!
//!     constexpr auto my_parts = boost::hana::make_tuple(
//!         espalier::part<my_policy, my_options>{"my-policy", "what it does, in a few words"},
//!         espalier::part<my_verifier>{"my-verifier", "what it does"});
//!
//!     int main(int argc, char** argv) { return generate::generate_main(argc, argv, my_parts); }
//!
//! and is linked with espalier::generate. Own parts are chosen, described and compared like the library's, with options
//! as flags; on a GPU only the library's run. A name consists of a to z, 0 to 9 and hyphens, and is no other part's.
//!
//! Returns what run_program() returns.
template <class ListT>
int generate_main(int argc, const char* const* argv, const ListT& own) {
  return run_program(argc, argv, parts_of(own));
}

}  // namespace generate
