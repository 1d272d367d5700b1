// SPDX-License-Identifier: BSL-1.0
#pragma once

// Stands in for the library's header of the same name, the only one with inline
// PTX: the same functions, in plain C++.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace espalier::cuda::ptx {

using shared_address = std::uintptr_t;

inline shared_address address_of(const void* in_shared_memory) {
  return reinterpret_cast<shared_address>(in_shared_memory);
}

namespace emulated {

//! A copy that has not reached shared memory yet.
struct copy {
  shared_address to;
  const void* from;
  std::size_t bytes;
  bool there;

  void run() const {
    if (there) {
      std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    } else {
      std::memset(reinterpret_cast<void*>(to), 0, bytes);
    }
  }
};

//! The copies of one thread, by group; the last group is still open.
struct copies {
  std::vector<std::vector<copy>> groups{1};
  std::uint32_t chance = 12345;
};

inline copies& mine() {
  static std::unordered_map<const void*, copies> of_thread;
  return of_thread[&::emulator::detail::self()];
}

//! Every other copy, by chance, is done at once, and the others as late as a
//! wait allows: who reads too early or writes too early is found either way.
inline void start(const copy& what) {
  if (what.to % what.bytes != 0 || (what.there && reinterpret_cast<std::uintptr_t>(what.from) % what.bytes != 0)) {
    ::emulator::detail::stop("an asynchronous copy of %zu bytes is not aligned", what.bytes);
  }
  copies& all = mine();
  all.chance = all.chance * 1664525U + 1013904223U;
  if ((all.chance >> 16 & 1U) != 0) {
    what.run();
  } else {
    all.groups.back().push_back(what);
  }
}

struct load_item {
  shared_address row;
  std::uint32_t* fragment;
};

template <bool transposed>
void load(std::uint32_t (&fragment)[4], shared_address row) {
  if (row % 16 != 0) ::emulator::detail::stop("a row of a matrix is not aligned to 16 bytes");
  load_item item{row, fragment};
  ::emulator::detail::meet(0xFFFFFFFFU, transposed ? "ldmatrix.trans" : "ldmatrix", item, [](load_item** lanes) {
    for (unsigned m = 0; m < 4; ++m) {
      std::uint16_t matrix[8][8];
      for (unsigned r = 0; r < 8; ++r)
        std::memcpy(matrix[r], reinterpret_cast<const void*>(lanes[8 * m + r]->row), 16);
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned g = i / 4, t = 2 * (i % 4);
        const std::uint32_t low = transposed ? matrix[t][g] : matrix[g][t];
        const std::uint32_t high = transposed ? matrix[t + 1][g] : matrix[g][t + 1];
        lanes[i]->fragment[m] = high << 16 | low;
      }
    }
  });
}

template <class NumberT>
float number(std::uint32_t pair, unsigned which) {
  const auto bits = static_cast<std::uint16_t>(pair >> (16 * which));
  return static_cast<float>(std::bit_cast<NumberT>(bits));
}

struct product_item {
  float* sum;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

}  // namespace emulated

inline void copy_async_16(shared_address to, const void* from, bool there) {
  emulated::start({to, from, 16, there});
}
inline void copy_async_4(shared_address to, const void* from, bool there) {
  emulated::start({to, from, 4, there});
}
inline void copy_async_commit() {
  emulated::mine().groups.emplace_back();
}

template <int n>
void copy_async_wait() {
  auto& groups = emulated::mine().groups;
  const std::size_t kept = n + 1;  // the open one, too
  if (groups.size() <= kept) return;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(kept);
  for (auto group = groups.begin(); group != end; ++group)
    for (const emulated::copy& what : *group)
      what.run();
  groups.erase(groups.begin(), end);
}

inline void load_matrices(std::uint32_t (&fragment)[4], shared_address row) {
  emulated::load<false>(fragment, row);
}
inline void load_matrices_transposed(std::uint32_t (&fragment)[4], shared_address row) {
  emulated::load<true>(fragment, row);
}

template <class NumberT>
void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulated::product_item item{sum, a, {b0, b1}};
  ::emulator::detail::meet(0xFFFFFFFFU, "mma.m16n8k16", item, [](emulated::product_item** lanes) {
    float left[16][16], right[8][16];
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned g = i / 4, t = 2 * (i % 4);
      for (unsigned e = 0; e < 2; ++e) {
        left[g][t + e] = emulated::number<NumberT>(lanes[i]->a[0], e);
        left[g + 8][t + e] = emulated::number<NumberT>(lanes[i]->a[1], e);
        left[g][t + 8 + e] = emulated::number<NumberT>(lanes[i]->a[2], e);
        left[g + 8][t + 8 + e] = emulated::number<NumberT>(lanes[i]->a[3], e);
        right[g][t + e] = emulated::number<NumberT>(lanes[i]->b[0], e);
        right[g][t + 8 + e] = emulated::number<NumberT>(lanes[i]->b[1], e);
      }
    }
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned g = i / 4, t = 2 * (i % 4);
      for (unsigned c = 0; c < 4; ++c) {
        const float *row = left[g + 8 * (c / 2)], *column = right[t + c % 2];
        float all = 0;
        for (unsigned k = 0; k < 16; ++k)
          all += row[k] * column[k];
        lanes[i]->sum[c] += all;
      }
    }
  });
}

template <class NumberT>
std::uint32_t pack(float low, float high) {
  const auto bits = [](float x) { return std::uint32_t{std::bit_cast<std::uint16_t>(static_cast<NumberT>(x))}; };
  return bits(high) << 16 | bits(low);
}

inline void add_release(unsigned* counter, unsigned n) {
  *counter += n;
}

//! Lets others run: loops that wait for another block call it.
inline unsigned load_acquire(const unsigned* counter) {
  ::emulator::detail::the_scheduler.yield();
  return *counter;
}

inline float exp2_approximate(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38F ? 0.0F : y;
}

inline void await_previous() {
  cudaGridDependencySynchronize();
}

inline void allow_next() {
  cudaTriggerProgrammaticLaunchCompletion();
}

//! Reads where it begins and ends: what lies outside an allocation is found as any other read is.
inline void ask_for(const void* memory, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(memory) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
    ::emulator::detail::stop("%u bytes are asked for that are not aligned", bytes);
  const volatile auto* const at = static_cast<const volatile unsigned char*>(memory);
  (void)at[0], (void)at[bytes - 1];
}

}  // namespace espalier::cuda::ptx
