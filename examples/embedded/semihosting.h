/* SPDX-License-Identifier: BSL-1.0 */
/* What a processor asks a debugger for: Arm's semihosting, which RISC-V has taken over. QEMU is the debugger here. */
#pragma once

#include <stdint.h>

static inline intptr_t ask_debugger(intptr_t operation, const void* argument) {
#if defined(__arm__)
  register intptr_t asked __asm__("r0") = operation;
  register const void* with __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(asked) : "r"(with) : "memory");
#elif defined(__riscv)
  register intptr_t asked __asm__("a0") = operation;
  register const void* with __asm__("a1") = argument;
  /* Three instructions of four bytes, which must lie in one page. */
  __asm__ volatile(
      ".balign 16\n .option push\n .option norvc\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
      : "+r"(asked)
      : "r"(with)
      : "memory");
#endif
  return asked;
}
