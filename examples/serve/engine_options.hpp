// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "espalier/core/option.hpp"
#include "rule_options.hpp"

namespace serve {

//! The kind of trees that are drafted.
enum class policy_kind { cost_aware, dynatree, chain };

}  // namespace serve

namespace espalier {

template <>
inline constexpr auto known_values<serve::policy_kind> = std::array{
    known_value<serve::policy_kind>{serve::policy_kind::cost_aware, "cost-aware", "trees as large as pays here"},
    known_value<serve::policy_kind>{serve::policy_kind::dynatree, "dynatree", "trees by the draft's confidence"},
    known_value<serve::policy_kind>{serve::policy_kind::chain, "chain", "five tokens, one after the other"}};

}  // namespace espalier

namespace serve {

struct engine_options {
  policy_kind policy = policy_kind::cost_aware;
  std::string costs;  //!< file of the costs of passes, for cost_aware; empty: measured
  std::int32_t max_texts = 8;
  std::int32_t max_waiting = 256;
  std::int32_t prefill_rows = 64;
  std::int32_t cache_tokens = 0;
  std::int32_t memory = 0;
  std::string memory_file;  //!< where the memory is kept from one run to the next; empty: nowhere
  rule_options rules;

  static constexpr void describe(auto see) {
    using self = engine_options;
    using espalier::option;
    see(option{"policy", &self::policy, "what is drafted"});
    see(option{"max_texts", &self::max_texts, "texts that are written at once", 1, 1024});
    see(option{"max_waiting", &self::max_waiting, "texts that may wait for a place; more are refused with 429", 0,
               1 << 20});
    see(option{"prefill_rows", &self::prefill_rows, "tokens of prompts that a pass reads", 1, 4096});
    see(option{"cache_tokens", &self::cache_tokens, "tokens that the cache holds; 0: the whole context of every text",
               0, 1 << 30});
    see(option{"memory", &self::memory,
               "without a draft model, tokens of all clients' texts that other texts are drafted from, 770 bytes "
               "each; 0: none. Who measures times can then learn that a text was written before",
               0, 1 << 24});
  }
};

}  // namespace serve
