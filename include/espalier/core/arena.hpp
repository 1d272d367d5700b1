// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/static_capacity.hpp"

namespace espalier {

//! Memory of fixed size that lists take from, where ESPALIER_HOSTED is 0. Nothing is given back.
class arena {
 public:
  //! What a piece begins on.
  static constexpr std::size_t alignment = 8;

  //! Bytes that n objects take.
  template <class T>
  static constexpr std::size_t bytes_of(std::size_t n) {
    return (n * sizeof(T) + alignment - 1) / alignment * alignment;
  }

  //! Bytes that a part takes: none where it is kept by reference or has no memory of its own.
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

  //! Pre         memory is aligned
  arena(std::byte* memory, std::size_t size) : memory_(memory), size_(size) {}

  std::size_t size() const { return size_; }
  std::size_t used() const { return used_; }

  //! Room for n objects.
  //!
  //! Errors      input_error where there is less
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

  //! Where lists take memory from now; null where they may not.
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
