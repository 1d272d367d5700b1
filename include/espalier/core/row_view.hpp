// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

//! A row over the vocabulary, and the threads that read it: how verifiers see rows, on host and device alike. Trivially copyable.
//!
//! Shapes      data [size]
template <class NumberT, class TeamT = detail::alone>
class row_view {
 public:
  ESPALIER_HOST_DEVICE row_view(const NumberT* data, std::size_t size, TeamT team)
      : data_(data), size_(size), team_(team) {}
  //! What one thread of the host reads.
  row_view(std::span<const NumberT> row) requires std::same_as<TeamT, detail::alone>
      : row_view(row.data(), row.size(), {}) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return size_; }
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const { return data_[i]; }
  ESPALIER_HOST_DEVICE TeamT team() const { return team_; }

 private:
  const NumberT* data_;
  std::size_t size_;
  [[no_unique_address]] TeamT team_;
};

template <class NumberT>
row_view(std::span<const NumberT>) -> row_view<NumberT>;

}  // namespace espalier
