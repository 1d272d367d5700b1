// SPDX-License-Identifier: BSL-1.0
#pragma once

// Replaces the library's header of the same name, the only one with inline PTX: the same functions in plain C++.

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

#include "espalier/cuda/core/matrix_descriptor.cuh"

namespace espalier::cuda::ptx {

using shared_address = std::uintptr_t;

inline shared_address address_of(const void* in_shared_memory) {
  return reinterpret_cast<shared_address>(in_shared_memory);
}

namespace emulated {

//! Products of warpgroups read shared memory through another way than threads (the async proxy, PTX ISA 9.0, 8.6). They
//! see 16 bytes that a thread has copied only after that thread has called show_to_products().
struct shown_bytes {
  struct mark {
    const void* thread;
    unsigned shown;
  };
  std::unordered_map<shared_address, mark> last_copy;     // of 16 bytes each
  std::unordered_map<const void*, unsigned> shown_times;  // by thread

  void copied(shared_address to) {
    const void* const thread = &::emulator::detail::self();
    last_copy[to] = {thread, shown_times[thread]};
  }
  void require_shown(shared_address at) {
    const auto copy = last_copy.find(at);
    if (copy != last_copy.end() && shown_times[copy->second.thread] == copy->second.shown)
      ::emulator::detail::stop("wgmma reads what was copied and not shown to it by fence.proxy.async");
  }
};
inline shown_bytes shown;

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
    if (bytes == 16) shown.copied(to);
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

//! By chance, every other copy is done at once, and the others as late as a wait allows. So both reading too early and
//! overwriting too early are found.
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
  const std::size_t kept = n + 1;  // the open group, too
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

//! Lets other threads run; called by loops that wait for another block.
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

//! Reads the first and the last byte, so that an address outside an allocation is found as with any other read.
inline void ask_for(const void* memory, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(memory) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
    ::emulator::detail::stop("%u bytes are asked for that are not aligned", bytes);
  const volatile auto* const at = static_cast<const volatile unsigned char*>(memory);
  (void)at[0], (void)at[bytes - 1];
}

inline constexpr bool has_warpgroup_products = true;

namespace emulated {

//! The barrier with this number, for so many threads of the running block.
inline ::emulator::detail::barrier& barrier_of(std::uint32_t number, unsigned threads) {
  static std::unordered_map<const void*, std::unordered_map<std::uint32_t, ::emulator::detail::barrier>> of_block;
  auto& barrier = of_block[::emulator::detail::self().home][number];
  if (barrier.arrived != 0 && barrier.expected != threads)
    ::emulator::detail::stop("threads wait at barrier %u for %u and for %u threads", number, barrier.expected, threads);
  barrier.expected = threads;
  return barrier;
}

//! An mbarrier: its state, which is stored in the 8 bytes, and the threads that wait for it.
struct arrivals {
  std::uint16_t expected, missing;
  std::uint32_t phase;
};
inline std::vector<::emulator::detail::thread*>& waiting_for(shared_address counter) {
  static std::unordered_map<shared_address, std::vector<::emulator::detail::thread*>> of_counter;
  return of_counter[counter];
}
inline arrivals& at(shared_address counter) {
  if (counter % 8 != 0) ::emulator::detail::stop("an mbarrier is not aligned to 8 bytes");
  return *reinterpret_cast<arrivals*>(counter);
}

//! A product that a thread has started.
struct product {
  float (*sum)[4];
  matrix_descriptor a, b;
  const std::uint32_t* fragment;  // nullptr: a is in shared memory
  bool adds;
  void (*run)(product* const (&of)[128]);
};

//! The products of one thread: of open and of committed groups.
struct products {
  std::vector<product> open, committed;
  bool begun = false;
};

inline products& my_products() {
  static std::unordered_map<const void*, products> of_thread;
  return of_thread[&::emulator::detail::self()];
}

inline void start(const product& what) {
  products& mine = my_products();
  if (!mine.begun) ::emulator::detail::stop("wgmma without a wgmma.fence before it");
  mine.open.push_back(what);
}

//! The eight numbers of 16 bits that a descriptor gives for chunk `chunk` of line `line`. A line is a row or column of
//! terms (K-major), or the numbers of all rows or columns for one term (transposed, MN-major). By PTX ISA 9.0,
//! 9.7.15.5.1.2, canonical layouts: lines in units of 8, chunks in units of the swizzle's width.
inline void read_chunk(matrix_descriptor matrix, bool transposed, unsigned line, unsigned chunk,
                       std::uint16_t (&to)[8]) {
  const auto field = [&](unsigned first) { return (matrix.bits >> first & 0x3FFFU) << 4; };
  const auto mode = static_cast<unsigned>(matrix.bits >> 62);
  if ((matrix.bits >> 49 & 7U) != 0) ::emulator::detail::stop("a matrix has a base offset, which is not emulated");
  const std::uintptr_t leading = field(16), stride = field(32);
  const unsigned width = mode == 0 ? 1 : 16U >> mode;  // chunks: modes 1, 2, 3 are 128, 64, 32 bytes
  std::uintptr_t offset = line % 8 * 16 * width;
  if (mode == 0) {
    offset += transposed ? line / 8 * leading + chunk * stride : line / 8 * stride + chunk * leading;
  } else if (transposed) {
    offset += line / 8 * stride + chunk / width * leading + chunk % width * 16;
  } else {
    offset += line / 8 * stride + chunk * 16;
  }
  // The descriptor has the lower 18 bits of the address; the others are those of the block's memory.
  const auto memory = reinterpret_cast<std::uintptr_t>(emulator_shared_memory());
  std::uintptr_t address = memory + ((field(0) - memory) & 0x3FFFFU) + offset;
  address ^= (address >> 7 & (width - 1)) << 4;
  shown.require_shown(address);
  std::memcpy(to, reinterpret_cast<const void*>(address), 16);
}

//! to[i][k]: term k of row or column i, of 64 by 16.
template <class NumberT>
void read_matrix(matrix_descriptor matrix, bool transposed, float (&to)[64][16]) {
  for (unsigned line = 0; line < (transposed ? 16U : 64U); ++line) {
    for (unsigned chunk = 0; chunk < (transposed ? 8U : 2U); ++chunk) {
      std::uint16_t numbers[8];
      read_chunk(matrix, transposed, line, chunk, numbers);
      for (unsigned e = 0; e < 8; ++e) {
        const auto number = static_cast<float>(std::bit_cast<NumberT>(numbers[e]));
        (transposed ? to[8 * chunk + e][line] : to[line][8 * chunk + e]) = number;
      }
    }
  }
}

//! Runs one product of a warpgroup. Terms are added in another order than by the emulated mma.sync, so that a mixture
//! of the two gives other bits, as on a device.
template <class NumberT>
void multiply(product* const (&of)[128]) {
  float left[64][16], right[64][16];
  const bool in_registers = of[0]->fragment != nullptr;
  for (unsigned thread = 0; in_registers && thread < 128; ++thread) {
    const unsigned g = thread / 32 * 16 + thread % 32 / 4, t = 2 * (thread % 4);
    for (unsigned e = 0; e < 2; ++e) {
      for (unsigned i = 0; i < 4; ++i)
        left[g + i % 2 * 8][t + i / 2 * 8 + e] = number<NumberT>(of[thread]->fragment[i], e);
    }
  }
  if (!in_registers) read_matrix<NumberT>(of[0]->a, false, left);
  read_matrix<NumberT>(of[0]->b, in_registers, right);
  for (unsigned g = 0; g < 64; ++g) {
    float all[64] = {};
    for (unsigned k = 16; k > 0; --k) {
      for (unsigned column = 0; column < 64; ++column)
        all[column] += left[g][k - 1] * right[column][k - 1];
    }
    for (unsigned column = 0; column < 64; ++column) {
      const product& one = *of[g / 16 * 32 + g % 8 * 4 + column % 8 / 2];
      float& sum = one.sum[column / 8][g % 16 / 8 * 2 + column % 2];
      sum = one.adds ? sum + all[column] : all[column];
    }
  }
}

//! The products that a warpgroup's threads have committed, once all threads have come. The last thread runs them or, if
//! that is allowed, leaves them for later by chance.
struct warpgroup {
  products* of[128];
  std::uint32_t chance = 54321;
};

inline void meet_warpgroup(const char* name, bool may_wait) {
  static std::unordered_map<const void*, std::unordered_map<unsigned, warpgroup>> of_block;
  ::emulator::detail::thread& me = ::emulator::detail::self();
  warpgroup& all = of_block[me.home][me.rank / 128];
  all.of[me.rank % 128] = &my_products();
  auto& barrier = barrier_of(16 + me.rank / 128, 128);
  if (barrier.arrived + 1 == barrier.expected) {
    all.chance = all.chance * 1664525U + 1013904223U;
    if (!may_wait || (all.chance >> 16 & 1U) != 0) {
      const std::size_t n = all.of[0]->committed.size();
      for (std::size_t i = 0; i < n; ++i) {
        product* one[128];
        for (unsigned thread = 0; thread < 128; ++thread) {
          if (all.of[thread]->committed.size() != n)
            ::emulator::detail::stop("the threads of a warpgroup have started different numbers of products");
          one[thread] = &all.of[thread]->committed[i];
          if (one[thread]->a.bits != one[0]->a.bits || one[thread]->b.bits != one[0]->b.bits ||
              one[thread]->run != one[0]->run)
            ::emulator::detail::stop("the threads of a warpgroup have started different products");
        }
        one[0]->run(one);
      }
      for (products* each : all.of)
        each->committed.clear();
    }
  }
  ::emulator::detail::the_scheduler.sync(barrier, name);
}

}  // namespace emulated

inline void await_threads(std::uint32_t barrier, std::uint32_t threads) {
  ::emulator::detail::the_scheduler.sync(emulated::barrier_of(barrier, threads), "bar.sync");
}

inline void begin_arrivals(shared_address counter, std::uint32_t arrivals) {
  const auto n = static_cast<std::uint16_t>(arrivals);
  emulated::at(counter) = {n, n, 0};
  emulated::waiting_for(counter).clear();
}

inline void arrive(shared_address counter) {
  emulated::arrivals& of = emulated::at(counter);
  if (of.missing == 0 || of.missing > of.expected) ::emulator::detail::stop("an mbarrier was not begun");
  if (--of.missing != 0) return;
  of.missing = of.expected, ++of.phase;
  for (::emulator::detail::thread* thread : emulated::waiting_for(counter))
    ::emulator::detail::the_scheduler.wake(thread);
  emulated::waiting_for(counter).clear();
}

inline void await_arrivals(shared_address counter, std::uint32_t parity) {
  while ((emulated::at(counter).phase & 1U) == parity) {
    emulated::waiting_for(counter).push_back(&::emulator::detail::self());
    ::emulator::detail::the_scheduler.wait("mbarrier.try_wait");
  }
}

inline void show_to_products() {
  ++emulated::shown.shown_times[&::emulator::detail::self()];
}

template <class... RegistersT>
inline void products_begin(RegistersT&...) {
  emulated::my_products().begun = true;
}

inline void products_commit() {
  emulated::products& mine = emulated::my_products();
  mine.committed.insert(mine.committed.end(), mine.open.begin(), mine.open.end());
  mine.open.clear();
  mine.begun = false;
  emulated::meet_warpgroup("wgmma.commit_group", true);
}

template <class... RegistersT>
inline void products_wait(RegistersT&...) {
  if (!emulated::my_products().open.empty()) ::emulator::detail::stop("wgmma.wait_group before wgmma.commit_group");
  emulated::meet_warpgroup("wgmma.wait_group", false);
}

//! Registers are not modelled.
template <int n>
void take_registers() {}
template <int n>
void give_registers() {}

template <class NumberT>
void start_product(float (&sum)[8][4], matrix_descriptor a, matrix_descriptor b, bool adds) {
  emulated::start({sum, a, b, nullptr, adds, emulated::multiply<NumberT>});
}

template <class NumberT>
void start_product(float (*sum)[4], const std::uint32_t (&a)[4], matrix_descriptor b) {
  emulated::start({sum, {}, b, a, true, emulated::multiply<NumberT>});
}

}  // namespace espalier::cuda::ptx
