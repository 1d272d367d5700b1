// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

namespace models {

//! Counts of what drafts have brought in texts that were replayed.
struct replayed {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;   //!< written in these rounds, the target's own included
  std::int64_t drafted = 0;  //!< nodes of all trees

  double tokens_per_round() const { return rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(rounds) : 0; }
};

//! Adds to `sum` the rounds in which a target would write a text after its first n_prompt tokens, if it wrote just this
//! text: what the drafter and the policy propose is accepted as far as the text goes that way. No model is asked.
//!
//! Pre         1 <= n_prompt <= text.size(); the drafter has room for the text, and policies that need costs have them
template <class DrafterT, class PolicyT>
void replay(DrafterT& drafter, PolicyT& policy, std::span<const espalier::token_id> text, std::size_t n_prompt,
            replayed& sum) {
  drafter.reserve(espalier::most_asked(policy));
  drafter.begin(text.first(n_prompt));
  espalier::tree<> tree(espalier::most_asked(policy));
  espalier::philox_chance chance(0, 0, 0);
  for (std::size_t i = n_prompt; i < text.size();) {
    tree.reset(text[i - 1]);
    for (auto wanted = policy.begin(tree); !wanted.empty();)
      wanted = policy.take(tree, espalier::ask(drafter, tree.view(), wanted, policy.max_nodes()), chance);
    espalier::node_id accepted = espalier::root_node;
    for (; i + 1 < text.size(); ++i) {
      const espalier::node_id next = tree.view().find_child(accepted, text[i]);
      if (next == espalier::no_node) break;
      accepted = next;
    }
    const espalier::verdict v{accepted, text[i++]};
    drafter.commit(tree.view(), v);
    policy.observe(tree.view(), v);
    ++sum.rounds;
    sum.tokens += tree.view().depth[accepted] + 1;
    sum.drafted += tree.size() - 1;
  }
}

}  // namespace models
