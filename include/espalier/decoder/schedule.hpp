// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/token.hpp"

//! Plans the next step of a batch, as a pure function of lengths, turns and limits: the batch decoders of host and
//! device both ask plan_step(), and do what it says. seat_limit says how many texts may be served at once.
namespace espalier::detail {

// The part that a text has in a pass of the target.
enum class pass_task {
  none,
  read,   // a part of its prompt
  round,  // its tree, and the tokens before the tree that the cache lacks
};

// A text that has a place, as plan_step() sees it: all that the next pass depends on.
struct seat {
  bool is_ready = false;           // a round may begin
  std::int32_t n_unread = 0;       // tokens that the target has still to read: together with the round if one may
                                   // begin, else before it
  bool is_drafted_for = true;      // whether its rounds get a tree of drafted tokens
  std::int32_t n_passed_over = 0;  // number of consecutive passes, the latest ones, that had no room for the text
};

// Rows and texts that a pass of the target has room for.
struct pass_limits {
  std::int32_t rows = 0;           // in all
  std::int32_t prefill_rows = 0;   // for prompts, beside rounds
  std::int32_t prefill_alone = 0;  // for prompts where no round is in the pass
  std::int32_t max_chunks = 0;     // prompts that are read beside rounds
  std::int32_t max_nodes = 0;      // drafted tokens of a whole tree
  bool cuts_trees = false;         // trees may have fewer drafted tokens, down to none
  std::int32_t max_lanes = 0;      // the number of rounds is padded to a power of two, or to this; 0: it is not
  bool may_read_alone = true;      // prompts may have the pass where rounds leave them no row, or too few
};

// The part that a text has in the pass that was planned.
struct seat_task {
  pass_task kind = pass_task::none;
  std::int32_t n_rows = 0;      // tokens that the pass reads of the text: a part of its prompt, or, with a round, what
                                // the cache lacks before the last token
  bool is_passed_over = false;  // the text could have done something, but found no room
};

// The pass that was planned, for all texts together.
struct pass_plan {
  std::int32_t n_rounds = 0;
  std::int32_t n_lanes = 0;       // n_rounds, padded
  std::int32_t prefill_rows = 0;  // rows that parts of prompts may have; 0 if no text reads its prompt

  bool operator==(const pass_plan&) const = default;
};

// Returns n rounds padded to a power of two, or to max_lanes if that is less; n if max_lanes is 0.
inline std::int32_t lanes_of(std::int32_t n, std::int32_t max_lanes) {
  if (max_lanes <= 0 || n == 0) return n;
  std::int32_t lanes = 1;
  while (lanes < n)
    lanes *= 2;
  return (std::min)(lanes, max_lanes);
}

// Calls f(i) for each seat i: first for the seats that were passed over most often, among equals in the order of the
// span.
template <class FunctionT>
void for_each_in_turn(std::span<const seat> seats, const FunctionT& f) {
  for (std::int32_t above = 1 << 30;;) {
    std::int32_t most = -1;
    for (const seat& s : seats)
      most = s.n_passed_over < above ? (std::max)(most, s.n_passed_over) : most;
    if (most < 0) return;
    for (std::size_t i = 0; i < seats.size(); ++i) {
      if (seats[i].n_passed_over == most) f(i);
    }
    above = most;
  }
}

// Gives out the rows of the next pass: tasks[i] is what seats[i] does. The seats stand in the order of their turns.
//
// Rounds come first. Each has its last token, the tokens that its cache lacks and a whole tree; where trees may be cut,
// the tree may be smaller, or missing. A round that finds no room waits for the next pass, and then comes before rounds
// that did not wait. Prompts get the rows that whole trees leave, limits.prefill_rows at most; where trees may be cut,
// a quarter of the pass if that is more, but a node is left to each tree. Prompts are read in the order of the seats.
// If rounds leave them no row, or less than a quarter of the rows that they want, and limits.may_read_alone is set, the
// whole pass goes to prompts, and rounds wait.
//
// A round that takes more of its prompt with it than a tree has nodes counts as the reading of a prompt: the prompts of
// seats before its own come first.
//
// Shapes      tasks [seats]
// Complexity  O(seats) for each different value of n_passed_over; O(seats^2) if many rounds take much of their prompts
//             with them
inline pass_plan plan_step(std::span<const seat> seats, const pass_limits& limits, std::span<seat_task> tasks) {
  std::fill(tasks.begin(), tasks.end(), seat_task());
  const std::int32_t least_tree = limits.cuts_trees ? 0 : limits.max_nodes;
  pass_plan plan;
  // Whether a seat has so much to read that it reads its prompt in parts, if it has no round.
  const auto reads = [&](std::size_t i) {
    return tasks[i].kind != pass_task::round && seats[i].n_unread > (seats[i].is_ready ? limits.max_nodes : 0);
  };
  // Rows that the readers before seat i still want, at most `most`.
  const auto wanted_before = [&](std::size_t i, std::int32_t most) {
    std::int32_t n = 0;
    for (std::size_t j = 0; j < i && n < most; ++j)
      n += reads(j) ? (std::min)(seats[j].n_unread, most) : 0;
    return (std::min)(n, most);
  };
  // Rows of rounds, with the least trees and with whole trees; rows that are left to prompts.
  std::int32_t taken = 0, whole = 0, prefill = limits.prefill_rows;
  for_each_in_turn(seats, [&](std::size_t i) {
    const seat& s = seats[i];
    const std::int32_t of_prompt = s.n_unread > limits.max_nodes ? s.n_unread : 0;
    if (!s.is_ready || (of_prompt > 0 && of_prompt > prefill - wanted_before(i, prefill))) return;
    const std::int32_t lanes = lanes_of(plan.n_rounds + 1, limits.max_lanes), more = lanes - plan.n_lanes;
    const std::int32_t n = s.n_unread + more * (1 + (s.is_drafted_for ? least_tree : 0));
    if (taken + n > limits.rows) return;
    taken += n;
    whole += s.n_unread + more * (1 + (s.is_drafted_for ? limits.max_nodes : 0));
    prefill -= of_prompt;
    ++plan.n_rounds;
    plan.n_lanes = lanes;
    tasks[i] = {pass_task::round, s.n_unread};
  });
  const std::int32_t alone = (std::min)(limits.prefill_alone, limits.rows);
  const std::int32_t wanted = wanted_before(seats.size(), alone);
  std::int32_t max_chunks = limits.max_chunks;
  bool reads_alone = wanted > 0 && plan.n_rounds == 0;
  if (wanted > 0 && plan.n_rounds > 0) {
    const std::int32_t kept = limits.cuts_trees && limits.max_nodes > 0 ? plan.n_lanes : 0;
    const std::int32_t share = (std::max)(limits.rows - whole, limits.cuts_trees ? limits.rows / 4 : 0);
    const std::int32_t beside = (std::max)(std::int32_t{0}, (std::min)(share, limits.rows - taken - kept));
    plan.prefill_rows = (std::min)(prefill, beside);
    reads_alone = limits.may_read_alone && (beside == 0 || beside < wanted / 4);
  }
  if (reads_alone) {
    std::fill(tasks.begin(), tasks.end(), seat_task());
    plan = {0, 0, alone};
    max_chunks = static_cast<std::int32_t>(seats.size());
  }
  std::int32_t left = plan.prefill_rows;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (reads(i) && left > 0 && max_chunks > 0) {
      tasks[i] = {pass_task::read, (std::min)(seats[i].n_unread, left)};
      left -= tasks[i].n_rows;
      --max_chunks;
    }
    tasks[i].is_passed_over = tasks[i].kind == pass_task::none && (seats[i].is_ready || seats[i].n_unread > 0);
  }
  return plan;
}

// The number of texts that may have places at once: all places, until pages run out. It then falls to the number of
// texts that keep their places, so that these can go on. Each time that an eighth of that many texts have ended, the
// number grows by one and a sixteenth of itself, up to all places.
struct seat_limit {
  std::int32_t n_places = 0;
  std::int32_t most = n_places;  // texts that may have places, at least one
  std::int32_t n_ended = 0;      // texts that have ended since `most` changed

  // Notes that pages have run out, and that n_left texts keep their places.
  void run_out(std::int32_t n_left) {
    most = (std::max)(std::int32_t{1}, n_left);
    n_ended = 0;
  }
  // Notes that a text has ended.
  void end() {
    if (++n_ended < (most + 7) / 8) return;
    most = (std::min)(n_places, most + 1 + most / 16);
    n_ended = 0;
  }
};

// A text that has a place, as waits_for() sees it: all that decides whether other texts may begin with its rows.
struct reading {
  std::span<const token_id> tokens;
  std::int32_t n_held = 0;          // leading tokens whose rows the target's cache has
  std::int32_t n_draft_unread = 0;  // tokens that its drafter has still to read
  bool has_begun = false;           // the text waits for nobody's rows
};

// True if a text is to wait for another text, which goes before it, because both begin with the same full pages of
// rows: while the text lacks these rows and the other text is about to compute them, or while the other text's drafter
// still has a page or more to read.
inline bool waits_for(const reading& text, const reading& other, std::int32_t page_size) {
  const auto common =
      std::mismatch(text.tokens.begin(), text.tokens.end(), other.tokens.begin(), other.tokens.end()).first -
      text.tokens.begin();
  // The last token of a text is read only in a round.
  const auto most = (std::min)({common, std::ssize(text.tokens) - 1, std::ssize(other.tokens) - 1});
  const std::int32_t shared = static_cast<std::int32_t>(most) / page_size * page_size;
  if (!other.has_begun) return shared > text.n_held;
  return (shared > text.n_held && other.n_held < shared) || (shared > 0 && other.n_draft_unread >= page_size);
}

}  // namespace espalier::detail
