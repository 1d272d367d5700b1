// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include "espalier/config.hpp"

#if ESPALIER_HOSTED
#include <vector>
#else
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/static/arena.hpp"
#endif

namespace espalier::detail {

#if ESPALIER_HOSTED

// The container that parts keep their numbers in: a vector, or where ESPALIER_HOSTED is 0, a list in the memory of an
// arena.
template <class T>
using list = std::vector<T>;

#else

// The part of std::vector's interface that the library needs, with storage from the arena. Nothing is ever freed: a
// list that grows takes new room and leaves the old one unused.
//
// Errors      input_error from a member that makes the list grow, if arena::current() is null or has no room left
template <class T>
class list {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  list() = default;
  explicit list(std::size_t n, const T& value = T()) { resize(n, value); }
  list(const list& other) { assign(other.begin(), other.end()); }
  list(list&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  list& operator=(const list& other) {
    if (this != &other) assign(other.begin(), other.end());
    return *this;
  }
  list& operator=(list&& other) noexcept {
    swap(other);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  void clear() { size_ = 0; }
  void pop_back() { --size_; }

  void reserve(std::size_t n) {
    if (n <= capacity_) return;
    if (arena::current() == nullptr)
      raise<input_error>("a list of ", size_, " is to have ", n, ", but memory is taken by constructors alone.");
    T* const room = static_cast<T*>(arena::current()->template take<T>(n));
    std::uninitialized_move_n(data_, size_, room);
    data_ = room;
    capacity_ = n;
  }

  void resize(std::size_t n, const T& value = T()) {
    reserve(n);
    if (n > size_) std::uninitialized_fill(data_ + size_, data_ + n, value);
    size_ = n;
  }

  void push_back(const T& value) {
    if (size_ == capacity_) reserve(size_ == 0 ? 1 : 2 * size_);
    std::construct_at(data_ + size_++, value);
  }

  // Replaces the elements by those of a range.
  //
  // Pre         the range is no part of this list
  template <class IteratorT>
  void assign(IteratorT first, IteratorT last) {
    const auto n = static_cast<std::size_t>(std::distance(first, last));
    reserve(n);
    std::uninitialized_copy(first, last, data_);
    size_ = n;
  }

  // Appends the elements of a range. Unlike a vector's insert, it inserts at the end alone.
  //
  // Pre         place is end(); the range is no part of this list
  template <class IteratorT>
  void insert([[maybe_unused]] const T* place, IteratorT first, IteratorT last) {
    const auto n = static_cast<std::size_t>(std::distance(first, last));
    reserve(size_ + n);
    std::uninitialized_copy(first, last, data_ + size_);
    size_ += n;
  }

  void swap(list& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

#endif

}  // namespace espalier::detail
