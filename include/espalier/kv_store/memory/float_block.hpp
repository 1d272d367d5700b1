// SPDX-License-Identifier: BSL-1.0
// Tested by tests/kv_store/contiguous.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "espalier/config.hpp"

#if !ESPALIER_HOSTED
#include "espalier/core/static/unset_numbers.hpp"
#elif defined(__linux__)
#include <sys/mman.h>
#endif

namespace espalier::detail {

// A block of floats, handed out in pieces that begin on cache lines. The size that a block must have is found by a dry
// run: take() of a block without memory returns null and only counts, and used() is then the size. If `huge` is set and
// the system has huge pages, the block asks for them, except for the last part that does not fill one.
#if ESPALIER_HOSTED

class float_block {
 public:
  float_block() = default;

  explicit float_block(std::size_t floats, bool huge) {
    data_ = static_cast<float*>(::operator new (floats * sizeof(float), std::align_val_t{page}));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // It is only advice: the system may ignore it.
    if (huge) (void)::madvise(data_, floats * sizeof(float) / page * page, MADV_HUGEPAGE);
#else
    (void)huge;
#endif
  }

  float_block(float_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), used_(std::exchange(other.used_, 0)) {}
  float_block& operator=(float_block other) noexcept {
    std::swap(data_, other.data_);
    std::swap(used_, other.used_);
    return *this;
  }
  ~float_block() {
    if (data_) ::operator delete (data_, std::align_val_t{page});
  }

  // Hands out the next piece of so many floats, which are not set; null if the block has no memory.
  //
  // Pre         the block has no memory, or the pieces fit
  float* take(std::size_t floats) {
    const std::size_t first = used_;
    used_ += (floats + 15) / 16 * 16;
    return data_ ? data_ + first : nullptr;
  }

  std::size_t used() const {
    return used_;
  }

 private:
  static constexpr std::size_t page = std::size_t{1} << 21;

  float* data_ = nullptr;
  std::size_t used_ = 0;
};

#else

// A block of floats from an arena, handed out in pieces one after the other.
class float_block {
 public:
  float_block() = default;
  explicit float_block(std::size_t floats, bool) { numbers_.resize(floats); }

  float* take(std::size_t floats) {
    const std::size_t first = used_;
    used_ += floats;
    return numbers_.get() + first;
  }

 private:
  unset_numbers<float> numbers_;
  std::size_t used_ = 0;
};

#endif

}  // namespace espalier::detail
