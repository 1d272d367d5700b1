// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"

namespace serve {

//! Limits of the memory and time that the rules of requests, such as schemas, may take.
struct rule_options {
  std::int32_t rule_memory = 256;  //!< MiB of all rules together; each may take a quarter
  std::int32_t rule_seconds = 2;   //!< seconds of one processor for a request, and 1/20 s more for each mask

  static constexpr void describe(auto see) {
    using self = rule_options;
    using espalier::option;
    see(option{"rule_memory", &self::rule_memory, "MiB for the rules of texts, each of which may take a quarter", 16,
               1 << 20});
    see(option{"rule_seconds", &self::rule_seconds,
               "seconds of a processor that the rule of a request may take, and 1/20 more for each token", 1, 3600});
  }
};

}  // namespace serve
