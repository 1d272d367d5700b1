// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

namespace espalier {

//! The reason why the tree of a round has no more nodes.
enum class tree_limit {
  none,            //!< no tree was grown: a step has read a part of a prompt
  policy,          //!< the policy wanted no more, by its shape or by what the draft said
  budget,          //!< the tree has as many nodes as the policy may draft
  last_token,      //!< one token is left to the text, and that one is the target's own
  context,         //!< the text has no more room in its context
  draft_capacity,  //!< the draft's cache has no more room
  not_drafting,    //!< the text is not drafted for: letting its drafter read it would cost more time than it gains
  pass_rows,       //!< only on the device: the text has used its equal share of the rows of the target's pass
  shared_rows,     //!< the rows of the target's pass went to other texts and prompts
  time,            //!< the target's pass may take no more time: see time_budget of a decoder's options
  price,           //!< more nodes would have cost more time than they gain, by the costs of passes
  pause,           //!< the policy does not draft for a while, since drafts have gained nothing lately
  processor,       //!< only on the host: the drafter proposed a run of tokens, and the processor forbids one of them;
                   //!< the tree ends before that token
  draft_error,     //!< only on the host: the draft gave numbers from which no token can be drawn, such as NaN, in this
                   //!< round or in one shortly before; its drafter rests for some rounds
};

//! Number of values of tree_limit.
inline constexpr std::size_t n_tree_limits = 14;

//! The limit as a word, for people and for metrics.
constexpr const char* to_string(tree_limit limit) {
  constexpr const char* words[n_tree_limits] = {"none",           "policy",       "budget",    "last-token",  "context",
                                                "draft-capacity", "not-drafting", "pass-rows", "shared-rows", "time",
                                                "price",          "pause",        "processor", "draft-error"};
  return words[static_cast<std::size_t>(limit)];
}

}  // namespace espalier
