// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/testing/row_drafter.hpp"

// Every token is as likely as any other.
inline espalier::testing::row_drafter flat_drafter(std::size_t vocab) {
  return espalier::testing::row_drafter(static_cast<std::int32_t>(vocab), [=](std::span<const espalier::token_id>) {
    return std::vector<double>(vocab, 1.0 / static_cast<double>(vocab));
  });
}
