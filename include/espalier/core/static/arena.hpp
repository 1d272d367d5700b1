// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <cstddef>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/static/static_capacity.hpp"

namespace espalier {

//! A fixed block of memory that lists take their storage from where ESPALIER_HOSTED is 0. Nothing is given back.
class arena {
 public:
  //! Alignment in bytes of every piece that is taken.
  static constexpr std::size_t alignment = 8;

  //! Number of bytes that n objects of type T take, rounded up to the alignment.
  template <class T>
  static constexpr std::size_t bytes_of(std::size_t n) {
    return (n * sizeof(T) + alignment - 1) / alignment * alignment;
  }

  //! Number of bytes that a part's lists take; 0 for a part that is kept by reference or has no lists.
  template <class PartT>
  static constexpr std::size_t bytes_of_part(const static_capacity& c) {
    if constexpr (std::is_reference_v<PartT>) {
      return 0;
    } else if constexpr (requires { PartT::bytes(c); }) {
      return PartT::bytes(c);
    } else {
      static_assert(ESPALIER_HOSTED || std::is_trivially_copyable_v<PartT>,
                    "a part of a static_decoder that has lists must tell how much memory they take: static constexpr "
                    "std::size_t bytes(const static_capacity&)");
      return 0;
    }
  }

  //! Makes an arena of the given memory.
  //!
  //! Pre         memory is aligned to `alignment`
  arena(std::byte* memory, std::size_t size) : memory_(memory), size_(size) {}

  std::size_t size() const { return size_; }
  std::size_t used() const { return used_; }

  //! Takes uninitialised room for n objects of type T.
  //!
  //! Errors      input_error if less is left
  template <class T>
  void* take(std::size_t n) {
    static_assert(alignof(T) <= alignment, "an arena has no memory for objects of such alignment");
    const std::size_t bytes = bytes_of<T>(n);
    if (bytes > size_ - used_)
      raise<input_error>("a list of ", bytes, " bytes does not fit: ", used_, " of ", size_, " bytes are in use.");
    void* const taken = memory_ + used_;
    used_ += bytes;
    return taken;
  }

  //! The arena that lists now take memory from. Null except while a static_decoder builds its parts: a list that must
  //! grow at another time raises an error.
  static arena*& current() {
    static arena* now = nullptr;
    return now;
  }

 private:
  std::byte* memory_;
  std::size_t size_;
  std::size_t used_ = 0;
};

}  // namespace espalier
