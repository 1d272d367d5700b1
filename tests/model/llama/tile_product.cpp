// SPDX-License-Identifier: BSL-1.0

#include "espalier/model/llama/tile_product.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <ucontext.h>
#endif

#include "../../../cmake/amx_memory.h"
#include "catch.hpp"
#include "model/llama/panel_case.hpp"

namespace {

using namespace espalier;
using detail::tile_shapes;

// What AMX's instructions are defined to do, with an exception where a processor would fault.
struct tile_unit {
  static void demand(bool allowed, const char* what) {
    if (!allowed) throw std::logic_error(what);
  }

  void save(tile_shapes& to) const { to = shapes; }
  void configure(const tile_shapes& to) {
    ++configured;
    std::memset(bytes, 0, sizeof bytes);
    shapes = to;
    if (to.palette == 0) return;
    demand(to.palette == 1 && to.start_row == 0, "palette");
    for (int t = 0; t < 16; ++t) {
      demand(to.rows[t] <= (t < 8 ? 16 : 0) && to.row_bytes[t] <= 64, "the shape of a tile");
      demand((to.rows[t] == 0) == (to.row_bytes[t] == 0), "rows without bytes, or bytes without rows");
    }
  }
  void used(int t) const { demand(shapes.palette == 1 && shapes.rows[t] > 0, "a tile that is not configured"); }

  void load(int t, const void* from, std::ptrdiff_t stride) {
    clear(t);
    for (int row = 0; row < shapes.rows[t]; ++row)
      std::memcpy(bytes[t][row], static_cast<const std::byte*>(from) + row * stride, shapes.row_bytes[t]);
  }
  void clear(int t) {
    used(t);
    std::memset(bytes[t], 0, sizeof bytes[t]);
  }
  void store(int t, void* to, std::ptrdiff_t stride) {
    used(t);
    for (int row = 0; row < shapes.rows[t]; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * stride, bytes[t][row], shapes.row_bytes[t]);
  }

  void multiply(int sum, int a, int b) {
    for (const int t : {sum, a, b})
      used(t);
    demand(sum != a && sum != b && a != b, "a tile in two places");
    demand(shapes.rows[sum] == shapes.rows[a] && shapes.row_bytes[sum] == shapes.row_bytes[b] &&
               shapes.row_bytes[a] == 4 * shapes.rows[b],
           "tiles that do not fit each other");
    for (int m = 0; m < shapes.rows[sum]; ++m) {
      for (int n = 0; n < shapes.row_bytes[sum] / 4; ++n) {
        std::uint32_t dot;  // products of bytes are added as integers of 32 bits, which wrap around
        std::memcpy(&dot, &bytes[sum][m][4 * n], 4);
        for (int k = 0; k < shapes.row_bytes[a]; ++k) {
          const int product =
              static_cast<std::int8_t>(bytes[a][m][k]) * static_cast<std::int8_t>(bytes[b][k / 4][4 * n + k % 4]);
          dot += static_cast<std::uint32_t>(product);
        }
        std::memcpy(&bytes[sum][m][4 * n], &dot, 4);
      }
    }
  }

  tile_shapes shapes{.palette = 0};
  std::uint8_t bytes[8][16][64] = {};
  int configured = 0;
};

struct emulated_tiles {
  void save(tile_shapes& shapes) { unit->save(shapes); }
  void configure(const tile_shapes& shapes) { unit->configure(shapes); }
  template <int T>
  void load(const void* from, std::ptrdiff_t stride) {
    unit->load(T, from, stride);
  }
  template <int T>
  void clear() {
    unit->clear(T);
  }
  template <int SumT, int RowsT, int FoursT>
  void multiply() {
    unit->multiply(SumT, RowsT, FoursT);
  }
  template <int T>
  void store(void* to, std::ptrdiff_t stride) {
    unit->store(T, to, stride);
  }

  tile_unit* unit;
};
using emulated_product = detail::tile_product<emulated_tiles>;

template <class TilesT>
constexpr auto multiplier(detail::tile_product<TilesT>& tiles) {
  return [&tiles](const detail::integer_product& p, const auto& finish) { tiles.multiply(p, finish); };
}

}  // namespace

TEST_CASE("the emulated unit multiplies bytes with signs") {
  tile_unit unit;
  tile_shapes shapes;
  for (const int tile : {0, 1, 2}) {
    shapes.rows[tile] = 1;
    shapes.row_bytes[tile] = 4;
  }
  unit.configure(shapes);
  const std::int8_t a[4] = {-128, 127, -1, 2};
  const std::int8_t b[4] = {-128, -100, 50, 0};
  unit.load(0, a, 4);
  unit.load(1, b, 4);
  std::int32_t sum = 0;
  for (int n = 1; n <= 2; ++n) {
    unit.multiply(2, 0, 1);
    unit.store(2, &sum, 4);
    CHECK(sum == n * (128 * 128 - 127 * 100 - 50));
  }
  CHECK_THROWS_WITH(unit.clear(3), "a tile that is not configured");
}

TEST_CASE("sums in tiles are exact, for every number of rows") {
  tile_unit unit;
  emulated_product tiles(emulated_tiles{&unit});
  CHECK(wrong_sums(multiplier(tiles), 64, true) == "");
  tiles.restore();
}

#if defined(__x86_64__) && defined(__linux__)

namespace {

tile_unit trap_unit;
int trapped = 0;

// Does what the instruction of AMX at which the processor stopped is defined to do, and goes on behind it. It knows
// those with an address of a base, an index and a distance.
void do_tile_instruction(int, siginfo_t*, void* context) {
  static constexpr int registers[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  greg_t* saved = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* at = reinterpret_cast<const std::uint8_t*>(saved[REG_RIP]);
  // A prefix of three bytes, of the second map of instructions, 128 bits; then the instruction and its operands.
  if (at[0] != 0xC4 || (at[1] & 31) != 2 || (at[2] & 0x84) != 0) std::abort();
  const int kind = at[2] & 3, third = ~(at[2] >> 3) & 15, instruction = at[3], mode = at[4] >> 6, tile = at[4] >> 3 & 7,
            second = at[4] & 7;
  const std::uint8_t* next = at + 5;
  greg_t base = 0, index = 0;
  if (mode != 3) {
    int base_register = second;
    if (second == 4) {
      const int scaled = *next++, index_register = (scaled >> 3 & 7) + ((at[1] & 0x40) != 0 ? 0 : 8);
      if (index_register != 4) index = saved[registers[index_register]] << (scaled >> 6);
      base_register = scaled & 7;
    }
    if (mode == 0 && base_register == 5) std::abort();
    base = saved[registers[base_register + ((at[1] & 0x20) != 0 ? 0 : 8)]];
    if (mode == 1) base += static_cast<std::int8_t>(*next++);
    if (mode == 2) {
      std::int32_t distance;
      std::memcpy(&distance, next, 4);
      base += distance, next += 4;
    }
  }
  auto* memory = reinterpret_cast<std::byte*>(base);
  if (instruction == 0x49 && kind == 0 && mode != 3) {
    trap_unit.configure(*reinterpret_cast<const tile_shapes*>(memory + index));
  } else if (instruction == 0x49 && kind == 1 && mode != 3) {
    trap_unit.save(*reinterpret_cast<tile_shapes*>(memory + index));
  } else if (instruction == 0x49 && kind == 3 && mode == 3) {
    trap_unit.clear(tile);
  } else if (instruction == 0x4B && kind == 3 && mode != 3) {
    trap_unit.load(tile, memory, index);
  } else if (instruction == 0x4B && kind == 2 && mode != 3) {
    trap_unit.store(tile, memory, index);
  } else if (instruction == 0x5E && kind == 3 && mode == 3) {
    trap_unit.multiply(tile, second, third);
  } else {
    std::abort();
  }
  ++trapped;
  saved[REG_RIP] = reinterpret_cast<greg_t>(next);
}

}  // namespace

TEST_CASE("AMX's instructions make these products, done by the processor or, where it has none, in its place") {
  struct sigaction before {
  }, trap{};
  trap.sa_sigaction = do_tile_instruction;
  trap.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGILL, &trap, &before) == 0);
  const bool tiles_here = detail::may_use_tiles();
  detail::tile_product<detail::amx_tiles> tiles;
  // Without the other instructions of multiply_amx, which the processor may lack, too.
  CHECK(wrong_sums(multiplier(tiles), 64, true) == "");
  detail::restore_amx(tiles);
  CHECK((trapped == 0) == tiles_here);
  CHECK(sigaction(SIGILL, &before, nullptr) == 0);
}

#if !defined(__clang__)

TEST_CASE("with amx_memory.h in front, loads of other projects read what was stored before them") {
  struct sigaction before {
  }, trap{};
  trap.sa_sigaction = do_tile_instruction;
  trap.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGILL, &trap, &before) == 0);
  detail::may_use_tiles();
  constexpr int tile = 1;
  tile_shapes own{}, found{};
  {
    alignas(64) tile_shapes shapes;
    for (int t = 0; t < 8; ++t)
      own.rows[t] = shapes.rows[t] = 16, own.row_bytes[t] = shapes.row_bytes[t] = 64;
    _tile_loadconfig(&shapes);
  }
  std::uint8_t stored[16][64];
  {
    std::uint8_t bytes[16][64];
    for (int i = 0; i < 16 * 64; ++i)
      bytes[i / 64][i % 64] = static_cast<std::uint8_t>(5 * i);
    _tile_loadd(tile, bytes, 64);
  }
  detail::amx_tiles::store<tile>(stored, 64);
  detail::amx_tiles::save(found);
  detail::amx_tiles::configure({.palette = 0});
  CHECK(sigaction(SIGILL, &before, nullptr) == 0);
  CHECK(std::memcmp(&found, &own, sizeof own) == 0);
  int wrong = 0;
  for (int i = 0; i < 16 * 64; ++i)
    wrong += stored[i / 64][i % 64] != static_cast<std::uint8_t>(5 * i);
  CHECK(wrong == 0);
}

#endif

#endif

TEST_CASE("tiles are configured where the number of rows changes, and keep what others configured") {
  std::mt19937 random(5);
  tile_unit unit;
  emulated_product tiles(emulated_tiles{&unit});
  tiles.restore();
  CHECK(unit.configured == 0);  // of others they may be
  // As ggml does, other code in this thread configures tiles once, and relies on them from then on.
  tile_shapes of_others;
  of_others.rows[7] = 3;
  of_others.row_bytes[7] = 12;
  unit.configure(of_others);
  unit.configured = 0;
  for (const int rows : {20, 10, 40, 20}) {  // tiles of 10, 10, 14 and 10 rows
    INFO(rows << " rows");
    CHECK(panel_case(160, rows, random).is_exact(multiplier(tiles), true));
  }
  CHECK(unit.configured == 3);
  tiles.restore();
  CHECK(std::memcmp(&unit.shapes, &of_others, sizeof of_others) == 0);
  tiles.restore();
  CHECK(unit.configured == 4);
  CHECK(panel_case(160, 10, random).is_exact(multiplier(tiles), true));
  CHECK(unit.configured == 5);
  tiles.restore();
  CHECK(std::memcmp(&unit.shapes, &of_others, sizeof of_others) == 0);
}

TEST_CASE("tiles that nobody used are not used afterwards") {
  std::mt19937 random(5);
  tile_unit unit;
  emulated_product tiles(emulated_tiles{&unit});
  CHECK(panel_case(64, 3, random).is_exact(multiplier(tiles), true));
  tiles.restore();
  CHECK(unit.shapes.palette == 0);
}
