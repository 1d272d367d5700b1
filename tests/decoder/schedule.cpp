// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"

using namespace espalier;
using namespace espalier::detail;

namespace {

constexpr seat ready{.is_ready = true};
constexpr seat idle{};

seat reads(std::int32_t n, std::int32_t n_passed_over = 0) {
  return {.n_unread = n, .n_passed_over = n_passed_over};
}
seat passed_over(seat s, std::int32_t n) {
  s.n_passed_over = n;
  return s;
}

// What a pass does, in words: the task of each seat ("round", "round+2" with two rows of its prompt, "read 5", "-", or
// "wait" where it found no room), then the rows that prompts may have.
std::string planned(const std::vector<seat>& seats, const pass_limits& limits) {
  std::vector<seat_task> tasks(seats.size());
  const pass_plan plan = plan_step(seats, limits, tasks);
  std::string said;
  std::int32_t n_rounds = 0;
  for (const seat_task& t : tasks) {
    if (t.kind == pass_task::round) {
      ++n_rounds;
      said += "round" + (t.n_rows > 0 ? "+" + std::to_string(t.n_rows) : "") + ", ";
    } else if (t.kind == pass_task::read) {
      said += "read " + std::to_string(t.n_rows) + ", ";
    } else {
      said += t.is_passed_over ? "wait, " : "-, ";
    }
  }
  CHECK(plan.n_rounds == n_rounds);
  CHECK(plan.n_lanes == lanes_of(n_rounds, limits.max_lanes));
  return said + std::to_string(plan.prefill_rows);
}

// As the host's: trees of ten nodes are whole.
constexpr pass_limits whole{.rows = 100, .prefill_rows = 40, .prefill_alone = 40, .max_chunks = 8, .max_nodes = 10};
// As the device's: trees are cut, rounds are padded.
constexpr pass_limits cut{.rows = 100,
                          .prefill_rows = 40,
                          .prefill_alone = 60,
                          .max_chunks = 2,
                          .max_nodes = 10,
                          .cuts_trees = true,
                          .max_lanes = 6,
                          .may_read_alone = false};

pass_limits with_rows(pass_limits limits, std::int32_t rows) {
  limits.rows = rows;
  return limits;
}

}  // namespace

TEST_CASE("a pass takes the rounds of all texts, and prompts get the rows that whole trees leave") {
  CHECK(planned({}, whole) == "0");
  CHECK(planned({idle}, whole) == "-, 0");
  CHECK(planned({ready, ready}, whole) == "round, round, 0");
  CHECK(planned({ready, reads(25), reads(30)}, whole) == "round, read 25, read 15, 40");
  CHECK(planned({reads(25), reads(30)}, whole) == "read 25, read 15, 40");
  CHECK(planned({ready, ready, reads(70)}, with_rows(whole, 40)) == "round, round, read 18, 18");
  // A text that is not drafted for takes one row.
  CHECK(planned({{.is_ready = true, .is_drafted_for = false}, reads(70)}, with_rows(whole, 20)) ==
        "round, read 19, 19");
}

TEST_CASE("what a round takes of its prompt counts as reading, unless a store has dropped it of the last round") {
  constexpr seat few{.is_ready = true, .n_unread = 10}, many{.is_ready = true, .n_unread = 11};
  CHECK(planned({few, reads(50)}, whole) == "round+10, read 40, 40");
  CHECK(planned({many, reads(50)}, whole) == "round+11, read 29, 29");
  // Where the rows for prompts are gone, the next one reads a part.
  constexpr seat most{.is_ready = true, .n_unread = 30};
  CHECK(planned({most, most}, whole) == "round+30, read 10, 10");
}

TEST_CASE("rounds whose whole trees find no room wait, and come first in the next pass, whoever waited longer before") {
  const pass_limits two = with_rows(whole, 25);
  CHECK(planned({ready, ready, ready}, two) == "round, round, wait, 0");
  CHECK(planned({ready, ready, passed_over(ready, 1)}, two) == "round, wait, round, 0");
  CHECK(planned({passed_over(ready, 1), passed_over(ready, 2), passed_over(ready, 3)}, two) == "wait, round, round, 0");
  // Of many texts none waits for more than three passes.
  std::vector<seat> seats(5, ready);
  for (int pass = 0; pass < 50; ++pass) {
    std::vector<seat_task> tasks(5);
    CHECK(plan_step(seats, two, tasks).n_rounds == 2);
    for (std::size_t i = 0; i < 5; ++i) {
      seats[i].n_passed_over = tasks[i].is_passed_over ? seats[i].n_passed_over + 1 : 0;
      CHECK(seats[i].n_passed_over <= 3);
    }
  }
}

TEST_CASE("prompts that rounds leave no row have a pass of their own where limits say so") {
  pass_limits full = with_rows(whole, 22);
  CHECK(planned({ready, ready, reads(50)}, full) == "wait, wait, read 22, 22");
  full.may_read_alone = false;
  CHECK(planned({ready, ready, reads(50)}, full) == "round, round, wait, 0");
  // Less than a quarter of the rows that prompts want is as little as none.
  full.may_read_alone = true;
  CHECK(planned({ready, ready, reads(50)}, with_rows(full, 23)) == "wait, wait, read 23, 23");
  CHECK(planned({ready, ready, reads(50)}, with_rows(full, 31)) == "round, round, read 9, 9");
  CHECK(planned({ready, ready, reads(4)}, with_rows(full, 23)) == "round, round, read 1, 1");
  // It is the rows of the pass that count: here rounds read all that may be read beside them.
  constexpr seat tail{.is_ready = true, .n_unread = 20};
  CHECK(planned({tail, tail, reads(50), ready}, with_rows(whole, 1000)) == "round+20, round+20, wait, round, 0");
}

TEST_CASE("prompts are read as they stand, whoever has waited, and rounds do not read before them") {
  CHECK(planned({reads(50), reads(30, 1)}, whole) == "read 40, wait, 40");
  constexpr seat tail{.is_ready = true, .n_unread = 30};
  CHECK(planned({reads(50), tail}, whole) == "read 40, wait, 40");
  CHECK(planned({reads(5), tail}, whole) == "read 5, round+30, 10");
  CHECK(planned({tail, reads(50)}, whole) == "round+30, read 10, 10");
  // A long prompt is read at the rows of its pass, however many short ones arrive after it.
  std::vector<seat> seats{reads(4000)};
  std::vector<seat_task> tasks;
  int steps = 0;
  for (; seats[0].n_unread > 0; ++steps) {
    seats.resize(8, reads(39));
    tasks.resize(seats.size());
    plan_step(seats, whole, tasks);
    for (std::size_t i = 0; i < seats.size(); ++i) {
      seats[i].n_unread -= tasks[i].n_rows;
      seats[i].n_passed_over = tasks[i].is_passed_over ? seats[i].n_passed_over + 1 : 0;
    }
    for (std::size_t i = seats.size(); i-- > 1;) {
      if (seats[i].n_unread == 0) seats.erase(seats.begin() + static_cast<std::ptrdiff_t>(i));
    }
    REQUIRE(steps < 1000);
  }
  CHECK(steps == 100);
}

TEST_CASE("trees that are cut leave prompts a quarter of the pass, but never their last tokens and a node") {
  CHECK(planned({ready, ready, reads(70)}, cut) == "round, round, read 40, 40");
  // Three rounds have the rows of four.
  CHECK(planned({ready, ready, ready, reads(70)}, with_rows(cut, 60)) == "round, round, round, read 16, 16");
  CHECK(planned({ready, ready, ready, reads(70)}, with_rows(cut, 50)) == "round, round, round, read 12, 12");
  CHECK(planned({ready, ready, reads(70)}, with_rows(cut, 5)) == "round, round, read 1, 1");
  CHECK(planned({ready, ready, reads(70)}, with_rows(cut, 4)) == "round, round, wait, 0");
  // Rounds go on without trees, however few the rows are; five are padded to all six.
  CHECK(planned(std::vector<seat>(5, ready), with_rows(cut, 6)) == "round, round, round, round, round, 0");
  // At most two prompts are read beside rounds, and any number alone.
  CHECK(planned({ready, reads(5), reads(6), reads(7)}, cut) == "round, read 5, read 6, wait, 40");
  CHECK(planned({reads(5), reads(6), reads(70)}, cut) == "read 5, read 6, read 49, 60");
  // Without trees no node is left to them.
  pass_limits plain = with_rows(cut, 4);
  plain.max_nodes = 0;
  CHECK(planned({ready, ready, reads(70)}, plain) == "round, round, read 2, 2");
}

TEST_CASE("rows are never given twice, and somebody gets on in every pass, whatever the seats") {
  std::uint32_t state = 1;
  const auto up_to = [&](std::uint32_t n) {
    state = state * 1664525 + 1013904223;
    return static_cast<std::int32_t>((state >> 8) % (n + 1));
  };
  for (int i = 0; i < 20000; ++i) {
    pass_limits limits = up_to(1) == 0 ? whole : cut;
    limits.max_nodes = up_to(12);
    limits.rows = (std::max)(limits.max_nodes + 1, limits.max_lanes) + up_to(60);
    limits.prefill_rows = 1 + up_to(30);
    limits.prefill_alone = limits.prefill_rows + up_to(30);
    limits.may_read_alone = up_to(1) == 0;
    std::vector<seat> seats(static_cast<std::size_t>(up_to(5)));
    for (seat& s : seats) {
      const bool is_ready = up_to(1) == 0;
      // Rows that a round takes with it fit into a pass with its tree.
      const std::int32_t most = is_ready ? (std::min)(limits.prefill_rows, limits.rows - limits.max_nodes) - 1 : 90;
      s = {is_ready, limits.max_lanes > 0 && is_ready ? 0 : up_to(static_cast<std::uint32_t>(most)), up_to(3) > 0,
           up_to(2)};
    }
    std::vector<seat_task> tasks(seats.size());
    const pass_plan plan = plan_step(seats, limits, tasks);
    std::int32_t rows = 0, n_prompt_rows = 0, chunks = 0;
    bool any = false, could = false;
    for (std::size_t k = 0; k < seats.size(); ++k) {
      const seat& s = seats[k];
      could = could || s.is_ready || s.n_unread > 0;
      any = any || tasks[k].kind != pass_task::none;
      if (tasks[k].kind == pass_task::round) {
        REQUIRE(s.is_ready);
        REQUIRE(tasks[k].n_rows == s.n_unread);
        rows += 1 + s.n_unread + (s.is_drafted_for && !limits.cuts_trees ? limits.max_nodes : 0);
        REQUIRE(!tasks[k].is_passed_over);
      } else if (tasks[k].kind == pass_task::read) {
        REQUIRE(tasks[k].n_rows > 0);
        REQUIRE(tasks[k].n_rows <= s.n_unread);
        rows += tasks[k].n_rows;
        n_prompt_rows += tasks[k].n_rows;
        ++chunks;
      } else {
        REQUIRE(tasks[k].is_passed_over == (s.is_ready || s.n_unread > 0));
      }
    }
    REQUIRE(rows + (plan.n_lanes - plan.n_rounds) <= limits.rows);
    REQUIRE(n_prompt_rows <= plan.prefill_rows);
    if (plan.n_rounds > 0) REQUIRE(chunks <= limits.max_chunks);
    REQUIRE(any == could);
  }
}

TEST_CASE("a text waits for the one before it that computes full pages of what both begin with") {
  const std::vector<token_id> a{1, 2, 3, 4, 5, 6, 7, 8, 9}, b{1, 2, 3, 4, 5, 6, 7, 0}, c{1, 2};
  const reading text{.tokens = b, .n_held = 0};
  CHECK(waits_for(text, {.tokens = a, .n_held = 0, .has_begun = true}, 4));
  CHECK(waits_for(text, {.tokens = a, .n_held = 3, .has_begun = true}, 4));
  CHECK(!waits_for(text, {.tokens = a, .n_held = 4, .has_begun = true}, 4));  // a second page is not common
  CHECK(waits_for(text, {.tokens = a, .n_held = 4, .has_begun = true}, 3));
  CHECK(waits_for(text, {.tokens = a, .n_held = 6, .has_begun = true}, 1));
  CHECK(!waits_for(text, {.tokens = a, .n_held = 7, .has_begun = true}, 1));
  CHECK(!waits_for(text, {.tokens = c, .n_held = 0, .has_begun = true}, 4));  // no full page
  // The other's drafter is about to read a page, too.
  CHECK(waits_for(text, {.tokens = a, .n_held = 4, .n_draft_unread = 4, .has_begun = true}, 4));
  CHECK(!waits_for(text, {.tokens = a, .n_held = 4, .n_draft_unread = 3, .has_begun = true}, 4));
  // One that waits itself will compute what this one has not found.
  CHECK(waits_for(text, {.tokens = a, .n_held = 0}, 4));
  CHECK(!waits_for({.tokens = b, .n_held = 4}, {.tokens = a, .n_held = 0}, 4));
  // The last token is never read before a round.
  const std::vector<token_id> whole_text{1, 2, 3, 4};
  CHECK(!waits_for({.tokens = whole_text}, {.tokens = a, .n_held = 0, .has_begun = true}, 4));
  // The last token of the other one is read with its round: nobody waits for it, nor for rows that are held already.
  const std::vector<token_id> begun{1, 2, 3, 4, 5};
  CHECK(!waits_for({.tokens = a}, {.tokens = begun, .n_held = 4, .has_begun = true}, 1));
  CHECK(!waits_for({.tokens = a, .n_held = 4}, {.tokens = begun, .n_held = 2, .has_begun = true}, 1));
}

TEST_CASE("where pages have run out, as many texts have places as were left, and more once texts have ended") {
  seat_limit seats{.n_places = 64};
  CHECK(seats.most == 64);
  seats.end();
  CHECK(seats.most == 64);
  seats.run_out(20);
  CHECK(seats.most == 20);
  // An eighth as many end, and no pages run out: it grows by one and a sixteenth.
  const auto end = [&](int n) {
    for (int i = 0; i < n; ++i)
      seats.end();
    return seats.most;
  };
  CHECK(end(2) == 20);
  CHECK(end(1) == 22);
  CHECK(end(2) == 22);
  CHECK(end(1) == 24);
  // What has ended before counts no longer.
  CHECK(end(2) == 24);
  seats.run_out(17);
  CHECK(end(2) == 17);
  CHECK(end(1) == 19);
  seats.run_out(3);
  CHECK(end(1) == 4);
  CHECK(end(4) == 8);
  CHECK(end(1) == 9);
  CHECK(end(1) == 9);
  CHECK(end(1) == 10);
  seats.run_out(0);
  CHECK(seats.most == 1);
  CHECK(end(100) > 16);
  CHECK(end(1000) == 64);
}
