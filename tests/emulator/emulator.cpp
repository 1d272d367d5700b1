// SPDX-License-Identifier: BSL-1.0
#include <cooperative_groups.h>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cub/cub.cuh>
#include <cuda/functional>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/cuda/core/matrix_descriptor.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"

// Tests of the emulated device itself, on which the tests of kernels rely.

namespace {

namespace cg = cooperative_groups;
using espalier::cuda::shared_memory;

//! Device memory; the emulator lets the host read it.
template <class T>
struct array {
  explicit array(std::size_t n) : size(n) { REQUIRE(cudaMalloc(&data, n * sizeof(T)) == cudaSuccess); }
  explicit array(const std::vector<T>& from) : array(from.size()) { std::copy(from.begin(), from.end(), data); }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() { (void)cudaFree(data); }
  std::vector<T> host() const { return {data, data + size}; }

  T* data = nullptr;
  std::size_t size;
};

struct shape {
  dim3 grid = 1, block = 1;
  std::size_t shared = 0;
  unsigned cluster = 1;
  bool cooperative = false;
  cudaStream_t stream = nullptr;
  bool overlaps = false;
};

template <class... P, class... A>
cudaError_t launch(const shape& how, void (*kernel)(P...), A... arguments) {
  cudaLaunchAttribute attributes[3] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {how.cluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = how.cooperative ? 1 : 0;
  attributes[2].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[2].val.programmaticStreamSerializationAllowed = how.overlaps ? 1 : 0;
  cudaLaunchConfig_t config = {};
  config.gridDim = how.grid, config.blockDim = how.block, config.dynamicSmemBytes = how.shared;
  config.stream = how.stream, config.attrs = attributes, config.numAttrs = 3;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

//! The output to stderr of a child process that is aborted; empty if it is not aborted.
template <class F>
std::string last_words(F work) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    work();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? std::string{} : text;
}

bool mentions(const std::string& text, const std::string& part) {
  CAPTURE(text, part);
  return text.find(part) != std::string::npos;
}

std::vector<int> random_ints(std::size_t n, int low, int high, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> out(n);
  for (int& x : out)
    x = std::uniform_int_distribution<int>(low, high)(random);
  return out;
}

unsigned flat_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
unsigned flat_block() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

// ---- execution

__global__ void visit_all(int* visits) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(visits + flat_block() * threads + flat_thread(), 1);
}

TEST_CASE("every thread of every block runs once") {
  const shape how{dim3(3, 2, 4), dim3(5, 3, 7)};
  array<int> visits(std::vector<int>(24 * 105));
  REQUIRE(launch(how, visit_all, visits.data) == cudaSuccess);
  CHECK(visits.host() == std::vector<int>(24 * 105, 1));
}

__global__ void rotate(int* out, bool with_barrier) {
  auto* room = reinterpret_cast<int*>(shared_memory());
  room[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = room[(threadIdx.x + 1) % blockDim.x];
}

TEST_CASE("a missing barrier shows") {
  const unsigned n = GENERATE(32U, 100U, 1024U);
  std::vector<int> expected(n);
  for (unsigned i = 0; i < n; ++i)
    expected[i] = static_cast<int>((i + 1) % n);
  array<int> out(n);
  int wrong = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    emulator::seed(seed);
    REQUIRE(launch({1, n, 4 * n}, rotate, out.data, true) == cudaSuccess);
    CHECK(out.host() == expected);
    REQUIRE(launch({1, n, 4 * n}, rotate, out.data, false) == cudaSuccess);
    wrong += out.host() != expected ? 1 : 0;
  }
  CHECK(wrong == 20);
}

__global__ void draw_tickets(int* counter, int* out) {
  out[threadIdx.x] = atomicAdd(counter, 1);
  __syncthreads();
  out[blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
}

TEST_CASE("the seed decides the order, and the order changes at every barrier") {
  const auto order = [](unsigned seed) {
    emulator::seed(seed);
    array<int> counter(std::vector<int>{0}), out(256);
    REQUIRE(launch({1, 128}, draw_tickets, counter.data, out.data) == cudaSuccess);
    return out.host();
  };
  const auto first = order(7);
  CHECK(order(7) == first);
  CHECK(order(8) != first);
  std::vector<int> second_half(first.begin() + 128, first.end());
  for (int& ticket : second_half)
    ticket -= 128;
  CHECK(std::vector<int>(first.begin(), first.begin() + 128) != second_half);
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> all(256);
  std::iota(all.begin(), all.end(), 0);
  CHECK(sorted == all);
}

__global__ void read_fresh_shared(unsigned char* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared_memory()[threadIdx.x];
  __syncthreads();
  shared_memory()[threadIdx.x] = 1;
}

TEST_CASE("shared memory is garbage in every block") {
  array<unsigned char> out(96);
  REQUIRE(launch({3, 32, 32}, read_fresh_shared, out.data) == cudaSuccess);
  CHECK(out.host() == std::vector<unsigned char>(96, 0xCD));
}

__global__ void vote_in_block(int* out, int bound) {
  const int predicate = static_cast<int>(threadIdx.x) < bound;
  const int count = __syncthreads_count(predicate), any = __syncthreads_or(predicate),
            all = __syncthreads_and(predicate);
  out[threadIdx.x] = count * 4 + any * 2 + all;
}

TEST_CASE("barriers count predicates") {
  const int bound = GENERATE(0, 1, 37, 70);
  array<int> out(70);
  REQUIRE(launch({1, 70}, vote_in_block, out.data, bound) == cudaSuccess);
  CHECK(out.host() == std::vector<int>(70, bound * 4 + (bound > 0 ? 2 : 0) + (bound == 70 ? 1 : 0)));
}

// ---- faults that end the program

__global__ void half_sync() {
  if (threadIdx.x % 2 == 0) __syncthreads();
}
__global__ void parted() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp();
    __shfl_sync(0xFFFFFFFFU, 1, threadIdx.x < 40 ? 0 : 1);
    if (threadIdx.x == 33) cg::this_cluster().sync();
    __syncthreads();
  }
}
__global__ void two_shuffles() {
  if (threadIdx.x < 16) {
    __shfl_sync(0xFFFFFFFFU, 1, 0);
  } else {
    __ballot_sync(0xFFFFFFFFU, 1);
  }
}
__global__ void outside_mask() {
  __syncwarp(0xFFFFU);
}
__global__ void awaits(unsigned n) {
  if (threadIdx.x < n) cudaGridDependencySynchronize();
}
__global__ void write_beyond(int bytes) {
  if (threadIdx.x == 0) shared_memory()[bytes] = 1;
}
__global__ void poll_for_ever(const volatile int* flag) {
  while (*flag == 0)
    __nanosleep(10);
}
__global__ void trap_one() {
  if (threadIdx.x == 5) __trap();
}
__global__ void sync_grid() {
  cg::this_grid().sync();
}

TEST_CASE("faults of synchronisation end the program with a sentence") {
  const std::string half = last_words([] { (void)launch({2, 64}, half_sync); });
  CHECK(mentions(half, "deadlock: thread (0, 0, 0) of block ("));
  CHECK(mentions(half, "waits in __syncthreads, but thread (1, 0, 0) of block ("));
  CHECK(mentions(half, "has finished"));
  const std::string parts = last_words([] { (void)launch({1, 64}, parted); });
  CHECK(mentions(parts, "thread (0, 0, 0) of block (0, 0, 0) waits in __syncthreads"));
  CHECK(mentions(parts, "thread (33, 0, 0) of block (0, 0, 0) waits in cluster.sync"));
  CHECK(mentions(last_words([] { (void)launch({1, 32}, two_shuffles); }), "meet in different operations"));
  CHECK(mentions(last_words([] { (void)launch({1, 32}, outside_mask); }), "lane "));
  CHECK(last_words([] { (void)launch({.grid = 2, .block = 32, .overlaps = true}, awaits, 32U); }).empty());
  CHECK(mentions(last_words([] { (void)launch({.grid = 2, .block = 32, .overlaps = true}, awaits, 31U); }),
                 "did not wait for the one before it"));
  CHECK(last_words([] { (void)launch({.grid = 2, .block = 32}, awaits, 0U); }).empty());
  CHECK(mentions(last_words([] {
                   (void)launch({1, 32}, trap_one);
                 }),
                 "thread (5, 0, 0) of block (0, 0, 0) called __trap"));
  CHECK(mentions(last_words([] { (void)launch({2, 32}, sync_grid); }), "not launched cooperatively"));
  CHECK(mentions(last_words([] { __syncthreads(); }), "outside a kernel"));
  CHECK(last_words([] { (void)launch({2, 32, 16}, write_beyond, 15); }).empty());
  CHECK_FALSE(last_words([] { (void)launch({2, 32, 16}, write_beyond, 16); }).empty());
  const std::string polled = last_words([] {
    emulator::patience() = 10'000;
    array<int> flag(std::vector<int>{0});
    (void)launch({1, 32}, poll_for_ever, flag.data);
  });
  CHECK(mentions(polled, "polling in vain"));
}

// ---- warpgroups

namespace ptx = espalier::cuda::ptx;

// The 16 bytes of shared memory that are a descriptor's chunks, in order: [line][chunk].
__global__ void read_chunks(std::uint64_t layout, bool transposed, unsigned lines, unsigned chunks, int* out) {
  unsigned char* memory = shared_memory();
  memory += -ptx::address_of(memory) & 1023U;
  auto* const numbers = reinterpret_cast<std::uint16_t*>(memory);
  for (unsigned i = 0; i < 8 * 1024; ++i)
    numbers[i] = static_cast<std::uint16_t>(i / 8);
  const espalier::cuda::matrix_descriptor matrix{layout | (ptx::address_of(memory) & 0x3FFFFU) >> 4};
  for (unsigned line = 0; line < lines; ++line) {
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      std::uint16_t got[8];
      ptx::emulated::read_chunk(matrix, transposed, line, chunk, got);
      out[line * chunks + chunk] = got[0];
    }
  }
}

std::vector<int> chunks_of(std::uint64_t mode, std::uint64_t leading, std::uint64_t stride, bool transposed,
                           unsigned lines, unsigned chunks) {
  array<int> out(std::vector<int>(lines * chunks));
  const std::uint64_t layout = mode << 62 | leading / 16 << 16 | stride / 16 << 32;
  (void)launch({1, 1, 1024 + 16 * 1024}, read_chunks, layout, transposed, lines, chunks, out.data);
  return out.host();
}

TEST_CASE("matrices of warpgroups lie where their descriptors say") {
  // No swizzle: eight lines of one chunk are 128 bytes; K-major the next chunk is one leading offset away, and the next
  // eight lines one stride; MN-major it is the other way round.
  const auto plain = chunks_of(0, 128, 512, false, 16, 2), plain_across = chunks_of(0, 128, 512, true, 16, 8);
  CHECK(plain[0] == 0);
  CHECK(plain[1] == 8);
  CHECK(plain[2 * 7] == 7);
  CHECK(plain[2 * 9 + 1] == 32 + 8 + 1);
  CHECK(plain_across[1] == 32);
  CHECK(plain_across[8 * 9 + 3] == 8 + 1 + 3 * 32);
  // Swizzles of 32, 64 and 128 bytes: lines are that wide, and chunks change places with the lines' pattern.
  for (const std::uint64_t mode : {1U, 2U, 3U}) {
    const int width = 16 >> mode;
    const auto lines = chunks_of(mode, 16, 1024, false, 16, 2);
    const auto across = chunks_of(mode, 4096, 1024, true, 16, 8);
    for (int line = 0; line < 16; ++line) {
      const int first = line / 8 * 64 + line % 8 * width, pattern = first / 8 % width;
      for (int chunk = 0; chunk < 2; ++chunk)
        CHECK(lines[static_cast<std::size_t>(2 * line + chunk)] == first + (chunk ^ pattern));
      for (int chunk = 0; chunk < 8; ++chunk) {
        CHECK(across[static_cast<std::size_t>(8 * line + chunk)] ==
              chunk / width * 256 + first + (chunk % width ^ pattern));
      }
    }
  }
}

enum class slip { none, unshown, unfenced, uncommitted, parted, short_arrivals };

__global__ void multiply_once(slip how, const std::uint16_t* zeros) {
  unsigned char* memory = shared_memory();
  memory += -ptx::address_of(memory) & 1023U;
  const ptx::shared_address counter = ptx::address_of(memory + 8192);
  for (unsigned i = threadIdx.x; i < 512; i += 128)
    ptx::copy_async_16(ptx::address_of(memory + 16 * i), zeros + 8 * i, true);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  if (how != slip::unshown || threadIdx.x != 72) ptx::show_to_products();
  if (threadIdx.x == 0) ptx::begin_arrivals(counter, how == slip::short_arrivals ? 129 : 128);
  __syncthreads();
  ptx::arrive(counter);
  ptx::await_arrivals(counter, 0);
  const auto matrix = espalier::cuda::matrix_descriptor::at(ptx::address_of(memory));
  float sum[8][4];
  if (how != slip::unfenced) ptx::products_begin();
  ptx::start_product<__half>(sum, matrix, matrix.moved(how == slip::parted && threadIdx.x == 77 ? 32 : 0), false);
  if (how != slip::uncommitted) ptx::products_commit();
  ptx::products_wait();
  if (sum[0][0] != 0.0F) __trap();
}

TEST_CASE("faults of warpgroups end the program with a sentence") {
  const auto words = [](slip how) {
    return last_words([how] {
      array<std::uint16_t> zeros(std::vector<std::uint16_t>(4096));
      (void)launch({1, 128, 1024 + 8192 + 8}, multiply_once, how, zeros.data);
    });
  };
  CHECK(words(slip::none).empty());
  CHECK(mentions(words(slip::unshown), "not shown to it by fence.proxy.async"));
  CHECK(mentions(words(slip::unfenced), "without a wgmma.fence"));
  CHECK(mentions(words(slip::uncommitted), "before wgmma.commit_group"));
  CHECK(mentions(words(slip::parted), "different products"));
  CHECK(mentions(words(slip::short_arrivals), "waits in mbarrier.try_wait"));
}

// ---- warps

__global__ void shuffle_all(int* out, unsigned width) {
  const int mine = static_cast<int>(threadIdx.x) * 10, w = static_cast<int>(width);
  int* at = out + threadIdx.x * 4;
  at[0] = __shfl_sync(~0U, mine, 3, w);
  at[1] = __shfl_up_sync(~0U, mine, 2, w);
  at[2] = __shfl_down_sync(~0U, mine, 2, w);
  at[3] = __shfl_xor_sync(~0U, mine, 5, w);
}

TEST_CASE("shuffles read the lane they name") {
  const int width = GENERATE(8, 16, 32);
  array<int> out(64 * 4);
  REQUIRE(launch({1, 64}, shuffle_all, out.data, static_cast<unsigned>(width)) == cudaSuccess);
  for (int i = 0; i < 64; ++i) {
    const int first = i / width * width;
    const int* at = out.data + 4 * i;
    CHECK(at[0] == 10 * (first + 3));
    CHECK(at[1] == 10 * (i - 2 >= first ? i - 2 : i));
    CHECK(at[2] == 10 * (i + 2 < first + width ? i + 2 : i));
    CHECK(at[3] == 10 * (i ^ 5));
  }
}

__global__ void shuffle_wide(double* out, int* absent) {
  const double d = __shfl_sync(~0U, 0.5 * threadIdx.x, 1);
  const __half h = __shfl_sync(~0U, __float2half(static_cast<float>(threadIdx.x)), 2);
  out[threadIdx.x] = d + static_cast<double>(__half2float(h));
  absent[threadIdx.x] = __shfl_down_sync(~0U, 1, 16);
}

TEST_CASE("a warp may end early, and what a missing lane would give is garbage") {
  array<double> out(20);
  array<int> absent(20);
  REQUIRE(launch({1, 20}, shuffle_wide, out.data, absent.data) == cudaSuccess);
  CHECK(out.host() == std::vector<double>(20, 2.5));
  for (std::size_t i = 0; i < 20; ++i)
    CHECK(absent.data[i] == (i < 4 || i >= 16 ? 1 : static_cast<int>(0xCDCDCDCD)));
}

__global__ void groups_apart(int* out) {
  const unsigned third = threadIdx.x % 3;
  const unsigned mask = third == 0 ? 0x49249249U : third == 1 ? 0x92492492U : 0x24924924U;
  int sum = static_cast<int>(threadIdx.x);
  for (unsigned i = 0; i <= 5 * third; ++i)
    sum = __reduce_add_sync(mask, sum) % 1009;
  if (third == 2) return;  // the others go on without these lanes
  out[threadIdx.x] = static_cast<int>(__ballot_sync(~0U, third == 0)) ^ sum;
}

TEST_CASE("groups of lanes go their own ways and meet again") {
  array<int> out(std::vector<int>(32));
  REQUIRE(launch({1, 32}, groups_apart, out.data) == cudaSuccess);
  for (int i = 0; i < 32; ++i) {
    std::vector<int> values;
    for (int k = i % 3; k < 32; k += 3)
      values.push_back(k);
    int sum = std::accumulate(values.begin(), values.end(), 0) % 1009;
    for (int round = 0; round < 5 * (i % 3); ++round)
      sum = sum * static_cast<int>(values.size()) % 1009;
    CHECK(out.data[i] == (i % 3 == 2 ? 0 : (0x49249249 ^ sum)));
  }
}

__global__ void warp_votes(unsigned* out) {
  const unsigned lane = threadIdx.x, active = __activemask();
  const unsigned ballot = __ballot_sync(~0U, lane % 5 == 0);
  const int any = __any_sync(~0U, lane == 9), all = __all_sync(~0U, lane < 32), none = __any_sync(~0U, 0);
  const unsigned peers = __match_any_sync(~0U, lane % 3);
  const int low = __reduce_min_sync(~0U, static_cast<int>(lane) - 7),
            high = __reduce_max_sync(~0U, -static_cast<int>(lane));
  if (lane == 4) {
    out[0] = ballot, out[1] = static_cast<unsigned>(any * 4 + all * 2 + none), out[2] = peers;
    out[3] = static_cast<unsigned>(low), out[4] = static_cast<unsigned>(high), out[5] = active;
  }
}

TEST_CASE("warp votes") {
  array<unsigned> out(6);
  REQUIRE(launch({1, 32}, warp_votes, out.data) == cudaSuccess);
  CHECK(out.host() == std::vector<unsigned>{0x42108421U, 6U, 0x92492492U, 0xFFFFFFF9U, 0U, 0xFFFFFFFFU});
}

__global__ void tiles(int* out) {
  const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int sum = static_cast<int>(threadIdx.x);
  for (unsigned step = 4; step > 0; step /= 2)
    sum += tile.shfl_down(sum, step);
  sum = tile.shfl(sum, 0);
  tile.sync();
  out[threadIdx.x] = sum * 8 + static_cast<int>(tile.thread_rank());
}

TEST_CASE("tiles of a warp") {
  array<int> out(64);
  REQUIRE(launch({1, 64}, tiles, out.data) == cudaSuccess);
  for (int i = 0; i < 64; ++i)
    CHECK(out.data[i] == (i / 8 * 64 + 28) * 8 + i % 8);
}

// ---- atomics

__global__ void count_under_lock(int* lock, int* count, unsigned* extremes, float* sum) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  const int seen = *count;
  __nanosleep(1);  // others try to come in
  *count = seen + 1;
  __threadfence();
  atomicExch(lock, 0);
  atomicMax(extremes, threadIdx.x), atomicMin(extremes + 1, threadIdx.x),
      atomicOr(extremes + 2, 1U << (threadIdx.x % 32));
  atomicAdd(sum, 0.5F);
}

TEST_CASE("atomics, and a lock that others poll") {
  array<int> lock(std::vector<int>{0}), count(std::vector<int>{0});
  array<unsigned> extremes(std::vector<unsigned>{0, 99, 0});
  array<float> sum(std::vector<float>{0});
  REQUIRE(launch({2, 64}, count_under_lock, lock.data, count.data, extremes.data, sum.data) == cudaSuccess);
  CHECK(count.data[0] == 128);
  CHECK(extremes.host() == std::vector<unsigned>{63, 0, ~0U});
  CHECK(sum.data[0] == 64.0F);
}

TEST_CASE("bits and rounding") {
  CHECK(__popc(0xF0U) == 4);
  CHECK(__clz(1) == 31);
  CHECK(__clz(0) == 32);
  CHECK(__ffs(0) == 0);
  CHECK(__ffs(8) == 4);
  CHECK(__ffsll(1LL << 40) == 41);
  CHECK(__brev(1U) == 0x80000000U);
  CHECK(__uint_as_float(__float_as_uint(-1.5F)) == -1.5F);
  CHECK(__longlong_as_double(__double_as_longlong(-1.5)) == -1.5);
  CHECK(__fmaf_rn(1.0F + 0x1p-12F, 1.0F + 0x1p-12F, -1.0F) !=
        __fadd_rn(__fmul_rn(1.0F + 0x1p-12F, 1.0F + 0x1p-12F), -1.0F));
  CHECK(max(std::numeric_limits<float>::quiet_NaN(), 1.0F) == 1.0F);
}

// ---- clusters and grids

__global__ void pass_round(unsigned* out) {
  auto* room = reinterpret_cast<unsigned*>(shared_memory());
  const auto cluster = cg::this_cluster();
  room[threadIdx.x] = cluster.block_rank() * 1000 + threadIdx.x;
  cluster.sync();
  const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
  const unsigned theirs = *cluster.map_shared_rank(room + threadIdx.x, next);
  const auto token = cluster.barrier_arrive();
  out[blockIdx.x * blockDim.x + threadIdx.x] = theirs;
  cluster.barrier_wait(token);
  room[threadIdx.x] = 0;
}

TEST_CASE("the blocks of a cluster read each other's shared memory") {
  const unsigned size = GENERATE(1U, 2U, 8U, 16U);
  REQUIRE(cudaFuncSetAttribute(pass_round, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess);
  array<unsigned> out(3 * size * 48);
  REQUIRE(launch({3 * size, 48, 48 * 4, size}, pass_round, out.data) == cudaSuccess);
  for (unsigned i = 0; i < out.size; ++i)
    CHECK(out.data[i] == (i / 48 % size + 1) % size * 1000 + i % 48);
}

__global__ void add_all(const int* in, int* partial, int* out) {
  if (threadIdx.x == 0) partial[blockIdx.x] = in[blockIdx.x];
  cg::this_grid().sync();
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i)
    sum += partial[i];
  out[cg::this_grid().thread_rank()] = sum;
}

TEST_CASE("a cooperative grid lives all at once") {
  array<int> in(random_ints(40, 0, 99, 1)), partial(40), out(40 * 33);
  const auto values = in.host();
  REQUIRE(launch({40, 33, 0, 4, true}, add_all, in.data, partial.data, out.data) == cudaSuccess);
  CHECK(out.host() == std::vector<int>(40 * 33, std::accumulate(values.begin(), values.end(), 0)));
}

// ---- CUB

template <int Threads>
__global__ void reduce_block(const int* in, int* out, int valid) {
  using reduce = cub::BlockReduce<int, Threads>;
  auto& room = *reinterpret_cast<typename reduce::TempStorage*>(shared_memory());
  const int x = in[threadIdx.x];
  const int sum = reduce(room).Sum(x);
  __syncthreads();
  const int first = reduce(room).Sum(x, valid);
  __syncthreads();
  const int most = reduce(room).Reduce(x, ::cuda::maximum<>{});
  if (threadIdx.x == 0) out[0] = sum, out[1] = first, out[2] = most;
}

template <int Threads>
void check_reduce() {
  using storage = typename cub::BlockReduce<int, Threads>::TempStorage;
  for (unsigned seed = 0; seed < 10; ++seed) {
    const auto in = random_ints(Threads, -1000, 1000, seed);
    const int valid = random_ints(1, 1, Threads, seed)[0];
    array<int> device(in), out(3);
    REQUIRE(launch({1, Threads, sizeof(storage)}, reduce_block<Threads>, device.data, out.data, valid) == cudaSuccess);
    CHECK(out.data[0] == std::accumulate(in.begin(), in.end(), 0));
    CHECK(out.data[1] == std::accumulate(in.begin(), in.begin() + valid, 0));
    CHECK(out.data[2] == *std::max_element(in.begin(), in.end()));
  }
}

TEST_CASE("BlockReduce") {
  check_reduce<20>(), check_reduce<32>(), check_reduce<96>(), check_reduce<500>(), check_reduce<1024>();
}

__global__ void reduce_without_barrier(int* wrong) {
  using reduce = cub::BlockReduce<int, 128>;
  auto& room = *reinterpret_cast<reduce::TempStorage*>(shared_memory());
  for (int i = 0; i < 8; ++i) {
    const int sum = reduce(room).Sum(i);
    if (threadIdx.x == 0 && sum != 128 * i) atomicAdd(wrong, 1);
  }
}

TEST_CASE("to use TempStorage again without a barrier goes wrong") {
  array<int> wrong(std::vector<int>{0});
  for (unsigned seed = 0; seed < 20; ++seed) {
    emulator::seed(seed);
    REQUIRE(launch({1, 128, 1024}, reduce_without_barrier, wrong.data) == cudaSuccess);
  }
  CHECK(wrong.data[0] > 0);
}

//! Scans tile after tile, the running sum handed on by a callback.
struct running_sum {
  int before;
  int operator()(int tile) { return std::exchange(before, before + tile); }
};

template <int Threads, int Items>
__global__ void scan_tiles(const int* in, int* exclusive, int* inclusive, int* highest, int* totals, int n_tiles) {
  using scan = cub::BlockScan<int, Threads>;
  auto& room = *reinterpret_cast<typename scan::TempStorage*>(shared_memory());
  running_sum running{100};
  for (int tile = 0; tile < n_tiles; ++tile) {
    const std::size_t base = (static_cast<std::size_t>(tile) * Threads + threadIdx.x) * Items;
    int items[Items] = {}, sums[Items], total = 0, most = 0;
    std::copy(in + base, in + base + Items, items);
    scan(room).ExclusiveSum(items, sums, running);
    std::copy(sums, sums + Items, exclusive + base);
    __syncthreads();
    scan(room).InclusiveSum(items, sums, total);
    std::copy(sums, sums + Items, inclusive + base);
    __syncthreads();
    scan(room).ExclusiveScan(items[0], most, -5, ::cuda::maximum<>{});
    highest[static_cast<std::size_t>(tile) * Threads + threadIdx.x] = most;
    __syncthreads();
    if (threadIdx.x == 0) totals[tile] = total;
  }
}

template <int Threads, int Items>
void check_scan() {
  using storage = typename cub::BlockScan<int, Threads>::TempStorage;
  constexpr int n_tiles = 4, per_tile = Threads * Items;
  const auto in = random_ints(n_tiles * per_tile, -50, 50, Threads);
  array<int> device(in), exclusive(in.size()), inclusive(in.size()), highest(n_tiles * Threads), totals(n_tiles);
  REQUIRE(launch({1, Threads, sizeof(storage)}, scan_tiles<Threads, Items>, device.data, exclusive.data, inclusive.data,
                 highest.data, totals.data, n_tiles) == cudaSuccess);
  std::vector<int> sums(in.size());
  std::exclusive_scan(in.begin(), in.end(), sums.begin(), 100);
  CHECK(exclusive.host() == sums);
  std::vector<int> maxima, last;
  for (auto tile = in.begin(); tile != in.end(); tile += per_tile) {
    std::inclusive_scan(tile, tile + per_tile, sums.begin() + (tile - in.begin()));
    last.push_back(std::accumulate(tile, tile + per_tile, 0));
    int most = -5;
    for (int t = 0; t < Threads; ++t) {
      maxima.push_back(most);
      most = (std::max)(most, tile[t * Items]);
    }
  }
  CHECK(inclusive.host() == sums);
  CHECK(totals.host() == last);
  CHECK(highest.host() == maxima);
}

TEST_CASE("BlockScan") {
  check_scan<20, 1>(), check_scan<32, 3>(), check_scan<100, 2>(), check_scan<512, 4>(), check_scan<1024, 1>();
}

template <class Key, int Threads, int Items>
__global__ void sort_block(Key* keys, int* values, bool descending, bool striped, int begin, int end) {
  using sort = cub::BlockRadixSort<Key, Threads, Items, int>;
  auto& room = *reinterpret_cast<typename sort::TempStorage*>(shared_memory());
  Key k[Items];
  int v[Items];
  for (int i = 0; i < Items; ++i) {
    v[i] = static_cast<int>(threadIdx.x) * Items + i;
    k[i] = keys[v[i]];
  }
  if (descending && striped) sort(room).SortDescendingBlockedToStriped(k, v, begin, end);
  if (descending && !striped) sort(room).SortDescending(k, v, begin, end);
  if (!descending && striped) sort(room).SortBlockedToStriped(k, v, begin, end);
  if (!descending && !striped) sort(room).Sort(k, v, begin, end);
  for (int i = 0; i < Items; ++i) {
    const int at = striped ? i * Threads + static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) * Items + i;
    keys[at] = k[i], values[at] = v[i];
  }
}

template <class Key, int Threads, int Items, class LessT>
void check_sort(const std::vector<Key>& in, bool descending, bool striped, int begin, int end, LessT less) {
  using storage = typename cub::BlockRadixSort<Key, Threads, Items, int>::TempStorage;
  array<Key> keys(in);
  array<int> values(in.size());
  const auto kernel = sort_block<Key, Threads, Items>;
  REQUIRE(launch({1, Threads, sizeof(storage)}, kernel, keys.data, values.data, descending, striped, begin, end) ==
          cudaSuccess);
  std::vector<int> order(in.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Key x = in[static_cast<std::size_t>(a)], y = in[static_cast<std::size_t>(b)];
    return descending ? less(y, x) : less(x, y);
  });
  CHECK(values.host() == order);
  for (std::size_t i = 0; i < in.size(); ++i)
    CHECK(keys.data[i] == in[static_cast<std::size_t>(order[i])]);
}

TEST_CASE("BlockRadixSort is stable in both directions") {
  const bool descending = GENERATE(false, true), striped = GENERATE(false, true);
  const auto ints = random_ints(100 * 3, -40, 40, 3);
  check_sort<int, 100, 3>(ints, descending, striped, 0, 32, std::less<>{});
  std::vector<float> floats;
  for (const int x : random_ints(512 * 4, -900, 900, 4))
    floats.push_back(0.25F * static_cast<float>(x));
  floats[5] = std::numeric_limits<float>::infinity(), floats[9] = -floats[5], floats[11] = 0.0F, floats[12] = -0.0F;
  check_sort<float, 512, 4>(floats, descending, striped, 0, 32, std::less<>{});
  std::vector<std::uint64_t> words;
  for (const int x : random_ints(64, 0, 1 << 20, 5))
    words.push_back(static_cast<std::uint64_t>(x) << 30);
  check_sort<std::uint64_t, 64, 1>(words, descending, striped, 33, 40, [](std::uint64_t a, std::uint64_t b) {
    return (a >> 33 & 127U) < (b >> 33 & 127U);
  });
}

template <int Threads, int Items>
__global__ void merge_sort(int* keys, int valid) {
  using sort = cub::BlockMergeSort<int, Threads, Items>;
  auto& room = *reinterpret_cast<typename sort::TempStorage*>(shared_memory());
  int k[Items];
  for (int i = 0; i < Items; ++i)
    k[i] = keys[threadIdx.x * Items + static_cast<unsigned>(i)];
  sort(room).Sort(k, ::cuda::std::greater<>{}, valid, -1);
  for (int i = 0; i < Items; ++i)
    keys[threadIdx.x * Items + static_cast<unsigned>(i)] = k[i];
}

__global__ void warp_collectives(int* keys, int* sums, int* scans) {
  using sort = cub::WarpMergeSort<int, 2, 16, int>;
  auto* room = reinterpret_cast<sort::TempStorage*>(shared_memory());
  int k[2] = {keys[threadIdx.x * 2], keys[threadIdx.x * 2 + 1]}, v[2] = {k[0], k[1]};
  typename cub::WarpReduce<int, 16>::TempStorage none;
  typename cub::WarpScan<int>::TempStorage nothing;
  const int sum = cub::WarpReduce<int, 16>(none).Sum(k[0]);
  if (threadIdx.x % 16 == 0) sums[threadIdx.x / 16] = sum;
  int before, total;
  cub::WarpScan<int>(nothing).ExclusiveSum(k[1], before, total);
  scans[threadIdx.x * 2] = before, scans[threadIdx.x * 2 + 1] = total;
  sort(room[threadIdx.x / 16]).Sort(k, v, ::cuda::std::less<>{});
  if (k[0] != v[0] || k[1] != v[1]) __trap();
  keys[threadIdx.x * 2] = k[0], keys[threadIdx.x * 2 + 1] = k[1];
}

TEST_CASE("merge sorts and warp collectives") {
  auto in = random_ints(300, 0, 1000, 8);
  array<int> keys(in);
  REQUIRE(launch({1, 100, 4096}, merge_sort<100, 3>, keys.data, 250) == cudaSuccess);
  std::sort(in.begin(), in.begin() + 250, std::greater<>{});
  std::fill(in.begin() + 250, in.end(), -1);
  CHECK(keys.host() == in);

  auto small = random_ints(128, 0, 1000, 9);
  array<int> device(small), sums(4), scans(128);
  REQUIRE(launch({1, 64, 4096}, warp_collectives, device.data, sums.data, scans.data) == cudaSuccess);
  for (std::size_t part = 0; part < 4; ++part) {
    int sum = 0;
    for (std::size_t i = 0; i < 16; ++i)
      sum += small[(part * 16 + i) * 2];
    CHECK(sums.data[part] == sum);
  }
  for (std::size_t w = 0; w < 2; ++w) {
    int before = 0;
    for (std::size_t i = w * 32; i < w * 32 + 32; ++i) {
      CHECK(scans.data[2 * i] == before);
      before += small[2 * i + 1];
    }
    CHECK(scans.data[64 * w + 1] == before);
  }
  for (std::size_t part = 0; part < 4; ++part)
    std::sort(&small[0] + part * 32, &small[0] + part * 32 + 32);
  CHECK(device.host() == small);
}

// ---- the runtime API

TEST_CASE("fresh memory reads as NaN, and is counted") {
  const std::size_t before = emulator::allocations(), bytes_before = emulator::allocated_bytes();
  float* p = nullptr;
  REQUIRE(cudaMalloc(&p, 40) == cudaSuccess);
  CHECK(std::isnan(p[9]));
  CHECK(emulator::allocations() == before + 1);
  CHECK(emulator::allocated_bytes() == bytes_before + 40);
  CHECK(cudaFree(p + 1) == cudaErrorInvalidValue);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cudaFree(p) == cudaErrorInvalidValue);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(emulator::allocations() == before);
  CHECK(emulator::allocated_bytes() == bytes_before);
  CHECK(cudaMalloc(&p, std::size_t{1} << 50) == cudaErrorMemoryAllocation);
}

TEST_CASE("addresses tell whose memory they are in") {
  float* p = nullptr;
  float* pinned = nullptr;
  REQUIRE(cudaMalloc(&p, 40) == cudaSuccess);
  REQUIRE(cudaMallocHost(&pinned, 40) == cudaSuccess);
  const auto type_of = [](const void* address) {
    cudaPointerAttributes found;
    REQUIRE(cudaPointerGetAttributes(&found, address) == cudaSuccess);
    return found.type;
  };
  const float own = 0;
  CHECK(type_of(p + 9) == cudaMemoryTypeDevice);
  CHECK(type_of(pinned + 9) == cudaMemoryTypeHost);
  CHECK(type_of(&own) == cudaMemoryTypeUnregistered);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaFree(p) == cudaSuccess);
  CHECK(type_of(p) == cudaMemoryTypeUnregistered);
}

TEST_CASE("calls are counted, and fail where a test asks for it") {
  emulator::reset();
  emulator::fail_next("cudaMemsetAsync", cudaErrorIllegalAddress);
  array<int> a(4);
  CHECK(cudaMemsetAsync(a.data, 0, 16) == cudaErrorIllegalAddress);
  CHECK(cudaMemsetAsync(a.data, 0, 16) == cudaSuccess);
  CHECK(emulator::calls("cudaMemsetAsync") == 2);
  CHECK(cudaPeekAtLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(std::string(cudaGetErrorName(cudaErrorIllegalAddress)) == "cudaErrorIllegalAddress");
  emulator::reset();
  CHECK(emulator::calls("cudaMemsetAsync") == 0);
}

__global__ void nothing() {}
__global__ void also_nothing() {}

TEST_CASE("launches that the device would refuse") {
  CHECK(launch({0, 32}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 0}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1025}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, dim3(1, 1, 65)}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({dim3(1, 65536), 1}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 32, 48 * 1024}, nothing) == cudaSuccess);
  CHECK(launch({1, 32, 48 * 1024 + 1}, nothing) == cudaErrorInvalidValue);
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  CHECK(cudaFuncSetAttribute(also_nothing, limit, 227 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(also_nothing, limit, 227 * 1024) == cudaSuccess);
  CHECK(launch({1, 32, 227 * 1024}, also_nothing) == cudaSuccess);
  CHECK(launch({1, 32, 227 * 1024 + 1}, also_nothing) == cudaErrorInvalidValue);
  CHECK(launch({1, 32, 48 * 1024 + 1}, nothing) == cudaErrorInvalidValue);
  CHECK(launch({16, 32, 0, 16}, nothing) == cudaErrorInvalidClusterSize);
  CHECK(launch({9, 32, 0, 8}, nothing) == cudaErrorInvalidConfiguration);
  CHECK(launch({132 * 2 + 1, 1024, 0, 1, true}, nothing) == cudaErrorCooperativeLaunchTooLarge);
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 1024, 0) == cudaSuccess);
  CHECK(blocks == 2);
  CHECK(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
}

__global__ void add_to(int* x, int amount) {
  *x += amount;
}

struct stream {
  explicit stream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~stream() { (void)cudaStreamDestroy(handle); }
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

TEST_CASE("a captured graph replays what was enqueued, with the arguments of then") {
  const stream s, other;
  cudaEvent_t fork = nullptr, join = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&join, cudaEventDisableTiming) == cudaSuccess);
  array<int> x(std::vector<int>{0});
  int amount = 3, host = -1, called = 0;
  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(launch({1, 1, 0, 1, false, s}, add_to, x.data, amount) == cudaSuccess);
  amount = 1000;
  CHECK(cudaEventRecord(fork, s) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other, fork) == cudaSuccess);
  CHECK(launch({1, 1, 0, 1, false, other}, add_to, x.data, 4) == cudaSuccess);
  CHECK(cudaEventRecord(join, other) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(s, join) == cudaSuccess);
  CHECK(cudaMemcpyAsync(&host, x.data, 4, cudaMemcpyDeviceToHost, s) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(
            s, [](void* p) { ++*static_cast<int*>(p); }, &called) == cudaSuccess);
  cudaStreamCaptureStatus status{};
  CHECK(cudaStreamIsCapturing(other, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(other, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  CHECK(x.data[0] == 0);
  std::size_t n_nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &n_nodes) == cudaSuccess);
  REQUIRE(n_nodes == 4);
  cudaGraphNode_t nodes[4] = {};
  CHECK(cudaGraphGetNodes(graph, nodes, &n_nodes) == cudaSuccess);
  std::vector<cudaGraphNodeType> types;
  for (const cudaGraphNode_t node : nodes)
    CHECK(cudaGraphNodeGetType(node, &types.emplace_back()) == cudaSuccess);
  CHECK(types ==
        std::vector{cudaGraphNodeTypeKernel, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeHost});
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  for (int round = 1; round <= 3; ++round) {
    CHECK(cudaGraphLaunch(executable, s) == cudaSuccess);
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(host == 7 * round);
    CHECK(called == round);
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaEventDestroy(fork) == cudaSuccess);
  CHECK(cudaEventDestroy(join) == cudaSuccess);
}

TEST_CASE("a capture refuses what would synchronise, and is lost") {
  const stream s, bystander;
  array<int> x(1);
  int host = 0;
  void* p = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  const std::vector<std::function<cudaError_t()>> refused = {
      [&] { return cudaMalloc(&p, 4); },        [&] { return cudaFree(nullptr); },
      [&] { return cudaMallocHost(&p, 4); },    [&] { return cudaMemcpy(&host, x.data, 4, cudaMemcpyDeviceToHost); },
      [&] { return cudaStreamSynchronize(s); }, [&] { return cudaStreamSynchronize(bystander); },
      [&] { return cudaDeviceSynchronize(); },  [&] { return cudaEventSynchronize(event); },
      [&] { return cudaEventQuery(event); },
  };
  for (const auto& call : refused) {
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaMemsetAsync(x.data, 0, 4, s) == cudaErrorStreamCaptureInvalidated);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(s, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  }
  // The relaxed mode allows calls that do not concern the stream itself.
  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  CHECK(cudaMalloc(&p, 4) == cudaSuccess);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cudaStreamSynchronize(bystander) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("streams that a capture may not mix") {
  const stream s, other, blocking(cudaStreamDefault);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  array<int> x(1);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);

  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);  // work left over in a joined stream
  CHECK(cudaEventRecord(event, s) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
  CHECK(cudaMemsetAsync(x.data, 0, 4, other) == cudaSuccess);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined);

  CHECK(cudaEventRecord(event, other) == cudaSuccess);  // an event from before the capture
  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(s, event) == cudaErrorStreamCaptureIsolation);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal) ==
          cudaSuccess);  // the legacy stream would wait
  CHECK(cudaMemsetAsync(x.data, 0, 4) == cudaErrorStreamCaptureImplicit);
  CHECK(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaMemsetAsync(x.data, 0, 4) == cudaSuccess);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("memory that a graph allocates is fresh in every launch") {
  const stream s;
  array<float> out(1);
  float* held = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&held, 4, s) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(out.data, held, 4, cudaMemcpyDeviceToDevice, s) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(held, 0, 4, s) == cudaSuccess);
  REQUIRE(cudaFreeAsync(held, s) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    out.data[0] = 0;
    REQUIRE(cudaGraphLaunch(executable, s) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(std::isnan(out.data[0]));
  }
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
}

//! Runs late while it lives.
struct late_streams {
  late_streams() { emulator::late() = true; }
  ~late_streams() { emulator::late() = before; }
  bool before = emulator::late();
};

TEST_CASE("streams that run late show what the host does not wait for") {
  const late_streams late;
  const stream s, other;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  array<int> x(std::vector<int>{0});
  int *pinned = nullptr, pageable = 5;
  REQUIRE(cudaMallocHost(&pinned, 4) == cudaSuccess);
  *pinned = -1;
  CHECK(cudaMemcpyAsync(x.data, &pageable, 4, cudaMemcpyHostToDevice, s) == cudaSuccess);
  pageable = 100;  // has been read already
  CHECK(launch({1, 1, 0, 1, false, s}, add_to, x.data, 2) == cudaSuccess);
  CHECK(cudaEventRecord(event, s) == cudaSuccess);
  CHECK(cudaMemcpyAsync(pinned, x.data, 4, cudaMemcpyDeviceToHost, s) == cudaSuccess);
  CHECK(launch({1, 1, 0, 1, false, other}, add_to, x.data, 1000) == cudaSuccess);

  SECTION("the host waits for the stream") {
    CHECK(*pinned == -1);
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady);
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(*pinned == 7);
    CHECK(cudaStreamQuery(s) == cudaSuccess);
  }
  SECTION("the host waits for an event") {
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(cudaEventQuery(event) == cudaSuccess);
    CHECK((x.data[0] == 7 && *pinned == -1));
  }
  SECTION("a stream waits for another one, or does not") {
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);  // its kernel came too early
    CHECK(x.data[0] == 1000);
    CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
    CHECK(launch({1, 1, 0, 1, false, other}, add_to, x.data, 30) == cudaSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK((x.data[0] == 37 && *pinned == -1));
  }
  SECTION("copies into memory that is not pinned wait") {
    CHECK(cudaMemcpyAsync(&pageable, x.data, 4, cudaMemcpyDeviceToHost, s) == cudaSuccess);
    CHECK(pageable == 7);
  }
  SECTION("the legacy stream waits for blocking streams alone") {
    CHECK(cudaMemcpy(&pageable, x.data, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(pageable == 0);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(*pinned == 7);
  }
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("copies of rows") {
  array<int> from(std::vector<int>{1, 2, 3, 4, 5, 6}), to(std::vector<int>(8));
  REQUIRE(cudaMemcpy2DAsync(to.data, 16, from.data, 12, 8, 2, cudaMemcpyDeviceToDevice, nullptr) == cudaSuccess);
  CHECK(to.host() == std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0});
  CHECK(cudaMemcpy2DAsync(to.data, 4, from.data, 12, 8, 2, cudaMemcpyDeviceToDevice, nullptr) == cudaErrorInvalidValue);
}

// ---- short floats

//! Every float between two neighbours must round to the nearer one, and a tie to the even one.
template <class T, class ToT, class FromT>
void check_short_float(std::uint16_t infinity, ToT to, FromT from) {
  std::mt19937 random(5);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    T x;
    std::memcpy(static_cast<void*>(&x), &pattern, 2);
    const float value = from(x);
    const T back = to(value);
    const bool is_nan = (pattern & 0x7FFFU) > infinity;
    if (std::isnan(value) != is_nan || (is_nan ? (back.bits != 0x7FFF) : (back.bits != pattern))) FAIL(bits);
    if ((pattern & 0x7FFFU) >= infinity - 1U) continue;  // the steps to infinity and beyond
    const auto next = static_cast<std::uint16_t>(bits + 1);
    std::memcpy(static_cast<void*>(&x), &next, 2);
    const double low = static_cast<double>(value), high = static_cast<double>(from(x)), middle = (low + high) / 2;
    const auto even = static_cast<std::uint16_t>((bits & 1U) == 0 ? pattern : next);
    const auto tie = static_cast<float>(middle);
    if (static_cast<double>(tie) == middle && to(tie).bits != even) FAIL(bits);
    for (int i = 0; i < 4; ++i) {
      const auto y = static_cast<float>(low + (high - low) * std::uniform_real_distribution<>(0, 1)(random));
      if (std::fabs(static_cast<double>(y) - middle) == 0.0) continue;
      const bool up = std::fabs(static_cast<double>(y)) > std::fabs(middle);
      if (to(y).bits != (up ? next : pattern)) FAIL(bits);
    }
  }
  CHECK(to(std::numeric_limits<float>::infinity()).bits == infinity);
  CHECK(to(3.4e38F).bits == infinity);
}

TEST_CASE("half and bfloat16 convert to the nearest, all 65536 patterns") {
  check_short_float<__half>(0x7C00, __float2half, __half2float);
  check_short_float<__nv_bfloat16>(0x7F80, __float2bfloat16, __bfloat162float);
  CHECK(__float2half(65519.0F).bits == 0x7BFF);
  CHECK(__float2half(65520.0F).bits == 0x7C00);
  CHECK(__float2half(0x1p-25F).bits == 0);
  CHECK(__float2half(0x1.002p-25F).bits == 1);
  const float2 halves = __half22float2(__floats2half2_rn(1.5F, -2.0F));
  CHECK((halves.x == 1.5F && halves.y == -2.0F));
  const float2 bfloats = __bfloat1622float2(__floats2bfloat162_rn(1.5F, -2.0F));
  CHECK((bfloats.x == 1.5F && bfloats.y == -2.0F));
  CHECK(__half2float(__float2half(1.0F) + __float2half(2.0F)) == 3.0F);
  CHECK((sizeof(__half) == 2 && sizeof(__half2) == 4 && alignof(__half2) == 4));
}

// ---- matrix products

template <class T>
constexpr cudaDataType type_of = std::is_same_v<T, float>    ? CUDA_R_32F
                                 : std::is_same_v<T, __half> ? CUDA_R_16F
                                                             : CUDA_R_16BF;

template <class T>
void check_product(bool a_across, bool b_across, cudaStream_t stream) {
  const std::size_t m = 37, n = 11, k = 53, spare = 3;
  const std::size_t a_rows = a_across ? k : m, a_cols = a_across ? m : k, b_rows = b_across ? n : k,
                    b_cols = b_across ? k : n;
  const auto fill = [](std::size_t size, unsigned seed) {
    std::vector<T> out;
    for (const int x : random_ints(size, -8, 8, seed))
      out.push_back(T(static_cast<float>(x)));
    return out;
  };
  array<T> a(fill((a_rows + spare) * a_cols, 1)), b(fill((b_rows + spare) * b_cols, 2)), d(fill((m + spare) * n, 3));
  const auto before = d.host();
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t how = nullptr;
  cublasLtMatrixLayout_t of_a = nullptr, of_b = nullptr, of_d = nullptr;
  const auto good = CUBLAS_STATUS_SUCCESS;
  REQUIRE(cublasLtCreate(&handle) == good);
  REQUIRE(cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F) == good);
  const cublasOperation_t on_a = a_across ? CUBLAS_OP_T : CUBLAS_OP_N, on_b = b_across ? CUBLAS_OP_T : CUBLAS_OP_N;
  REQUIRE(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSA, &on_a, sizeof(on_a)) == good);
  REQUIRE(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSB, &on_b, sizeof(on_b)) == good);
  const auto ld = [](std::size_t rows) { return static_cast<std::int64_t>(rows + spare); };
  REQUIRE(cublasLtMatrixLayoutCreate(&of_a, type_of<T>, a_rows, a_cols, ld(a_rows)) == good);
  REQUIRE(cublasLtMatrixLayoutCreate(&of_b, type_of<T>, b_rows, b_cols, ld(b_rows)) == good);
  REQUIRE(cublasLtMatrixLayoutCreate(&of_d, type_of<T>, m, n, ld(m)) == good);
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  REQUIRE(cublasLtMatmulAlgoGetHeuristic(handle, how, of_a, of_b, of_d, of_d, nullptr, 1, &best, &found) == good);
  REQUIRE(found == 1);
  CHECK(cublasLtMatmulAlgoGetHeuristic(handle, how, of_b, of_a, of_d, of_d, nullptr, 1, &best, &found) != good);
  const float alpha = 0.5F, beta = 2.0F;
  REQUIRE(cublasLtMatmul(handle, how, &alpha, a.data, of_a, b.data, of_b, &beta, d.data, of_d, d.data, of_d, &best.algo,
                         nullptr, 0, stream) == good);
  for (std::size_t col = 0; col < n; ++col) {
    for (std::size_t row = 0; row < m + spare; ++row) {
      const std::size_t at = col * (m + spare) + row;
      float sum = 0;  // whole numbers, so exact in any order
      for (std::size_t i = 0; i < k; ++i) {
        const std::size_t in_a = a_across ? row * (k + spare) + i : i * (m + spare) + row;
        const std::size_t in_b = b_across ? i * (n + spare) + col : col * (k + spare) + i;
        if (row < m) sum += static_cast<float>(a.data[in_a]) * static_cast<float>(b.data[in_b]);
      }
      const float old = static_cast<float>(before[at]);
      CHECK(static_cast<float>(d.data[at]) == (row < m ? static_cast<float>(T(0.5F * sum + 2.0F * old)) : old));
    }
  }
  cublasLtMatrixLayoutDestroy(of_a), cublasLtMatrixLayoutDestroy(of_b), cublasLtMatrixLayoutDestroy(of_d);
  cublasLtMatmulDescDestroy(how), cublasLtDestroy(handle);
}

TEST_CASE("cublasLtMatmul") {
  const bool a_across = GENERATE(false, true), b_across = GENERATE(false, true);
  check_product<float>(a_across, b_across, nullptr);
  check_product<__half>(a_across, b_across, nullptr);
  check_product<__nv_bfloat16>(a_across, b_across, nullptr);
}

}  // namespace
