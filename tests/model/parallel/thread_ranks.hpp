// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "espalier/model/parallel/communicator.hpp"

//! Ranks that are threads of the test.
namespace thread_ranks {

struct meeting {
  explicit meeting(int n) : barrier(n), places(static_cast<std::size_t>(n)) {}

  std::barrier<> barrier;
  std::vector<const std::byte*> places;
};

class thread_rank {
 public:
  thread_rank(meeting& others, int rank) : others_(&others), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(others_->places.size()); }
  espalier::rank_traffic traffic() const { return traffic_; }

  void all_gather(std::byte* data, std::span<const std::size_t> counts) {
    exchange(data, [&] {
      std::size_t at = 0;
      for (std::size_t r = 0; r < counts.size(); at += counts[r++])
        if (static_cast<int>(r) != rank_ && counts[r] > 0) std::memcpy(data + at, others_->places[r] + at, counts[r]);
    });
    ++traffic_.calls;
    traffic_.bytes += static_cast<std::int64_t>(counts[static_cast<std::size_t>(rank_)]) * (size() - 1);
  }

  // Every rank has the same counts to each.
  void all_to_all(const std::byte* from, std::span<const std::size_t> to_each, std::byte* to,
                  std::span<const std::size_t> from_each) {
    std::size_t first = 0;
    for (int r = 0; r < rank_; ++r)
      first += to_each[static_cast<std::size_t>(r)];
    exchange(from, [&] {
      std::size_t at = 0;
      for (std::size_t r = 0; r < from_each.size(); at += from_each[r++])
        if (from_each[r] > 0) std::memcpy(to + at, others_->places[r] + first, from_each[r]);
    });
    ++traffic_.calls;
    for (std::size_t r = 0; r < to_each.size(); ++r)
      traffic_.bytes += static_cast<int>(r) == rank_ ? 0 : static_cast<std::int64_t>(to_each[r]);
  }

 private:
  template <class CopyT>
  void exchange(const std::byte* from, const CopyT& copy) {
    others_->places[static_cast<std::size_t>(rank_)] = from;
    others_->barrier.arrive_and_wait();
    copy();
    others_->barrier.arrive_and_wait();
  }

  meeting* others_;
  int rank_;
  espalier::rank_traffic traffic_;
};

//! Calls function(rank) on n threads at once; what the ranks threw, or nothing, by rank.
template <class FunctionT>
std::vector<std::string> run(int n, const FunctionT& function) {
  meeting all(n);
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      thread_rank own(all, r);
      try {
        function(own);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
        all.barrier.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return errors;
}

}  // namespace thread_ranks
