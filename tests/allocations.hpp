// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

// How often operator new was called in this program. Needs allocations.cpp.
std::int64_t total_allocations();

// Counts from where it is built.
class allocation_count {
 public:
  std::int64_t so_far() const { return total_allocations() - start_; }

 private:
  std::int64_t start_ = total_allocations();
};
