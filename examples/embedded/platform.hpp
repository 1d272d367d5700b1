// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

//! Where firmware.cpp prints to: a debugger (semihosting) where it runs on an Arm processor without an operating
//! system, else standard output.
inline void print(const char* text);

//! A number of a few digits after a text.
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

#if defined(__arm__) && !defined(__linux__)

inline void print(const char* text) {
  register std::int32_t operation asm("r0") = 4;  // SYS_WRITE0
  register const char* argument asm("r1") = text;
  asm volatile("bkpt 0xab" : "+r"(operation) : "r"(argument) : "memory");
}

//! Bytes of the stack that have been in use so far.
extern "C" std::int32_t used_stack();

#else

inline std::int32_t used_stack() {
  return 0;  // not measured
}

#include <unistd.h>

#include <cstring>

inline void print(const char* text) {
  const ssize_t n = write(1, text, std::strlen(text));
  (void)n;
}

#endif
