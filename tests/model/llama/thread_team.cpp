// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/thread_team.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "catch.hpp"

using espalier::thread_team;

TEST_CASE("every thread of a team runs once a run, and barriers hold") {
  for (const int n : {1, 2, 3, 5}) {
    thread_team team(n);
    REQUIRE(team.n_threads() == n);
    std::vector<int> runs(static_cast<std::size_t>(n)), seen(static_cast<std::size_t>(n));
    for (int round = 1; round <= 200; ++round) {
      team.run([&](int thread) {
        const auto t = static_cast<std::size_t>(thread);
        ++runs[t];
        team.barrier();
        int total = 0;
        for (const int r : runs)
          total += r;
        seen[t] = total;
        team.barrier();
      });
      for (const int total : seen)
        REQUIRE(total == round * n);
    }
  }
}

TEST_CASE("a team that slept runs again") {
  thread_team team(2);
  std::atomic<int> runs{0};
  for (int round = 0; round < 3; ++round) {
    team.run([&](int) { ++runs; });
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  CHECK(runs == 6);
}

TEST_CASE("runs from several callers come one after another") {
  thread_team team(2);
  int inside = 0;
  bool overlapped = false;
  const auto caller = [&] {
    for (int i = 0; i < 200; ++i) {
      team.run([&](int thread) {
        if (thread == 0) overlapped = overlapped || ++inside != 1;
        team.barrier();
        if (thread == 0) --inside;
      });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  CHECK_FALSE(overlapped);
}

TEST_CASE("tickets are given once each") {
  thread_team team(3);
  std::vector<std::atomic<int>> taken(1000);
  team.run([&](int thread) {
    if (thread == 0) team.reset_tickets();
    team.barrier();
    for (int ticket = team.next_ticket(); ticket < 1000; ticket = team.next_ticket()) {
      ++taken[static_cast<std::size_t>(ticket)];
    }
  });
  for (const auto& times : taken)
    REQUIRE(times == 1);
}

TEST_CASE("teams are shared by size, and sizes out of range are refused") {
  CHECK(&thread_team::shared(2) == &thread_team::shared(2));
  CHECK(&thread_team::shared(2) != &thread_team::shared(1));
  CHECK(&thread_team::shared(2, true) != &thread_team::shared(2));
  CHECK(&thread_team::shared(2, true) == &thread_team::shared(2, true));
  CHECK_THROWS_AS(thread_team(0), espalier::option_error);
  CHECK_THROWS_AS(thread_team(257), espalier::option_error);
}
