// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/analysis/acceptance_rate.hpp"
#include "espalier/analysis/branching.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/registry.hpp"

namespace nde {

//! A verifier whose expected block efficiency can be computed, with its name.
struct ot_verifier {
  using row = std::span<const float>;

  std::string name;
  //! branching_probabilities of rows p and q and a list of draws
  std::vector<double> (*branching)(row p, row q, std::span<const espalier::token_id> list);
  //! the branching probability of a single draw
  double (*single)(row p, row q, espalier::token_id draw);
  //! acceptance_rate of rows p and q and k draws; null if the library has none for this verifier
  double (*rate)(row p, row q, std::int32_t k) = nullptr;
};

//! The verifiers of a list of `espalier::part`, in its order, that have branching_probabilities and take independent
//! draws. All other parts are left out.
template <class ListT>
std::vector<ot_verifier> ot_verifiers_of(const ListT& parts) {
  std::vector<ot_verifier> list;
  boost::hana::for_each(parts, [&]<class PartT>(const PartT& part) {
    using type = typename PartT::type;
    using row = ot_verifier::row;
    if constexpr (requires(row p, std::span<const espalier::token_id> draws) {
                    branching_probabilities(type(), p, p, draws);
                    requires espalier::compatible(espalier::delayed::sampling, type::lossless);
                  }) {
      list.push_back({std::string(part.name),
                      [](row p, row q, std::span<const espalier::token_id> draws) {
                        return branching_probabilities(PartT().make(), p, q, draws);
                      },
                      [](row p, row q, espalier::token_id draw) {
                        return branching_probabilities(PartT().make(), p, q, std::span(&draw, 1)).front();
                      }});
      if constexpr (requires(row p) { acceptance_rate(type(), p, p, 1); }) {
        list.back().rate = [](row p, row q, std::int32_t k) { return acceptance_rate(PartT().make(), p, q, k); };
      }
    }
  });
  return list;
}

//! Returns the verifiers of the registry that have branching probabilities.
inline std::vector<ot_verifier> all_ot_verifiers() {
  std::vector<ot_verifier> list = ot_verifiers_of(espalier::verifiers);
  for (ot_verifier& verifier : list) {
    // A single draw is tested as naive does; after it has failed, the rest of the target's row has none of its token.
    verifier.single = [](ot_verifier::row p, ot_verifier::row q, espalier::token_id draw) {
      const auto x = static_cast<std::size_t>(draw);
      return espalier::detail::acceptance(p[x], q[x]);
    };
    if (verifier.name == "target-only") {
      verifier.single = [](ot_verifier::row p, ot_verifier::row, espalier::token_id draw) {
        return static_cast<double>(p[static_cast<std::size_t>(draw)]);
      };
    }
  }
  return list;
}

//! Returns the verifiers of `all` that have these names; all of them if no names are given.
//!
//! Errors      input_error for an unknown name
inline std::vector<ot_verifier> ot_verifiers(const std::vector<ot_verifier>& all,
                                             const std::vector<std::string>& names) {
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
