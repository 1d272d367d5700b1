// SPDX-License-Identifier: BSL-1.0
#pragma once

// CUDA's vector types: float2, uint4, dim3, and make_float2 and the like.

// clang-format off
#define EMULATOR_VECTORS(name, T)                                                                                   \
  struct name##1 { T x; };                                                                                          \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                \
  struct name##3 { T x, y, z; };                                                                                    \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };                                \
  constexpr name##1 make_##name##1(T x) { return {x}; }                                                             \
  constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }                                                     \
  constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                             \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTORS(char, signed char)
EMULATOR_VECTORS(uchar, unsigned char)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(ushort, unsigned short)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(uint, unsigned)
EMULATOR_VECTORS(longlong, long long)
EMULATOR_VECTORS(ulonglong, unsigned long long)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
#undef EMULATOR_VECTORS
// clang-format on

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1) : x(width), y(height), z(depth) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
