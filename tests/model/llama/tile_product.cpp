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

  void configure(const tile_shapes& to) {
    demand(to.palette == 1 && to.start_row == 0, "palette");
    for (int t = 0; t < 16; ++t) {
      demand(to.rows[t] <= (t < 8 ? 16 : 0) && to.row_bytes[t] <= 64, "the shape of a tile");
      demand((to.rows[t] == 0) == (to.row_bytes[t] == 0), "rows without bytes, or bytes without rows");
    }
    shapes = to;
    std::memset(bytes, 0, sizeof bytes);
    ++configured;
  }
  void release() {
    shapes.palette = 0;
    ++released;
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
          const int product = static_cast<std::int8_t>(bytes[a][m][k]) * bytes[b][k / 4][4 * n + k % 4];
          dot += static_cast<std::uint32_t>(product);
        }
        std::memcpy(&bytes[sum][m][4 * n], &dot, 4);
      }
    }
  }

  tile_shapes shapes{.palette = 0};
  std::uint8_t bytes[8][16][64] = {};
  int configured = 0, released = 0;
};

struct emulated_tiles {
  void configure(const tile_shapes& shapes) { unit->configure(shapes); }
  void release() { unit->release(); }
  template <int T>
  void load(const void* from, std::ptrdiff_t stride) {
    unit->load(T, from, stride);
  }
  template <int T>
  void clear() {
    unit->clear(T);
  }
  template <int SumT, int SignedT, int UnsignedT>
  void multiply() {
    unit->multiply(SumT, SignedT, UnsignedT);
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
  return [&tiles](const detail::integer_product& p) { tiles.multiply(p); };
}

}  // namespace

TEST_CASE("the emulated unit multiplies bytes with a sign by bytes without one") {
  tile_unit unit;
  tile_shapes shapes;
  for (const int tile : {0, 1, 2}) {
    shapes.rows[tile] = 1;
    shapes.row_bytes[tile] = 4;
  }
  unit.configure(shapes);
  const std::int8_t a[4] = {-128, 127, -1, 2};
  const std::uint8_t b[4] = {255, 128, 200, 0};
  unit.load(0, a, 4);
  unit.load(1, b, 4);
  std::int32_t sum = 0;
  for (int n = 1; n <= 2; ++n) {
    unit.multiply(2, 0, 1);
    unit.store(2, &sum, 4);
    CHECK(sum == n * (-128 * 255 + 127 * 128 - 200));
  }
  CHECK_THROWS_WITH(unit.clear(3), "a tile that is not configured");
}

TEST_CASE("products in tiles have the bits of the portable form, for every type and number of rows") {
  tile_unit unit;
  emulated_product tiles(emulated_tiles{&unit});
  CHECK(differing_bits(multiplier(tiles), 64) == "");
  tiles.release();
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
  } else if (instruction == 0x49 && kind == 0) {
    trap_unit.release();
  } else if (instruction == 0x49 && kind == 3 && mode == 3) {
    trap_unit.clear(tile);
  } else if (instruction == 0x4B && kind == 3 && mode != 3) {
    trap_unit.load(tile, memory, index);
  } else if (instruction == 0x4B && kind == 2 && mode != 3) {
    trap_unit.store(tile, memory, index);
  } else if (instruction == 0x5E && kind == 2 && mode == 3) {
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
  CHECK(differing_bits(multiplier(tiles), 64) == "");
  detail::release_amx(tiles);
  CHECK((trapped == 0) == tiles_here);
  CHECK(sigaction(SIGILL, &before, nullptr) == 0);
}

#endif

TEST_CASE("tiles are configured where the shape changes, and released once") {
  std::mt19937 random(5);
  tile_unit unit;
  emulated_product tiles(emulated_tiles{&unit});
  tiles.release();
  CHECK(unit.released == 0);  // of others they may be
  const panel_case whole(weight_type::q4_0, 512, 20, random), again(weight_type::q8_0, 512, 20, random),
      halves(weight_type::q6_k, 512, 20, random), more(weight_type::q6_k, 512, 32, random);
  for (const panel_case* c : {&whole, &again, &halves, &more, &whole})
    CHECK(c->has_portable_bits(multiplier(tiles)));
  CHECK(unit.configured == 4);
  tiles.release();
  tiles.release();
  CHECK(unit.released == 1);
  CHECK(whole.has_portable_bits(multiplier(tiles)));
  CHECK(unit.configured == 5);
  tiles.release();
}
