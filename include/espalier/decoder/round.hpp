// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/log_probs.hpp"

namespace espalier {

//! Seconds that a round spent in each station, in the order of the data flow.
struct station_seconds {
  double draft_forward = 0;   //!< passes of the draft model, if the drafter tells them (forward_seconds()); for passes
                              //!< that run beside the target's, only the time that the round waited for them
  double grow = 0;            //!< the rest of drafting: sampling draft rows, growing the tree
  double compile = 0;         //!< order, masks, forward batch, cache slots
  double target_forward = 0;  //!< passes of the target model, prefill included
  double verify = 0;          //!< sampling target rows, accepting a path
  double commit = 0;          //!< cache, drafter, policy, stop conditions
  double on_device = 0;       //!< a round on a device, all of it: the host does not see its stations

  double total() const { return draft_forward + grow + compile + target_forward + verify + commit + on_device; }
  //! Seconds outside forward passes, without on_device, whose parts are not known.
  double overhead() const { return grow + compile + verify + commit; }

  station_seconds& operator+=(const station_seconds& other) {
    draft_forward += other.draft_forward, grow += other.grow, compile += other.compile;
    target_forward += other.target_forward, verify += other.verify, commit += other.commit;
    on_device += other.on_device;
    return *this;
  }
};

//! Record of one step: of a round, or of the reading of a part of the prompt, where nothing is committed. Views are
//! valid until the next step or text.
struct round_record {
  std::int32_t index = 0;                 //!< number of the round since the text began or was resumed
  tree_view tree{};                       //!< as drafted
  verdict decision{};                     //!< as committed, that is, cut where the text stops
  std::span<const token_id> committed{};  //!< tokens of the accepted path without the root, then one more token
  std::int32_t forwarded_rows = 0;        //!< rows of the target's pass: the pending tokens and the drafted ones, or a
                                          //!< part of the prompt
  std::span<const scored_token>
      log_probs{};           //!< the tokens in `committed` with their log-probabilities, if text_options::log_probs
                             //!< asks for them; in a step that read a part of the prompt and if prompt_log_probs asks
                             //!< for them, the token after each token that was read
  std::string_view shown{};  //!< the text's new bytes, less what may be the beginning of a stop string
  station_seconds seconds{};
  status state = status::running;
  tree_limit limited_by = tree_limit::none;  //!< why the tree has no more nodes
  bool drafted_ahead = false;                //!< whether the tree was drafted during the target's pass of the round
                                             //!< before: see ahead

  //! Draft tokens on the accepted path: all that was committed but the last token.
  std::int32_t accepted() const { return committed.empty() ? 0 : static_cast<std::int32_t>(committed.size()) - 1; }
};

//! A function that is told about every round after its commit: for streaming text, statistics, pictures. A caller of
//! step() may also tell it about steps that have read a part of a prompt and committed nothing; generate() does not.
//!
//! Minimal definition
//!   observer(const round_record&)
//! Models
//!   statistics, tree_recorder, any lambda
template <class ObserverT>
concept Observer = std::invocable<ObserverT&, const round_record&>;

//! Returns an observer that tells several others, in order. It keeps them by reference.
template <Observer... ObserversT>
auto observe_all(ObserversT&... observers) {
  return [&observers...](const round_record& r) { (observers(r), ...); };
}

namespace detail {

// Sizes that the memory of a served_text is made for.
struct served_sizes {
  std::int32_t max_nodes;     // drafted tokens of a round
  std::int32_t max_asked;     // nodes of a tree while it grows, from which a policy may choose the drafted ones
  std::int32_t max_pending;   // tokens of the text that a round's pass takes beside the drafted ones
  std::int32_t prefill_rows;  // tokens of a prompt that a pass takes
  std::int32_t vocab;
  bool keeps_draft_rows = false;  // the verifier needs the draft's rows while the next round is drafted
};

// The room that the tree of a round had, by what a text, its caches and its policy allow.
struct tree_room {
  bool is_drafted_for = true;
  std::int32_t left = 0;     // tokens that the text may still have
  std::int32_t context = 0;  // nodes that its context has room for
  std::int32_t draft = 0;    // nodes that the draft's cache has room for
  std::int32_t budget = 0;   // nodes that the policy may draft
  // Nodes that the target's pass has time for.
  std::int32_t time = (std::numeric_limits<std::int32_t>::max)();
};

// Returns why a tree of n drafted nodes is not larger: the limit in `room` that it has met, else `otherwise`.
inline tree_limit limit_of(std::int32_t n, const tree_room& room, tree_limit otherwise) {
  if (room.budget <= 0) return tree_limit::policy;
  if (room.left <= 1) return tree_limit::last_token;
  if (!room.is_drafted_for) return otherwise;
  const std::int32_t cached = (std::min)(room.context, room.draft);
  if (n >= (std::min)(cached, room.time) && (std::min)(cached, room.time) < room.budget) {
    if (room.time < cached) return tree_limit::time;
    return room.draft < room.context ? tree_limit::draft_capacity : tree_limit::context;
  }
  return n >= room.budget ? tree_limit::budget : otherwise;
}

}  // namespace detail

//! The number of a text among those of a batch_decoder: 0, 1, 2, ... in the order in which they were added.
using text_id = std::int64_t;

//! Record of one text in a step of a batch_decoder. Views are valid until the next step, or until the text is resumed
//! or cancelled.
struct text_event {
  text_id id = -1;
  round_record round{};        //!< its seconds are 0: step_record has them
  std::exception_ptr error{};  //!< exception of a part: the text waits at its last committed token until resume().
                               //!< Null in a program without exceptions
  std::string message{};       //!< sentence of the error, also without exceptions; empty where there is none

  //! Whether a part has failed.
  bool failed() const { return !message.empty(); }
};

//! Record of one step of a batch_decoder, all its texts together.
struct step_record {
  std::int32_t rounds = 0;        //!< rounds that were made, one for each text that was written
  std::int32_t committed = 0;     //!< tokens that were committed
  std::int32_t drafted = 0;       //!< draws in the trees sent to the target
  std::int32_t draft_passes = 0;  //!< passes of all drafters that share passes
  std::int32_t target_rows = 0;   //!< rows of the target's pass, prompts included
  std::int32_t prompt_rows = 0;   //!< rows of prompts, without those that a round takes with it
  std::int32_t preempted = 0;     //!< texts that gave up their place because pages had run out
  station_seconds seconds{};
};

}  // namespace espalier
