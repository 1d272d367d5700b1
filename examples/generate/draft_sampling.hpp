// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/registry.hpp"
#include "espalier/sampling/sampler.hpp"

namespace generate {

//! What a method's trees are grown from. Options that no flag has set are the target's where trees are drawn, since verifiers
//! accept most where the two distributions are alike. At temperature 0, where such trees would be a chain, and for trees that
//! are chosen, the draft is at temperature 1.
inline espalier::sampling_options draft_sampling(const arguments& arguments, const std::string& method) {
  espalier::sampling_options sampling = arguments.draft;
  const espalier::sampling_options& target = arguments.target.sampling;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    const bool draws = !espalier::compatible(PartT::type::sampling, espalier::regime::deterministic);
    if (part.name != method || !draws || target.temperature == 0) return;
    espalier::for_each_option(sampling, [&](const auto& option, auto& value) {
      const std::vector<std::string>& set = arguments.draft_options;
      if (std::find(set.begin(), set.end(), option.name) == set.end()) value = target.*(option.member);
    });
  });
  return sampling;
}

}  // namespace generate
