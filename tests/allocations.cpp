// SPDX-License-Identifier: BSL-1.0
#include "allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(_WIN32)
#include <malloc.h>
#endif

namespace {

std::atomic<std::int64_t> count{0};

void* allocate(std::size_t size) noexcept {
  ++count;
  return std::malloc(size == 0 ? 1 : size);
}

void* allocate(std::size_t size, std::align_val_t alignment) noexcept {
  ++count;
  const auto a = static_cast<std::size_t>(alignment);
#if defined(_WIN32)  // it has no aligned_alloc, and frees such memory by a function of its own
  return _aligned_malloc(size == 0 ? 1 : size, a);
#else
  return std::aligned_alloc(a, (size + a - 1) / a * a);
#endif
}

void free_aligned(void* memory) noexcept {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

void* or_throw(void* memory) {
  return memory != nullptr ? memory : throw std::bad_alloc();
}

}  // namespace

std::int64_t total_allocations() {
  return count;
}

void* operator new(std::size_t size) {
  return or_throw(allocate(size));
}
void* operator new[](std::size_t size) {
  return or_throw(allocate(size));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new(std::size_t size, std::align_val_t a) {
  return or_throw(allocate(size, a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return or_throw(allocate(size, a));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  free_aligned(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  free_aligned(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  free_aligned(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  free_aligned(memory);
}
