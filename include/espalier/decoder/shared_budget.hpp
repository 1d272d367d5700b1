// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier::detail {

// The budget that the texts of a batch_decoder share in a round, where their policy can; nothing where it cannot.
template <class PolicyT, class DrafterT>
class shared_budget {
  using part = part_type<DrafterT, 0>;
  static constexpr bool exists =
      BudgetedPolicy<PolicyT> && n_parts<DrafterT> == 1 && (StepDrafter<part> || SequenceDrafter<part>);

 public:
  using type = typename std::conditional_t<exists, budget_of<PolicyT>, std::type_identity<no_budget>>::type;

  shared_budget(const PolicyT& policy, bool shares) : budget_(first(policy)), shares_(shares) {}

  // Null where nothing is shared.
  type* get() { return shares_ ? &budget_ : nullptr; }

  void begin(std::int32_t n_texts, std::int32_t context, std::int32_t n_reading, std::int32_t n_prompt_rows) {
    if constexpr (exists) budget_.begin(n_texts, context, n_reading, n_prompt_rows);
  }
  // Whether `unread` tokens of a text are worth reading to its drafter, beside n_texts - 1 others.
  bool worth_reading(std::int32_t n_texts, const text& t, std::int32_t unread) const {
    if constexpr (exists) {
      if (shares_ && unread > 0 && t.left() > 0) return budget_.worth_reading(n_texts, t.size(), unread, t.left());
    }
    return true;
  }
  void end() {
    if constexpr (exists) budget_.end();
  }

 private:
  static type first(const PolicyT& policy) {
    if constexpr (exists)
      return policy.budget();
    else
      return {};
  }

  type budget_;
  bool shares_;
};

}  // namespace espalier::detail
