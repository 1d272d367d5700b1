// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/joint.cuh"

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using namespace espalier_test;

namespace {

struct backend_of_states {};

// A drafter of runs that keeps what it is told, and throws what it has kept for later.
struct recording {
  std::vector<std::string>* told;
  std::int32_t most = 100;
  bool has_failed = false;

  void tell(const char* what, std::int32_t n) const { told->push_back(what + std::to_string(n)); }
  void reserve(std::int32_t nodes, std::int32_t, gpu::fault*) { tell("reserve ", nodes); }
  void begin(std::int32_t place, gpu::text_view, std::span<const token_id>, std::int32_t, cudaStream_t) {
    tell("begin ", place);
  }
  void ensure(std::int32_t, std::int32_t n, cudaStream_t) { tell("ensure ", n); }
  void commit(const gpu::text_batch& texts, gpu::path_view, cudaStream_t) { tell("commit ", texts.n); }
  std::int32_t capacity() const { return most; }
  gpu::text_runs propose_runs(const gpu::text_batch&, cudaStream_t) { return {}; }
  void release(std::int32_t place) { tell("release ", place); }
  void catch_up(std::int32_t n) { tell("catch up ", n); }
  void raise_failure() {
    if (std::exchange(has_failed, false)) raise<error>(most, " has failed.");
  }
  void read(const backend_of_states&, std::int32_t, std::int32_t, std::int32_t n, cudaStream_t) { tell("read ", n); }
  void read(const backend_of_states&, const gpu::text_batch& texts, gpu::path_view, const batch_sequence*,
            cudaStream_t) {
    tell("read path ", texts.n);
  }
  void read(const backend_of_states&, const gpu::prompt_chunk*, std::int32_t n, std::int32_t, cudaStream_t) {
    tell("read chunks ", n);
  }
};

using mixed = gpu::joint<recording, gpu::prompt_lookup, device_table_drafter>;
static_assert(gpu::Drafter<mixed> && n_parts<mixed> == 3 && gpu::ReleasingDrafter<mixed> &&
              gpu::detail::KeepsFailure<mixed> && gpu::RenumberingDrafter<mixed> &&
              gpu::FeatureDrafter<mixed, backend_of_states>);
static_assert(!gpu::StepDrafter<mixed> && !gpu::SequenceDrafter<mixed> && !gpu::FeatureDrafter<mixed, int>);
using runs_alone = gpu::joint<gpu::prompt_lookup>;
static_assert(gpu::Drafter<runs_alone> && n_parts<runs_alone> == 1 && !gpu::ReleasingDrafter<runs_alone> &&
              !gpu::detail::KeepsFailure<runs_alone> && !gpu::FeatureDrafter<runs_alone, backend_of_states> &&
              !detail::HasVocabulary<runs_alone>);

}  // namespace

TEST_CASE("A joint on the device hands on what it is told, to those that it concerns") {
  std::vector<std::string> first, second;
  recording lasting{&second};
  gpu::joint drafters(recording{&first, 7}, gpu::prompt_lookup({.capacity = 9}), lasting);
  CHECK(drafters.capacity() == 100);
  CHECK(std::get<0>(drafters.parts()).propose_runs({}, nullptr).max == 0);
  gpu::text_batch texts;
  texts.n = 3;
  drafters.reserve(11, 3, nullptr);
  drafters.begin(2, {}, {}, 0, nullptr);
  drafters.ensure(2, 40, nullptr);
  drafters.commit(texts, {}, nullptr);
  drafters.release(2);
  const backend_of_states states;
  drafters.read(states, 0, 0, 5, nullptr);
  drafters.read(states, texts, {}, nullptr, nullptr);
  drafters.read(states, nullptr, 6, 6, nullptr);
  CHECK(first == std::vector<std::string>{"reserve 11", "begin 2", "ensure 40", "commit 3", "release 2", "read 5",
                                          "read path 3", "read chunks 6"});
  CHECK(first == second);
  CHECK_NOTHROW(drafters.raise_failure());
  lasting.has_failed = std::get<0>(drafters.parts()).has_failed = true;
  CHECK(message_of<error>([&] { drafters.raise_failure(); }) == "7 has failed.");
  CHECK_NOTHROW(drafters.raise_failure());  // nothing stays behind for a later round
}

TEST_CASE("Each drafter of a joint is told how many tokens the others may bring in") {
  std::vector<std::string> first, second;
  gpu::joint drafters(recording{&first}, recording{&second});
  gpu::cascade policy{gpu::adaptive_chain({.max_length = 33}), gpu::chain({.length = 5})};
  gpu::reserve_draft(drafters, policy, 1, nullptr);
  CHECK(first == std::vector<std::string>{"catch up 5", "reserve 38"});
  CHECK(second == std::vector<std::string>{"catch up 33", "reserve 38"});
  CHECK(gpu::detail::max_depth(gpu::dynatree({.budget = 40, .max_depth = 8})) == 9);
}

TEST_CASE("Joints of the device that cannot be are errors") {
  const auto eight = random_table(3, 8, 1), nine = random_table(3, 9, 1);
  CHECK(says(message_of<input_error>([&] {
               gpu::joint drafters{device_table_drafter(eight), gpu::prompt_lookup(), device_table_drafter(nine)};
             }),
             "8 tokens", "9"));
  CHECK(gpu::joint(device_table_drafter(eight), gpu::prompt_lookup()).vocab_size() == 8);
}
