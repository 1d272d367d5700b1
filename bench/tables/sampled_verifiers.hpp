// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/filter.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/size.hpp>
#include <boost/hana/transform.hpp>
#include <boost/hana/type.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "espalier/registry.hpp"

namespace bench {

//! Whether a verifier takes several paths that were drawn independently.
template <class VerifierT>
inline constexpr bool takes_paths = espalier::compatible(espalier::delayed::sampling, VerifierT::lossless);

//! The registry's verifiers for a sampled path or sampled paths.
inline constexpr auto sampled_verifiers = boost::hana::filter(espalier::verifiers, []<class PartT>(const PartT&) {
  using verifier = typename PartT::type;
  return boost::hana::bool_c < !espalier::ArgmaxVerifier<verifier> &&
         espalier::compatible(espalier::sampled_chain::sampling, verifier::lossless) > ;
});

//! A row of the tables.
struct verifier_row {
  std::string name;
  bool takes_paths;
};

//! Calls f(part, row) for each of the verifiers.
template <class FunctionT>
void for_each_sampled_verifier(const FunctionT& f) {
  std::size_t row = 0;
  boost::hana::for_each(sampled_verifiers, [&](const auto& part) { f(part, row++); });
}

inline std::vector<verifier_row> verifier_rows() {
  std::vector<verifier_row> rows;
  for_each_sampled_verifier([&]<class PartT>(const PartT& part, std::size_t) {
    rows.push_back({std::string(part.name), takes_paths<typename PartT::type>});
  });
  return rows;
}

}  // namespace bench
