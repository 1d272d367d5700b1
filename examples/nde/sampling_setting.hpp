// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/sampling/sampler.hpp"

namespace nde {

//! The samplings of the paper: six temperatures, and temperature 1 with two values of top-p.
//!
//! Source      Delayed tree expansion, section 4
inline const std::vector<std::string> paper_samplings = {"0.2", "0.4", "0.6", "0.8", "1", "1.2", "1:0.9", "1:0.99"};

//! The sampling written as TEMPERATURE or TEMPERATURE:TOP_P.
//!
//! Errors      input_error for other text; option_error for numbers out of range
inline espalier::sampling_options parse_sampling(const std::string& text) {
  const auto number = [&](const std::string& part) {
    char* end = nullptr;
    const float value = std::strtof(part.c_str(), &end);
    if (part.empty() || *end != '\0') {
      espalier::raise<espalier::input_error>("\"", text,
                                             "\" is no sampling: that is a temperature, or a temperature, a colon "
                                             "and a top-p, as 0.6 or 1:0.9.");
    }
    return value;
  };
  const std::size_t colon = text.find(':');
  espalier::sampling_options sampling{.temperature = number(text.substr(0, colon))};
  if (colon != std::string::npos) sampling.top_p = number(text.substr(colon + 1));
  espalier::sampler<float> checked(sampling);
  return checked.options();
}

inline std::string in_words(const espalier::sampling_options& sampling) {
  if (sampling.top_p == 1.0F) return fmt::format("{:g}", sampling.temperature);
  return fmt::format("{:g}:{:g}", sampling.temperature, sampling.top_p);
}

}  // namespace nde
