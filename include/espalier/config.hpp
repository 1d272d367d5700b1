// SPDX-License-Identifier: BSL-1.0
#pragma once

//! The only home of macros. Each one but ESPALIER_CHECKS, ESPALIER_DSP_ASSEMBLY, ESPALIER_HOSTED and
//! ESPALIER_WIDE_NUMBER is an annotation: no definition changes with it.

//! EXEC_CHECK_DISABLE goes before templates that call what their arguments bring along, functions of the host where
//! these are arguments of the host: nvcc need not warn of it.
#if defined(__CUDACC__)
#define ESPALIER_HOST_DEVICE __host__ __device__
#define ESPALIER_EXEC_CHECK_DISABLE _Pragma("nv_exec_check_disable")
#else
#define ESPALIER_HOST_DEVICE
#define ESPALIER_EXEC_CHECK_DISABLE
#endif

//! A kernel template: hidden, so that each shared library launches its own. Kernels in headers are templates: nvcc
//! knows no inline ones.
#define ESPALIER_KERNEL __attribute__((visibility("hidden"))) __global__

//! Before a loop of a kernel: its turns one after the other, so that what they index may stay in registers.
#if defined(__CUDACC__)
#define ESPALIER_UNROLL _Pragma("unroll")
#else
#define ESPALIER_UNROLL
#endif

//! Defines the concept NAME: a class that has a member of this name, whatever its type. What is derived from the class
//! and from a probe with such a member has two, and may not name it.
#define ESPALIER_NAMES_MEMBER(NAME, member)                                       \
  struct NAME##_probe {                                                           \
    int member;                                                                   \
  };                                                                              \
  template <class PartT>                                                          \
  struct NAME##_probed : PartT, NAME##_probe {};                                  \
  template <class PartT>                                                          \
  concept NAME = std::is_class_v<PartT> && !std::is_final_v<PartT> && !requires { \
    &NAME##_probed<PartT>::member;                                                \
  }

//! 1 where errors are thrown, 0 where they go to espalier::error_handler().
#if !defined(ESPALIER_EXCEPTIONS)
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define ESPALIER_EXCEPTIONS 1
#else
#define ESPALIER_EXCEPTIONS 0
#endif
#endif

//! 0 for a machine without an operating system: lists take memory from a static_decoder and never from a heap; there is
//! no clock, no source of random seeds, and nowhere to write to. The same in all of a program.
#if !defined(ESPALIER_HOSTED)
#define ESPALIER_HOSTED 1
#endif
#if !ESPALIER_HOSTED && ESPALIER_EXCEPTIONS
#error "ESPALIER_HOSTED is 0: compile with -fno-exceptions"
#endif

//! The type of sums over a vocabulary, of ratios of acceptance and of probabilities of paths: float for a processor
//! that has no fast double. Host code alone. The same in all of a program.
#if !defined(ESPALIER_WIDE_NUMBER)
#define ESPALIER_WIDE_NUMBER double
#endif

//! 0 to leave the products of small models on a Cortex-M4 or M7 to the compiler: their assembly needs all registers, so
//! it is nothing for code with a frame pointer, or with r9 for something else.
#if !defined(ESPALIER_DSP_ASSEMBLY)
#if defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && defined(__OPTIMIZE__)
#define ESPALIER_DSP_ASSEMBLY 1
#else
#define ESPALIER_DSP_ASSEMBLY 0
#endif
#endif

//! 1 to check laws that take time to check: that trees are what the policy's regime says. The same in all of a program.
#if !defined(ESPALIER_CHECKS)
#define ESPALIER_CHECKS 0
#endif
