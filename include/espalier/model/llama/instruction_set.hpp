// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/integer_product.cpp
#pragma once

#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

// 1 if functions may use the instructions for dot products of four bytes (Armv8.2 and later). With Clang they may only
// if all code of the file is compiled for processors with these instructions: Clang before 16 does not declare them
// otherwise.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define ESPALIER_NEON_DOT_PRODUCTS 1
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define ESPALIER_NEON_DOT_PRODUCTS 1
#else
#define ESPALIER_NEON_DOT_PRODUCTS 0
#endif

// 1 if functions may use the instructions for the dot products of two vectors of eight bytes with two others (Armv8.6
// and later). With Clang the same holds as above.
#if ESPALIER_NEON_DOT_PRODUCTS && (defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__clang__))
#define ESPALIER_NEON_MATRIX_PRODUCTS 1
#else
#define ESPALIER_NEON_MATRIX_PRODUCTS 0
#endif

namespace espalier::detail {

// The instructions that a product of integers is made with. All give the same numbers.
//
// avx512_256 is the kernel of avx_vnni in the encoding of AVX-512: tests run it on processors without AVX-VNNI. amx
// uses avx512 for one row and tiles for more.
enum class instruction_set : std::uint8_t { portable, avx2, avx512, neon, avx_vnni, avx512_256, amx, neon_i8mm };

constexpr const char* name_of(instruction_set set) {
  constexpr const char* names[] = {"portable",
                                   "AVX2",
                                   "AVX-512 with VNNI",
                                   "NEON",
                                   "AVX-VNNI",
                                   "AVX-512 with VNNI, 256 bits",
                                   "AMX, one row by AVX-512 with VNNI",
                                   "NEON with matrix products"};
  return names[static_cast<int>(set)];
}

#if defined(__x86_64__)

// Returns whether the processor has tiles and products of bytes in them, and the system lets this process use them.
// Linux is asked once, for the process and all of its threads; on other systems the answer is no.
inline bool may_use_tiles() {
#if defined(__linux__)
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM and XTILEDATA in Linux
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 24 & 3U) != 3) return false;  // AMX-TILE, AMX-INT8
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1U) == 0) return false;           // xgetbv exists
    asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a >> 17 & 3U) == 3 && ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

#endif

inline bool processor_has(instruction_set set) {
#if defined(__x86_64__)
  if (set == instruction_set::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == instruction_set::avx_vnni) {
    unsigned a = 0, b = 0, c = 0, d = 0;  // leaf 7.1, bit 4
    return processor_has(instruction_set::avx2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1U) != 0;
  }
  if (set == instruction_set::avx512 || set == instruction_set::avx512_256) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  }
  if (set == instruction_set::amx) return processor_has(instruction_set::avx512) && may_use_tiles();
#elif ESPALIER_NEON_DOT_PRODUCTS
  if (set == instruction_set::neon) {
#if defined(__ARM_FEATURE_DOTPROD)
    return true;
#else
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
  }
#if ESPALIER_NEON_MATRIX_PRODUCTS
  if (set == instruction_set::neon_i8mm) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return true;
#else
    return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  }
#endif
#endif
  return set == instruction_set::portable;
}

// Returns the set that products are fastest with. A program compiled with ESPALIER_INSTRUCTION_SET=avx2, or another
// name of the enumeration, takes that set wherever the processor has it, to be measured beside the others.
inline instruction_set best_instruction_set() {
#if defined(ESPALIER_INSTRUCTION_SET)
  if (processor_has(instruction_set::ESPALIER_INSTRUCTION_SET)) return instruction_set::ESPALIER_INSTRUCTION_SET;
#endif
  for (const instruction_set set : {instruction_set::neon_i8mm, instruction_set::neon, instruction_set::amx,
                                    instruction_set::avx512, instruction_set::avx_vnni, instruction_set::avx2}) {
    if (processor_has(set)) return set;
  }
  return instruction_set::portable;
}

}  // namespace espalier::detail
