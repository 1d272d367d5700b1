// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/vectors.cpp
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

//! A row over the vocabulary with the team of threads that reads it: verifiers see rows in this form, on host and
//! device alike. Trivially copyable.
//!
//! Shapes      data [size]
template <class NumberT, class TeamT = detail::alone>
class row_view {
  static constexpr bool is_host = std::same_as<TeamT, detail::alone>;

 public:
  //! True on the device: its threads cannot raise errors, so their rows were checked before.
  static constexpr bool is_trusted = !is_host;

  ESPALIER_HOST_DEVICE row_view(const NumberT* data, std::size_t size, TeamT team)
      : data_(data), size_(size), team_(team) {}
  //! Makes the view of node u's row for a team. Kernels construct it in place: where a member function of the team
  //! returned it, nvcc 13.0 took the team's shared memory for global memory.
  ESPALIER_HOST_DEVICE row_view(const node_rows<NumberT>& rows, node_id u, TeamT team)
      : row_view(rows.at(u), static_cast<std::size_t>(rows.rows.vocab), team) {}
  //! Makes the view for one thread of the host.
  template <std::convertible_to<std::span<const NumberT>> RowT>
  requires is_host row_view(const RowT& row)
      : row_view(std::span<const NumberT>(row).data(), std::span<const NumberT>(row).size(), {}) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return size_; }
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const { return data_[i]; }
  ESPALIER_HOST_DEVICE TeamT team() const { return team_; }
  std::span<const NumberT> span() const { return {data_, size_}; }

 private:
  const NumberT* data_;
  std::size_t size_;
  ESPALIER_NO_UNIQUE_ADDRESS TeamT team_;
};

template <class NumberT>
row_view(std::span<const NumberT>) -> row_view<NumberT>;

}  // namespace espalier
