// SPDX-License-Identifier: BSL-1.0
// Tested by tests/headers/linked_one.cpp
#pragma once

//! The macros of the library. ESPALIER_CHECKS, ESPALIER_DSP_ASSEMBLY, ESPALIER_EXCEPTIONS, ESPALIER_HOSTED and
//! ESPALIER_WIDE_NUMBER are options: the library's classes and functions are compiled in another way by their values.
//! ESPALIER_NAMES_MEMBER and ESPALIER_MISTAKE define a concept or a struct. The others only annotate code.

//! ESPALIER_EXEC_CHECK_DISABLE goes before templates for host and device that call functions of their arguments. With
//! arguments for the host alone such a template is used on the host alone; without this macro, nvcc would warn that it
//! calls host functions. ESPALIER_HOST_DEVICE goes before functions for host and device.
#if defined(__CUDACC__)
#define ESPALIER_HOST_DEVICE __host__ __device__
#define ESPALIER_EXEC_CHECK_DISABLE _Pragma("nv_exec_check_disable")
#else
#define ESPALIER_HOST_DEVICE
#define ESPALIER_EXEC_CHECK_DISABLE
#endif

//! Goes before a kernel template. The kernel is hidden, so that each shared library launches its own. Kernels in
//! headers are templates because nvcc knows no inline kernels.
#define ESPALIER_KERNEL __attribute__((visibility("hidden"))) __global__

//! Goes before a loop of a kernel: the compiler unrolls the loop, so that arrays that are indexed by the loop's counter
//! may stay in registers.
#if defined(__CUDACC__)
#define ESPALIER_UNROLL _Pragma("unroll")
#else
#define ESPALIER_UNROLL
#endif

//! Goes before a member whose type may be empty: it then takes no room. Compilers for Windows have an attribute of
//! their own for it, or none.
#if (defined(_MSC_VER) && !defined(__clang__)) || __has_cpp_attribute(msvc::no_unique_address)
#define ESPALIER_NO_UNIQUE_ADDRESS [[msvc::no_unique_address]]
#elif __has_cpp_attribute(no_unique_address)
#define ESPALIER_NO_UNIQUE_ADDRESS [[no_unique_address]]
#else
#define ESPALIER_NO_UNIQUE_ADDRESS
#endif

//! Defines the concept NAME: a class that has a member called `member`, whatever the member's type. It holds if
//! `member` is ambiguous in a class that is derived from both the given class and a probe with such a member.
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

//! Defines the struct NAME, which stands for a mistake that is found when a program is compiled. A function that
//! returns a NAME must not be called: if it is, the compiler's first error is the sentence, and nvcc's names NAME.
#if defined(__CUDACC__)
#define ESPALIER_MISTAKE(NAME, sentence)     \
  struct NAME {                              \
    static constexpr bool is_mistake = true; \
    constexpr NAME(const auto&...) {}        \
    ~NAME() = delete;                        \
  }
#else
#define ESPALIER_MISTAKE(NAME, sentence)                        \
  struct NAME {                                                 \
    static constexpr bool is_mistake = true;                    \
    constexpr NAME(const auto&...) {}                           \
    __attribute__((unavailable(sentence))) constexpr ~NAME() {} \
  }
#endif

//! 1 where errors are thrown, 0 where they go to espalier::error_handler().
#if !defined(ESPALIER_EXCEPTIONS)
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define ESPALIER_EXCEPTIONS 1
#else
#define ESPALIER_EXCEPTIONS 0
#endif
#endif

//! 0 for a machine without an operating system: lists take memory from a static_decoder and never from a heap; there is
//! no clock, no source of random seeds, and nowhere to write to. It must have one value in the whole program.
#if !defined(ESPALIER_HOSTED)
#define ESPALIER_HOSTED 1
#endif
#if !ESPALIER_HOSTED && ESPALIER_EXCEPTIONS
#error "ESPALIER_HOSTED is 0: compile with -fno-exceptions"
#endif

//! The type espalier::wide_number: double, or float for a processor without fast double arithmetic. Only a program
//! without device code may choose float. The macro must have one value in the whole program.
#if !defined(ESPALIER_WIDE_NUMBER)
#define ESPALIER_WIDE_NUMBER double
#endif

//! 1 uses assembly for the products of small models on a Cortex-M4 or M7; 0 leaves them to the compiler. The assembly
//! needs all registers, so it cannot be used in code with a frame pointer, or with r9 reserved for something else.
#if !defined(ESPALIER_DSP_ASSEMBLY)
#if defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && defined(__OPTIMIZE__)
#define ESPALIER_DSP_ASSEMBLY 1
#else
#define ESPALIER_DSP_ASSEMBLY 0
#endif
#endif

//! 1 checks laws that take time to check, such as that trees follow the policy's regime. It must have one value in the
//! whole program.
#if !defined(ESPALIER_CHECKS)
#define ESPALIER_CHECKS 0
#endif
