// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::detail {

// How columns of rows are divided over ranks, and the exchange of such rows. Bytes between ranks lie rank after rank,
// each rank's as [rows][its columns].
class rank_shares {
 public:
  rank_shares() = default;
  rank_shares(std::vector<rank_part::range> ranges, int rank) : ranges_(std::move(ranges)), rank_(rank) {
    counts_.resize(ranges_.size());
    own_counts_.resize(ranges_.size());
  }

  int width() const { return ranges_.empty() ? 0 : ranges_.back().end; }
  rank_part::range own() const { return ranges_[static_cast<std::size_t>(rank_)]; }

  int owner_of(int column) const {
    int r = 0;
    while (!ranges_[static_cast<std::size_t>(r)].has(column))
      ++r;
    return r;
  }

  // Where a rank's block of `rows` rows begins in a buffer of [rows][width()].
  std::ptrdiff_t block_at(int rank, int rows) const {
    return static_cast<std::ptrdiff_t>(rows) * ranges_[static_cast<std::size_t>(rank)].begin;
  }
  float* own_block(float* blocks, int rows) const { return blocks + block_at(rank_, rows); }

  // Fills the blocks of the other ranks.
  template <Communicator CommunicatorT>
  void gather(CommunicatorT& ranks, float* blocks, int rows) {
    if (ranks.size() == 1 || rows == 0) return;
    for (std::size_t r = 0; r < ranges_.size(); ++r)
      counts_[r] = bytes(rows, ranges_[r].size());
    ranks.all_gather(reinterpret_cast<std::byte*>(blocks), counts_);
  }

  // Sends each rank its columns of these blocks; writes to `parts` the own columns of every rank: [ranks][rows][own].
  template <Communicator CommunicatorT>
  void scatter(CommunicatorT& ranks, const float* blocks, int rows, float* parts) {
    for (std::size_t r = 0; r < ranges_.size(); ++r)
      counts_[r] = bytes(rows, ranges_[r].size()), own_counts_[r] = bytes(rows, own().size());
    ranks.all_to_all(reinterpret_cast<const std::byte*>(blocks), counts_, reinterpret_cast<std::byte*>(parts),
                     own_counts_);
  }

  // Blocks to rows [rows][width()], and back.
  void unpack(const float* blocks, int rows, float* to) const {
    each_run(rows, [&](std::ptrdiff_t block, std::ptrdiff_t row, int n) { std::copy_n(blocks + block, n, to + row); });
  }
  void pack(const float* from, int rows, float* blocks) const {
    each_run(rows,
             [&](std::ptrdiff_t block, std::ptrdiff_t row, int n) { std::copy_n(from + row, n, blocks + block); });
  }

 private:
  static std::size_t bytes(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * sizeof(float);
  }
  template <class UseT>
  void each_run(int rows, const UseT& use) const {
    for (std::size_t r = 0; r < ranges_.size(); ++r) {
      const int n = ranges_[r].size();
      for (int row = 0; row < rows; ++row)
        use(block_at(static_cast<int>(r), rows) + static_cast<std::ptrdiff_t>(row) * n,
            static_cast<std::ptrdiff_t>(row) * width() + ranges_[r].begin, n);
    }
  }

  std::vector<rank_part::range> ranges_;  // ascending, without gaps
  int rank_ = 0;
  std::vector<std::size_t> counts_, own_counts_;
};

}  // namespace espalier::detail
