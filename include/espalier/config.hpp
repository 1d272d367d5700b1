// SPDX-License-Identifier: BSL-1.0
#pragma once

//! The only home of macros. Each one is an annotation: no definition changes with it.

//! EXEC_CHECK_DISABLE goes before templates that call what their arguments bring along, functions of the host where these are
//! arguments of the host: nvcc need not warn of it.
#if defined(__CUDACC__)
#define ESPALIER_HOST_DEVICE __host__ __device__
#define ESPALIER_EXEC_CHECK_DISABLE _Pragma("nv_exec_check_disable")
#else
#define ESPALIER_HOST_DEVICE
#define ESPALIER_EXEC_CHECK_DISABLE
#endif

//! A kernel template: hidden, so that each shared library launches its own. Kernels in headers are templates: nvcc knows no inline ones.
#define ESPALIER_KERNEL __attribute__((visibility("hidden"))) __global__

//! Before a loop of a kernel: its turns one after the other, so that what they index may stay in registers.
#if defined(__CUDACC__)
#define ESPALIER_UNROLL _Pragma("unroll")
#else
#define ESPALIER_UNROLL
#endif

//! 1 where errors are thrown, 0 where they go to espalier::error_handler().
#if !defined(ESPALIER_EXCEPTIONS)
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define ESPALIER_EXCEPTIONS 1
#else
#define ESPALIER_EXCEPTIONS 0
#endif
#endif
