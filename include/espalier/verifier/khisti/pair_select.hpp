// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/row_view.hpp"
#include "espalier/verifier/khisti/pair_select_view.hpp"

namespace espalier::detail {

// The memory of the stages of a tournament that one thread runs, for the verifier khisti and for its analysis.
template <class NumberT, std::size_t ExactVocab = 1024>
class pair_select {
 public:
  void reserve(std::size_t vocab) {
    for (auto& distribution : distributions_)
      distribution.reserve(vocab);
    rank_.reserve(vocab);
    large_.reserve(vocab);
  }

  // The memory for rows of `vocab` tokens.
  pair_select_memory<NumberT, ExactVocab> memory(std::size_t vocab) {
    for (auto& distribution : distributions_)
      distribution.resize(vocab);
    rank_.resize(vocab);
    large_.resize(vocab);
    return {{distributions_[0].data(), distributions_[1].data()}, rank_.data(), large_.data(), &ranks_, &window_};
  }

  // Returns the distribution of the selected token. It is valid until the call after the next one; the next call may
  // take it as `a`.
  std::span<const NumberT> solve(std::span<const NumberT> p, std::span<const NumberT> a, std::span<const NumberT> b,
                                 std::int32_t window) {
    turn_ = 1 - turn_;
    pair_select_view stage(memory(p.size()));
    return {stage.solve(row_view(p), row_view(a), row_view(b), window, turn_), p.size()};
  }

  // The shares by which a pair of tokens x and y selects one of them, in the stage that solve() computed last.
  pair_shares shares(std::size_t x, std::size_t y) const { return window_.shares(rank_[x], rank_[y]); }

 private:
  std::array<std::vector<NumberT>, 2> distributions_;
  std::vector<std::uint16_t> rank_;
  std::vector<std::uint32_t> large_;
  pair_ranks<NumberT, ExactVocab> ranks_{};
  pair_window window_{};
  std::int32_t turn_ = 0;
};

}  // namespace espalier::detail
