// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/option.hpp"
#include "espalier/sampling/sampler.hpp"
#include "parts.hpp"

namespace generate {

//! The distribution that a method's trees are grown from. For drawn trees, options that no flag has set are the
//! target's, since verifiers accept most if the two distributions are alike. At temperature 0, where drawn trees would
//! be a chain, and for trees that are chosen, the draft is at temperature 1.
inline espalier::sampling_options draft_sampling(const arguments& arguments, const method& grown) {
  espalier::sampling_options sampling = arguments.draft;
  const espalier::sampling_options& target = arguments.target.text.sampling;
  if (!grown.draws() || target.temperature == 0) return sampling;
  espalier::for_each_option(sampling, [&](const auto& option, auto& value) {
    const std::vector<std::string>& set = arguments.draft_options;
    if (std::find(set.begin(), set.end(), option.name) == set.end()) value = target.*(option.member);
  });
  return sampling;
}

}  // namespace generate
