// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/parallel/communicator.hpp"

//! Ranks that are processes which the test forks: each has an emulated device of its own. On a real device a process
//! that has used it must not fork, so a test of ranks uses it in `run` alone.
namespace process_ranks {

inline constexpr std::size_t area_bytes = std::size_t{4} << 20;  // of a rank

//! What the ranks share.
struct meeting {
  std::atomic<std::uint32_t> arrived{0}, round{0};
};

class process_rank {
 public:
  process_rank(meeting* all, std::byte* areas, int rank, int size, double timeout)
      : all_(all), areas_(areas), rank_(rank), size_(size), timeout_(timeout) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  espalier::rank_traffic traffic() const { return traffic_; }

  // The same ranks, who meet elsewhere: for a second thread of the process. run() has room for one such.
  process_rank beside() const {
    process_rank other(*this);
    other.all_ = all_ + 1;
    other.areas_ = areas_ + static_cast<std::size_t>(size_) * area_bytes;
    return other;
  }

  void all_gather(std::byte* data, std::span<const std::size_t> counts) {
    std::size_t first = 0;
    for (int r = 0; r < rank_; ++r)
      first += counts[static_cast<std::size_t>(r)];
    exchange(data + first, counts[static_cast<std::size_t>(rank_)], [&] {
      for (std::size_t r = 0, at = 0; r < counts.size(); at += counts[r++]) {
        if (static_cast<int>(r) != rank_) std::copy_n(area(r), counts[r], data + at);
      }
    });
  }

  // Every rank has the same counts to each.
  void all_to_all(const std::byte* from, std::span<const std::size_t> to_each, std::byte* to,
                  std::span<const std::size_t> from_each) {
    std::size_t all = 0, first = 0;
    for (std::size_t r = 0; r < to_each.size(); all += to_each[r++])
      first += static_cast<int>(r) < rank_ ? to_each[r] : 0;
    exchange(from, all, [&] {
      for (std::size_t r = 0, at = 0; r < from_each.size(); at += from_each[r++])
        std::copy_n(area(r) + first, from_each[r], to + at);
    });
  }

 private:
  std::byte* area(std::size_t rank) const { return areas_ + rank * area_bytes; }

  template <class TakeT>
  void exchange(const std::byte* from, std::size_t bytes, const TakeT& take) {
    if (bytes > area_bytes) espalier::raise<espalier::rank_error>("a rank sends ", bytes, " bytes at once.");
    std::copy_n(from, bytes, area(static_cast<std::size_t>(rank_)));
    meet();
    take();
    meet();
    ++traffic_.calls;
    traffic_.bytes += static_cast<std::int64_t>(bytes);
  }

  void meet() {
    const std::uint32_t round = all_->round.load();
    if (all_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(size_)) {
      all_->arrived = 0;
      all_->round = round + 1;
      return;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_);
    while (all_->round.load() == round) {
      if (std::chrono::steady_clock::now() > end) {
        espalier::raise<espalier::rank_error>("rank ", rank_, " waits for another in vain.");
      }
      sched_yield();
    }
  }

  meeting* all_;
  std::byte* areas_;
  int rank_, size_;
  double timeout_;
  espalier::rank_traffic traffic_;
};

//! What a rank has come to: what it threw, or else the numbers that it found.
struct outcome {
  std::string error;
  std::vector<float> numbers;

  friend bool operator==(const outcome&, const outcome&) = default;
};

namespace detail {

inline void write_all(int pipe, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = write(pipe, from, bytes);
    if (n <= 0) _exit(1);
    from += n, bytes -= static_cast<std::size_t>(n);
  }
}

// False where the process has ended before.
inline bool read_all(int pipe, void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = read(pipe, to, bytes);
    if (n <= 0) return false;
    to += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

template <class FunctionT>
[[noreturn]] void be_rank(process_rank& own, int pipe, const FunctionT& function) {
  outcome found;
  try {
    found.numbers = function(own);
  } catch (const std::exception& e) {
    found.error = e.what();
  }
  const std::size_t sizes[] = {found.error.size(), found.numbers.size()};
  write_all(pipe, sizes, sizeof sizes);
  write_all(pipe, found.error.data(), found.error.size());
  write_all(pipe, found.numbers.data(), found.numbers.size() * sizeof(float));
  _exit(0);
}

inline outcome take_outcome(int pipe) {
  outcome found;
  std::size_t sizes[2] = {};
  if (!read_all(pipe, sizes, sizeof sizes)) return {"the process has died", {}};
  found.error.resize(sizes[0]);
  found.numbers.resize(sizes[1]);
  if (!read_all(pipe, found.error.data(), sizes[0]) || !read_all(pipe, found.numbers.data(), sizes[1] * sizeof(float)))
    return {"the process has died", {}};
  return found;
}

}  // namespace detail

//! Calls function(rank), which gives a vector<float>, in n processes at once. Outcomes by rank.
template <class FunctionT>
std::vector<outcome> run(int n, const FunctionT& function, double timeout = 60.0) {
  constexpr std::size_t places = 2;  // where ranks meet
  const std::size_t bytes = places * (sizeof(meeting) + static_cast<std::size_t>(n) * area_bytes);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) espalier::raise<espalier::error>("no memory for ranks.");
  auto* all = new (shared) meeting[places];
  std::fflush(nullptr);
  std::vector<int> pipes;
  std::vector<pid_t> processes;
  for (int r = 0; r < n; ++r) {
    int ends[2];
    if (pipe(ends) != 0) espalier::raise<espalier::error>("no pipe for a rank.");
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      process_rank own(all, static_cast<std::byte*>(shared) + places * sizeof(meeting), r, n, timeout);
      detail::be_rank(own, ends[1], function);
    }
    close(ends[1]);
    pipes.push_back(ends[0]);
    processes.push_back(process);
  }
  std::vector<outcome> outcomes;
  for (const int pipe : pipes) {
    outcomes.push_back(detail::take_outcome(pipe));
    close(pipe);
  }
  for (const pid_t process : processes)
    waitpid(process, nullptr, 0);
  munmap(shared, bytes);
  return outcomes;
}

}  // namespace process_ranks
