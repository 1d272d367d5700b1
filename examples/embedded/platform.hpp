// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

//! Prints text: to the board's first serial port if there is no operating system, else to standard output.
inline void print(const char* text);

//! Prints a number of a few digits after a text.
inline void print(const char* text, std::int32_t number) {
  print(text);
  char digits[12];
  char* begin = digits + sizeof digits - 1;
  *begin = '\0';
  do {
    *--begin = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  print(begin);
}

#if (defined(__arm__) || defined(__riscv)) && !defined(__linux__)

//! Sends text, waiting until the port has taken each byte.
extern "C" void send(const char* text);

inline void print(const char* text) {
  send(text);
}

//! Number of bytes of the stack that have been used so far.
extern "C" std::int32_t used_stack();

//! Number of instructions that the emulator has run, if it runs with -icount shift=0: on a board of Arm exact to within
//! 40, for some minutes of instructions.
extern "C" std::uint64_t instructions();
inline constexpr bool counts_instructions = true;

//! Runs two instructions n times.
inline void spend(std::uint32_t n) {
#if defined(__arm__)
  asm volatile("1: subs %0, %0, #1\n bne 1b" : "+r"(n) : : "cc");
#else
  asm volatile("1: addi %0, %0, -1\n bnez %0, 1b" : "+r"(n));
#endif
}

#else

#include <unistd.h>

#include <cstring>

inline void print(const char* text) {
  const ssize_t n = write(1, text, std::strlen(text));
  (void)n;
}

// Neither number is measured here.
inline std::int32_t used_stack() {
  return 0;
}
inline std::uint64_t instructions() {
  return 0;
}
inline constexpr bool counts_instructions = false;
inline void spend(std::uint32_t) {}

#endif
