// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "espalier/analysis/branching.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/registry.hpp"

namespace nde {

//! A verifier whose expected block efficiency can be computed, with its name in the registry.
struct ot_verifier {
  using row = std::span<const float>;

  std::string name;
  //! branching_probabilities of rows p and q and a list of draws
  std::vector<double> (*branching)(row p, row q, std::span<const espalier::token_id> list);
  //! the branching probability of a single draw
  double (*single)(float p, float q);
};

//! The verifiers of the registry, in its order, that have branching_probabilities and take independent draws.
inline std::vector<ot_verifier> all_ot_verifiers() {
  std::vector<ot_verifier> list;
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    using verifier = typename PartT::type;
    using row = ot_verifier::row;
    if constexpr (requires(row p, std::span<const espalier::token_id> draws) {
                    espalier::branching_probabilities(verifier(), p, p, draws);
                  } &&
                  espalier::compatible(espalier::delayed::sampling, verifier::lossless)) {
      list.push_back({std::string(part.name),
                      [](row p, row q, std::span<const espalier::token_id> draws) {
                        return espalier::branching_probabilities(PartT().make(), p, q, draws);
                      },
                      [](float p, float q) {
                        if constexpr (std::is_same_v<verifier, espalier::target_only>) {
                          return static_cast<double>(p);
                        } else {
                          // A single draw is tested as naive does; after it has failed, the rest of the target's row
                          // has none of its token.
                          return espalier::detail::acceptance(p, q);
                        }
                      }});
    }
  });
  return list;
}

//! The verifiers with these names; all if there are no names.
//!
//! Errors      input_error for an unknown name
inline std::vector<ot_verifier> ot_verifiers(const std::vector<std::string>& names) {
  const std::vector<ot_verifier> all = all_ot_verifiers();
  if (names.empty()) return all;
  std::vector<ot_verifier> list;
  for (const std::string& name : names) {
    const std::size_t before = list.size();
    std::string known;
    for (const ot_verifier& verifier : all) {
      if (verifier.name == name) list.push_back(verifier);
      known += (known.empty() ? "" : ", ") + verifier.name;
    }
    if (list.size() == before) {
      espalier::raise<espalier::input_error>("there is no verifier ", name, " to collect traces for; there are ", known,
                                             ".");
    }
  }
  return list;
}

}  // namespace nde
