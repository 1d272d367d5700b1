// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/tile_product.cpp
//
// For `g++ -include` in front of other projects' sources that use AMX, such as llama.cpp's: says that loads of tiles and
// of their shapes read memory. GCC 12's own intrinsics do not, or name only 8 bytes of the shapes' 64, so that it drops
// the stores in front of them, and the processor meets shapes that it refuses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma once

#include <immintrin.h>

#define _tile_loadconfig(shapes) \
  __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(const void*)(shapes)) : "memory")

#undef _tile_loadd
#define _tile_loadd(tile, from, stride) espalier_tile_load("", tile, from, stride)
#undef _tile_stream_loadd
#define _tile_stream_loadd(tile, from, stride) espalier_tile_load("t1", tile, from, stride)
#define espalier_tile_load(kind, tile, from, stride)                                                     \
  __asm__ volatile("{tileloadd" kind " (%0,%1,1), %%tmm%c2|tileloadd" kind " tmm%c2, [%0+%1*1]}"          \
                   :                                                                                     \
                   : "r"((const void*)(from)), "r"((long)(stride)), "i"(tile)                            \
                   : "memory")
#endif
