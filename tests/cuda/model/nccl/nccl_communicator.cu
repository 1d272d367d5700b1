// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/nccl/nccl_communicator.cuh"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/model/parallel/process_ranks.hpp"
#include "cuda/model/parallel/rank_scenes.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/model/parallel/parallel_backend.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

using namespace espalier;
namespace gpu = espalier::cuda;
using process_ranks::outcome;
using process_ranks::process_rank;
using rank_scenes::numbers_type;
using rank_scenes::path_of;
using backend_type = gpu::parallel_backend<gpu::nccl_communicator, float>;

static_assert(gpu::Backend<backend_type, llama_driver::device_kv<float>>);

// Whether there are devices for so many ranks. Emulated ones are.
bool has_devices(int n) {
#if __has_include("emulator/api.hpp")
  return n > 0;
#else
  const auto found = process_ranks::run(1, [](process_rank&) {
    int devices = 0;
    gpu::require(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    return numbers_type{static_cast<float>(devices)};
  });
  if (found.front().error == "" && found.front().numbers.front() >= static_cast<float>(n)) return true;
  std::printf("Left out: %d ranks over NCCL need %d GPUs.\n", n, n);
  return false;
#endif
}

// This rank's, as the present device.
void take_device([[maybe_unused]] const process_rank& own) {
#if !__has_include("emulator/api.hpp")
  gpu::require(cudaSetDevice(own.rank()), "cudaSetDevice");
#endif
}

}  // namespace

TEST_CASE("Ranks over NCCL have the bits of one device") {
  for (const std::string folder : {"llama", "qwen2", "gpt_neox"}) {
    INFO(folder);
    const auto expected = process_ranks::run(1, [&](process_rank&) {
      auto backend = gpu::llama_backend<float>::load(path_of(folder), {.max_rows = 40, .batch_invariant = true});
      return rank_scenes::rows_of(backend);
    });
    for (const int n : {1, 2, 3}) {
      if (!has_devices(n)) continue;
      for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
        const auto found = process_ranks::run(n, [&](process_rank& own) {
          take_device(own);
          gpu::nccl_communicator ranks(own, {.timeout = 60});
          auto backend =
              backend_type::load(path_of(folder), ranks, {.max_rows = 40, .split = split, .batch_invariant = true});
          numbers_type rows = rank_scenes::rows_of(backend);
          ranks.raise_failure();
          return rows;
        });
        REQUIRE(found.front().error == "");
        const numbers_type& same = split == rank_split::outputs ? expected.front().numbers : found.front().numbers;
        CHECK(found == std::vector<outcome>(static_cast<std::size_t>(n), {"", same}));
      }
    }
  }
}

TEST_CASE("Decoders over NCCL write the text of one device, and agree on the host") {
  const auto write = [](auto& target, auto&& observer) {
    return rank_scenes::write_text(gpu::dynatree({.budget = 8}), greedy(), target, 0.0F, observer);
  };
  const auto expected = process_ranks::run(1, [&](process_rank&) {
    auto target = gpu::llama_backend<float>::load(path_of("llama"), {.max_rows = 40, .batch_invariant = true});
    return write(target, [](const round_record&) {});
  });
  REQUIRE(expected.front().numbers.size() == 30);
  for (const int n : {1, 2}) {
    if (!has_devices(n)) continue;
    const auto found = process_ranks::run(n, [&](process_rank& own) {
      take_device(own);
      gpu::nccl_communicator ranks(own, {.timeout = 60});
      auto target = backend_type::load(path_of("llama"), ranks, {.max_rows = 40, .batch_invariant = true});
      return write(target, agreement(own));
    });
    CHECK(found == std::vector<outcome>(static_cast<std::size_t>(n), expected.front()));
  }
}

namespace {

// Ranks of which one dies when the stream comes to a call between ranks.
class mortal_ranks {
 public:
  explicit mortal_ranks(gpu::nccl_communicator& ranks) : ranks_(ranks) {}

  // At the n-th call from now on, also of a graph that is there already.
  void die_at(int n) { lives_ = n; }

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  void begin_pass(cudaStream_t stream) { ranks_.begin_pass(stream); }
  void end_pass(void* rows, std::size_t bytes, cudaStream_t stream) { ranks_.end_pass(rows, bytes, stream); }
  void all_gather(void* data, std::size_t bytes, cudaStream_t stream) {
    gpu::require(cudaLaunchHostFunc(stream, &live, this), "cudaLaunchHostFunc");
    ranks_.all_gather(data, bytes, stream);
  }
  void all_to_all(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
    gpu::require(cudaLaunchHostFunc(stream, &live, this), "cudaLaunchHostFunc");
    ranks_.all_to_all(from, to, bytes, stream);
  }
  void raise_failure() { ranks_.raise_failure(); }

 private:
  static void live(void* self) {
    std::atomic<int>& lives = static_cast<mortal_ranks*>(self)->lives_;
    if (lives > 0 && --lives == 0) _exit(1);
  }

  gpu::nccl_communicator& ranks_;
  std::atomic<int> lives_{0};
};

// What a rank sees when rank 1 of three dies at a call of a round that a graph holds: five laws, each 1 where it holds.
numbers_type outlive(process_rank& own, rank_split split, int call) {
  take_device(own);
  gpu::nccl_communicator ranks(own, {.timeout = 1.5});
  mortal_ranks mortal(ranks);
  auto target =
      gpu::parallel_backend<mortal_ranks, float>::load(path_of("llama"), mortal, {.max_rows = 40, .split = split});
  auto draft = gpu::llama_backend<float>::load(path_of("llama_int8_rows"), {.max_rows = 40});
  gpu::contiguous_kv<float> kv(target.layers(), target.cache_row(), 1, rank_scenes::context),
      draft_kv(draft.config().n_layers, draft.config().kv_size(), 1, rank_scenes::context);
  auto decode =
      gpu::make_decoder(gpu::autoregressive(draft, draft_kv), gpu::dynatree({.budget = 8}), greedy(), kv, target);
  decode.begin(rank_scenes::prompt, {.max_tokens = 60});
  for (int i = 0; i < 3; ++i)
    decode.step();
  if (own.rank() == 1) mortal.die_at(call);
  const std::int32_t before = decode.current().size();
  const auto fails = [&](int steps) {
    try {
      for (int i = 0; i < steps; ++i)
        decode.step();
    } catch (const rank_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto start = std::chrono::steady_clock::now();
  const std::string first = fails(4), second = fails(1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string said = "a pass did not end in time, and ncclCommAbort ended it, says rank " +
                           std::to_string(own.rank()) + ": a rank is dead or late.";
  numbers_type held;
  // Rounds that all ranks have ended are committed: those under way, and the one that the call may be of.
  for (const bool holds : {first.rfind(said, 0) == 0, second == first, ranks.broken(), seconds < 20,
                           decode.current().size() - before <= 27})
    held.push_back(holds ? 1.0F : 0.0F);
  return held;
}

}  // namespace

TEST_CASE("A rank that dies at any call of a round is an error on the others within the timeout, again and again") {
  if (!has_devices(3)) return;
  // Of two layers; with sums, those that differ.
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    for (const int call :
         split == rank_split::outputs ? std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 10} : std::vector{2, 3}) {
      INFO("call " << call);
      const auto found = process_ranks::run(3, [&](process_rank& own) { return outlive(own, split, call); });
      CHECK(found[0] == outcome{"", numbers_type(5, 1.0F)});
      CHECK(found[1].error == "the process has died");
      CHECK(found[2] == outcome{"", numbers_type(5, 1.0F)});
    }
  }
}

TEST_CASE("A rank that does not come to NCCL is an error that names the call") {
  if (!has_devices(2)) return;
  const auto found = process_ranks::run(2, [&](process_rank& own) {
    take_device(own);
    if (own.rank() == 1) {
      // It hears of the id, and does no more.
      ncclUniqueId id{};
      const std::size_t counts[] = {sizeof id, 0};
      own.all_gather(reinterpret_cast<std::byte*>(&id), counts);
      return numbers_type{};
    }
    gpu::nccl_communicator ranks(own, {.timeout = 1});
    return numbers_type{};
  });
  CHECK_THAT(found.front().error,
             Catch::Matchers::StartsWith("ncclCommInitRankConfig did not end in time, says rank 0: a rank is dead"));
  CHECK(found.back().error == "");
}

TEST_CASE("Timeouts out of range are named") {
  const auto found = process_ranks::run(1, [](process_rank& own) {
    gpu::nccl_communicator ranks(own, {.timeout = 0});
    return numbers_type{};
  });
  CHECK(found.front().error == "option timeout is 0, but must lie between 0.01 and 1e+06.");
}
