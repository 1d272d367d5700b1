// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <math.h>

#include <bit>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/grid.hpp"

namespace emulator::detail {

//! Every lane brings 64 bits and names the lane it reads; a lane that is not there gives garbage.
struct exchange_item {
  std::uint64_t bits = 0;
  unsigned source = 0;
  std::uint64_t result = 0xCDCDCDCDCDCDCDCDU;
};

template <class T>
T exchange(unsigned mask, const char* name, T value, unsigned source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  exchange_item item;
  std::memcpy(&item.bits, &value, sizeof(T));
  item.source = source;
  meet(mask, name, item, [](exchange_item** lanes) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr && lanes[lanes[i]->source] != nullptr) lanes[i]->result = lanes[lanes[i]->source]->bits;
    }
  });
  std::memcpy(static_cast<void*>(&value), &item.result, sizeof(T));
  return value;
}

template <class T>
struct vote_item {
  T value;
  T result;
};

//! Folds the values of all lanes, in the order of lanes, and gives every lane the result.
template <class T, class OpT>
T fold(unsigned mask, const char* name, T value, OpT op) {
  vote_item<T> item{value, value};
  meet(mask, name, item, [op](vote_item<T>** lanes) {
    bool first = true;
    T all{};
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) all = first ? lanes[i]->value : op(all, lanes[i]->value), first = false;
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->result = all;
    }
  });
  return item.result;
}

inline unsigned my_lane() {
  return self().lane;
}
inline unsigned segment(int width) {
  return my_lane() & ~static_cast<unsigned>(width - 1);
}

template <class T, class OpT>
T replace(T* address, OpT op) {
  const T old = *address;
  *address = op(old);
  return old;
}

//! Keeps the compiler from fusing the operation with the next one.
template <class T>
T rounded(T x) {
#ifdef __x86_64__
  asm("" : "+x"(x));
  return x;
#else
  volatile T kept = x;
  return kept;
#endif
}

// The functions and variables that device code finds in the global namespace.
// clang-format off
namespace device_functions {

// ---- barriers and fences

inline void __syncthreads() { the_scheduler.sync(self().home->all, "__syncthreads"); }
inline int __syncthreads_count(int predicate) {
  return the_scheduler.sync(self().home->all, "__syncthreads_count", predicate != 0);
}
inline int __syncthreads_or(int predicate) {
  return the_scheduler.sync(self().home->all, "__syncthreads_or", predicate != 0) != 0;
}
inline int __syncthreads_and(int predicate) {
  return the_scheduler.sync(self().home->all, "__syncthreads_and", predicate == 0) == 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  int nothing = 0;
  meet(mask, "__syncwarp", nothing, [](int**) {});
}

//! Lets others run, as the next three do: loops that poll another thread's write call one of them.
inline void __nanosleep(unsigned) { the_scheduler.yield(); }
inline void __threadfence() { the_scheduler.yield(); }
inline void __threadfence_block() { the_scheduler.yield(); }
inline void __threadfence_system() { the_scheduler.yield(); }

[[noreturn]] inline void __trap() {
  stop("thread (%u, %u, %u) of block (%u, %u, %u) called __trap", threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x,
       blockIdx.y, blockIdx.z);
}
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline unsigned long long __globaltimer() { return static_cast<unsigned long long>(clock64()); }

// Programmatic dependent launch: grids run one after another, so there is nothing to wait for. A kernel
// that should wait and does not is reported.
inline void cudaGridDependencySynchronize() { self().has_awaited = true; }
inline void cudaTriggerProgrammaticLaunchCompletion() {}

// ---- warp operations

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned inside = static_cast<unsigned>(source) & static_cast<unsigned>(width - 1);
  return exchange(mask, "__shfl_sync", value, segment(width) + inside);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = my_lane(), first = segment(width);
  return exchange(mask, "__shfl_up_sync", value, lane < first + delta ? lane : lane - delta);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = my_lane(), end = segment(width) + static_cast<unsigned>(width);
  return exchange(mask, "__shfl_down_sync", value, lane + delta >= end ? lane : lane + delta);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const unsigned lane = my_lane(), end = segment(width) + static_cast<unsigned>(width);
  const unsigned other = lane ^ static_cast<unsigned>(lane_mask);
  return exchange(mask, "__shfl_xor_sync", value, other >= end ? lane : other);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return fold(mask, "__ballot_sync", predicate != 0 ? 1U << my_lane() : 0U,
              [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) {
  return fold(mask, "__any_sync", predicate != 0 ? 1 : 0, [](int a, int b) { return a | b; });
}
inline int __all_sync(unsigned mask, int predicate) {
  return fold(mask, "__all_sync", predicate != 0 ? 1 : 0, [](int a, int b) { return a & b; });
}
inline unsigned __activemask() { return self().team->live; }

#define EMULATOR_REDUCE(name, T, expression) \
  inline T name(unsigned mask, T value) { return fold(mask, #name, value, [](T a, T b) { return expression; }); }
EMULATOR_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATOR_REDUCE(__reduce_add_sync, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
EMULATOR_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATOR_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMULATOR_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
EMULATOR_REDUCE(__reduce_max_sync, int, a < b ? b : a)
EMULATOR_REDUCE(__reduce_and_sync, unsigned, a & b)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, a | b)
EMULATOR_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef EMULATOR_REDUCE

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  exchange_item item;
  std::memcpy(&item.bits, &value, sizeof(T));
  meet(mask, "__match_any_sync", item, [](exchange_item** lanes) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      lanes[i]->result = 0;
      for (int k = 0; k < 32; ++k) {
        if (lanes[k] != nullptr && lanes[k]->bits == lanes[i]->bits) lanes[i]->result |= std::uint64_t{1} << k;
      }
    }
  });
  return static_cast<unsigned>(item.result);
}

// ---- atomics: threads change places only where they wait, so plain reads and writes will do

#define EMULATOR_ATOMIC(name, T, expression) \
  inline T name(T* address, T value) { return replace(address, [value](T old) { return expression; }); }
#define EMULATOR_ATOMICS(T)                                             \
  EMULATOR_ATOMIC(atomicMax, T, old < value ? value : old)              \
  EMULATOR_ATOMIC(atomicMin, T, value < old ? value : old)              \
  EMULATOR_ATOMIC(atomicOr, T, old | value)                             \
  EMULATOR_ATOMIC(atomicAnd, T, old & value)                            \
  EMULATOR_ATOMIC(atomicXor, T, old ^ value)                            \
  EMULATOR_ATOMIC(atomicExch, T, ((void)old, value))
EMULATOR_ATOMICS(int)
EMULATOR_ATOMICS(unsigned)
EMULATOR_ATOMICS(long long)
EMULATOR_ATOMICS(unsigned long long)
EMULATOR_ATOMIC(atomicExch, float, ((void)old, value))
EMULATOR_ATOMIC(atomicAdd, unsigned, old + value)
EMULATOR_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
EMULATOR_ATOMIC(atomicAdd, unsigned long long, old + value)
EMULATOR_ATOMIC(atomicAdd, float, old + value)
EMULATOR_ATOMIC(atomicAdd, double, old + value)
EMULATOR_ATOMIC(atomicSub, unsigned, old - value)
EMULATOR_ATOMIC(atomicSub, int, static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
EMULATOR_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef EMULATOR_ATOMICS
#undef EMULATOR_ATOMIC

//! An exchange that fails lets other threads run, since one of them may hold the lock.
#define EMULATOR_CAS(T)                                                       \
  inline T atomicCAS(T* address, T compare, T value) {                        \
    const T old = *address;                                                   \
    if (old == compare) *address = value;                                     \
    else the_scheduler.yield();                                               \
    return old;                                                               \
  }
EMULATOR_CAS(int)
EMULATOR_CAS(unsigned)
EMULATOR_CAS(unsigned short)
EMULATOR_CAS(unsigned long long)
#undef EMULATOR_CAS

// ---- bits

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x)); }
inline int __ffsll(long long x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned long long>(x)); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed = reversed << 1 | (x >> i & 1U);
  return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(std::int64_t{a} * b >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((std::uint64_t{high} << 32 | low) << (shift & 31U)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31U));
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// ---- arithmetic

inline float __fadd_rn(float a, float b) { return rounded(a + b); }
inline float __fsub_rn(float a, float b) { return rounded(a - b); }
inline float __fmul_rn(float a, float b) { return rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return rounded(a / b); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline double __dadd_rn(double a, double b) { return rounded(a + b); }
inline double __dsub_rn(double a, double b) { return rounded(a - b); }
inline double __dmul_rn(double a, double b) { return rounded(a * b); }
inline double __ddiv_rn(double a, double b) { return rounded(a / b); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0F ? (x < 1.0F ? x : 1.0F) : 0.0F; }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline unsigned __float2uint_rz(float x) { return static_cast<unsigned>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
#if !(defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 42))
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#endif

// The C library declares these names too, so they can only be macros here.
#define __expf(x) std::exp(static_cast<float>(x))
#define __exp10f(x) std::pow(10.0F, static_cast<float>(x))
#define __logf(x) std::log(static_cast<float>(x))
#define __log2f(x) std::log2(static_cast<float>(x))
#define __powf(x, y) std::pow(static_cast<float>(x), static_cast<float>(y))
#define __sinf(x) std::sin(static_cast<float>(x))
#define __cosf(x) std::cos(static_cast<float>(x))

#define EMULATOR_MIN_MAX(T)                                  \
  constexpr T (min)(T a, T b) { return b < a ? b : a; }      \
  constexpr T (max)(T a, T b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
#undef EMULATOR_MIN_MAX
// Unlike a comparison these give the other argument for a NaN, as the device does.
inline float(min)(float a, float b) { return std::fmin(a, b); }
inline float(max)(float a, float b) { return std::fmax(a, b); }
inline double(min)(double a, double b) { return std::fmin(a, b); }
inline double(max)(double a, double b) { return std::fmax(a, b); }

//! An address in shared memory as a number: its distance from where the block's shared memory begins.
inline std::size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<std::size_t>(static_cast<const unsigned char*>(p) - self().home->shared.get());
}

// ---- loads and stores with a cache hint

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldca(const T* p) { return *p; }
template <class T> T __ldcv(const T* p) { return *p; }
template <class T> void __stcs(T* p, T value) { *p = value; }
template <class T> void __stcg(T* p, T value) { *p = value; }
template <class T> void __stwt(T* p, T value) { *p = value; }

}  // namespace device_functions
// clang-format on

}  // namespace emulator::detail

using namespace emulator::detail::device_functions;
