// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

//! The only place with inline PTX: products of the tensor cores, loads of their fragments, copies that run beside the
//! computation, and signals between threads, blocks and kernels. Compute capability 8.0 or later; products of
//! warpgroups, and the signals between their threads, need 9.0. All lanes of a warp call products and fragment loads
//! together. Section numbers are those of the PTX ISA 9.0.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/cuda/core/matrix_descriptor.cuh"

namespace espalier::cuda::ptx {

//! An address in shared memory, in bytes: a number of bytes may be added to it.
using shared_address = std::uint32_t;

__device__ inline shared_address address_of(const void* in_shared_memory) {
  return static_cast<shared_address>(__cvta_generic_to_shared(in_shared_memory));
}

//! Starts to copy 16 bytes into shared memory, past the first-level cache. If `there` is false, nothing is read and
//! zeros are written.
//!
//! Pre         both addresses are multiples of 16
__device__ inline void copy_async_16(shared_address to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

//! Starts to copy 4 bytes in the same way, through the first-level cache.
//!
//! Pre         both addresses are multiples of 4
__device__ inline void copy_async_4(shared_address to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

//! Puts the copies that this thread has started since the last call into one group.
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

//! Waits until only the last n groups of this thread's copies, or fewer, are still under way. A barrier must follow
//! before other threads read the copied bytes.
template <int n>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

//! Loads four matrices of 8 x 8 numbers of 16 bits. Lane i gives the address of row i % 8 of matrix i / 8 (16 bytes).
//!
//! Post        fragment[m] of lane i: numbers 2 (i % 4) and 2 (i % 4) + 1 of row i / 4 of matrix m, the first one low
__device__ inline void load_matrices(std::uint32_t (&fragment)[4], shared_address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row));
}

//! Loads four matrices as load_matrices does, and transposes them.
//!
//! Post        fragment[m] of lane i: number i / 4 of rows 2 (i % 4) and 2 (i % 4) + 1 of matrix m
__device__ inline void load_matrices_transposed(std::uint32_t (&fragment)[4], shared_address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row));
}

//! Adds the product of a 16 x 16 and a 16 x 8 matrix of half or bfloat16 numbers to a 16 x 8 matrix of floats.
//!
//! Shapes      in lane i, with g = i / 4 and t = 2 (i % 4): sum: rows g, g, g + 8, g + 8, columns t, t + 1, t, t + 1;
//!             a: pairs from column t, t, t + 8, t + 8 of rows g, g + 8, g, g + 8; b: pairs from row t, t + 8 of column
//!             g
template <class NumberT>
__device__ inline void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<NumberT, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<NumberT, __nv_bfloat16>, "The tensor cores take half or bfloat16 numbers here.");
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

//! Returns two numbers, rounded to nearest, in one word: `low` in its low half.
template <class NumberT>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t both;
  if constexpr (std::is_same_v<NumberT, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<NumberT, __nv_bfloat16>, "Pairs are of half or bfloat16 numbers.");
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

//! Adds n to a counter of the device, after all writes that this thread knows of (release).
__device__ inline void add_release(unsigned* counter, unsigned n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}

//! Reads a counter of the device, before all later reads of this thread (acquire). For loops that wait for other
//! blocks.
__device__ inline unsigned load_acquire(const unsigned* counter) {
  unsigned n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}

//! Returns 2 to the power of x, to 2 units in the last place; tiny results are 0.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//! Waits until the kernel before this one in the stream has ended and its writes are seen, if this kernel began before
//! that (launch_shape::overlaps); else does nothing. All threads must call it: then this kernel ends after the one
//! before, and a kernel that waits for this one has waited for all earlier ones.
__device__ inline void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

//! Lets the next kernel of the stream begin, if it overlaps, once all blocks have called this function or ended.
__device__ inline void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

//! Asks for memory to be brought into the second-level cache, without waiting. Does nothing before compute capability
//! 9.0.
//!
//! Pre         address and number of bytes are multiples of 16
__device__ inline void ask_for(const void* memory, std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(memory), "r"(bytes) : "memory");
#else
  (void)memory, (void)bytes;
#endif
}

//! True if this code is compiled for sm_90a, with the instructions that compute capability 9.0 alone has; false on the
//! host. The functions below are for code that has checked it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool has_warpgroup_products = true;
#else
inline constexpr bool has_warpgroup_products = false;
#endif

//! Waits until `threads` threads of the block, in whole warps, have called this function with the same barrier (1 to
//! 15).
__device__ inline void await_threads(std::uint32_t barrier, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

//! Makes a counter in shared memory that ends a phase after so many arrivals (9.7.13.15, mbarrier). A barrier of the
//! block must then show it to the other threads.
//!
//! Pre         `counter` is a multiple of 8; 1 <= arrivals
__device__ inline void begin_arrivals(shared_address counter, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(counter), "r"(arrivals) : "memory");
}

//! Counts an arrival, after all earlier reads and writes of this thread. The last arrival ends the phase.
__device__ inline void arrive(shared_address counter) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(counter) : "memory");
}

//! Waits until the phase of this parity has ended. Phases have parity 0, 1, 0, ...; before the first phase has ended,
//! waiting for parity 1 returns at once.
__device__ inline void await_arrivals(shared_address counter, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@ended bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(counter),
      "r"(parity)
      : "memory");
}

//! Makes this thread's writes to shared memory so far, finished copies included, visible to warpgroup products. A
//! barrier must follow before a warpgroup starts such a product (9.7.13.4, membar: proxies).
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

//! Keeps the compiler from moving uses of these registers across this point. They are floats, to which products add, or
//! words, which products read, or arrays of these.
template <class RegistersT>
__device__ inline void hold(RegistersT& of) {
  if constexpr (std::is_array_v<RegistersT>) {
    ESPALIER_UNROLL
    for (auto& one : of)
      hold(one);
  } else if constexpr (std::is_same_v<RegistersT, float>) {
    asm volatile("" : "+f"(of)::"memory");
  } else {
    asm volatile("" ::"r"(of) : "memory");
  }
}

//! Makes the products that follow wait for all earlier uses of these registers, which products read or add to
//! (wgmma.fence). Called before the first product of a warpgroup after such uses.
template <class... RegistersT>
__device__ inline void products_begin(RegistersT&... of) {
  (hold(of), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

//! Puts the products that were started since the last call into one group.
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

//! Waits until all groups of this warpgroup's products have ended, so that the registers they add to, which are listed,
//! may be used. Until then nothing else may touch the registers, nor the memory that the products read.
template <class... RegistersT>
__device__ inline void products_wait(RegistersT&... of) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  (hold(of), ...);
}

//! Gives each thread of a warpgroup n registers, more than before. All threads of the warpgroup call it. It waits until
//! other threads of the block have given up as many.
//!
//! Pre         n is a multiple of 8, from 24 to 256; the kernel's launch bounds fix how many registers threads have at
//!             first; not compiled as relocatable code, in which ptxas leaves the instruction out
template <int n>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
//! Leaves each thread of a warpgroup n registers, fewer than before. Pre as take_registers.
template <int n>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// The 32 sums of a lane as operands of inline PTX, and their names in it.
#define ESPALIER_PTX_SUMS                                                                                   \
  "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),     \
      "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]), "+f"(sum[2][2]), "+f"(sum[2][3]), \
      "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]), "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]), \
      "+f"(sum[4][2]), "+f"(sum[4][3]), "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]), \
      "+f"(sum[6][0]), "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]), \
      "+f"(sum[7][2]), "+f"(sum[7][3])
#define ESPALIER_PTX_SUM_NAMES                                                                                      \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
#define ESPALIER_PTX_PRODUCT(number) \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." number "." number " " ESPALIER_PTX_SUM_NAMES

//! Starts the product of a 64 x 16 and a 16 x 64 matrix in shared memory. The second is stored transposed: in both, a
//! stored row has the 16 terms of a sum. `sum` becomes the product, or has the product added to it if `adds`
//! (9.7.15.5.2, wgmma.mma_async). The four warps of a warpgroup call it together.
//!
//! Shapes      in lane i of warp w, with g = 16 w + i / 4 and t = 2 (i % 4): sum[j] has rows g, g, g + 8, g + 8 and
//!             columns c, c + 1, c, c + 1, where c = 8 j + t
template <class NumberT>
__device__ inline void start_product(float (&sum)[8][4], matrix_descriptor a, matrix_descriptor b, bool adds) {
  if constexpr (std::is_same_v<NumberT, __half>) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %34, 0; " ESPALIER_PTX_PRODUCT("f16") ", %32, %33, adds, 1, 1, 0, 0; }"
        : ESPALIER_PTX_SUMS
        : "l"(a.bits), "l"(b.bits), "r"(adds ? 1 : 0));
  } else {
    static_assert(std::is_same_v<NumberT, __nv_bfloat16>, "The tensor cores take half or bfloat16 numbers here.");
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %34, 0; " ESPALIER_PTX_PRODUCT("bf16") ", %32, %33, adds, 1, 1, 0, 0; }"
        : ESPALIER_PTX_SUMS
        : "l"(a.bits), "l"(b.bits), "r"(adds ? 1 : 0));
  }
}

//! Starts to add to `sum` the product of a 64 x 16 matrix in registers and a 16 x 64 one in shared memory, stored as 16
//! rows of 64 numbers.
//!
//! Shapes      sum, g, t: as in the other start_product; a: pairs from term t, t, t + 8, t + 8 of rows g, g + 8, g,
//!             g + 8
template <class NumberT>
__device__ inline void start_product(float (*sum)[4], const std::uint32_t (&a)[4], matrix_descriptor b) {
  if constexpr (std::is_same_v<NumberT, __half>) {
    asm volatile(ESPALIER_PTX_PRODUCT("f16") ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : ESPALIER_PTX_SUMS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
  } else {
    static_assert(std::is_same_v<NumberT, __nv_bfloat16>, "The tensor cores take half or bfloat16 numbers here.");
    asm volatile(ESPALIER_PTX_PRODUCT("bf16") ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : ESPALIER_PTX_SUMS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
  }
}

#undef ESPALIER_PTX_PRODUCT
#undef ESPALIER_PTX_SUM_NAMES
#undef ESPALIER_PTX_SUMS

}  // namespace espalier::cuda::ptx
