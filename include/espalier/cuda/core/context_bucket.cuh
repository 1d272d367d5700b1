// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace espalier::cuda {

//! The length that launches are made for where a text may reach n tokens: n up to the next power of two from 512 on, at
//! most the capacity. One graph serves all texts of a bucket.
inline std::int32_t context_bucket(std::int32_t n, std::int32_t capacity) {
  std::int32_t bucket = 512;
  while (bucket < n && bucket < capacity)
    bucket *= 2;
  return bucket < capacity ? bucket : capacity;
}

}  // namespace espalier::cuda
