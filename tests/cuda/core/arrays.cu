// SPDX-License-Identifier: BSL-1.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

namespace {

struct growth {
  const std::int32_t* parents;
  const token_id* tokens;
  std::int32_t n;
};

__global__ void grow(tree_writer tree, growth by, std::int32_t limit, node_id* grown) {
  tree.reset(7, limit);
  for (std::int32_t i = 0; i < by.n; ++i)
    grown[i] = tree.draw(by.parents[i], by.tokens[i], -0.5F);
}

__global__ void reverse_block(std::int32_t* numbers) {
  auto* copy = reinterpret_cast<std::int32_t*>(gpu::shared_memory());
  copy[threadIdx.x] = numbers[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

__global__ void find_faults(gpu::fault* found) {
  if (threadIdx.x % 2 == 1)
    gpu::report(found, {gpu::fault::kind::bad_logit, row_origin::after_node(row_origin::model::target, 0, 3),
                        static_cast<token_id>(threadIdx.x), NAN});
}

__global__ void draw_numbers(gpu::text_batch texts, double* uniform) {
  *uniform = texts.at(0).chance().uniform({5, 2, purpose::residual});
}

}  // namespace

TEST_CASE("an array is filled for every stream before it is handed out") {
  const gpu::stream other;
  for (const int value : {0, 0xFF}) {
    const auto filled = gpu::device_array<std::int32_t>::filled(1000, value);
    std::vector<std::int32_t> read(1000, 7);
    filled.download(read, other.get());
    gpu::require(cudaStreamSynchronize(other.get()), "cudaStreamSynchronize");
    CHECK(read == std::vector<std::int32_t>(1000, value == 0 ? 0 : -1));
  }
  CHECK(gpu::device_array<float>::filled(0, 0).size() == 0);
}

TEST_CASE("A tree grown on the device is the host's") {
  const std::vector<std::int32_t> parents{0, 0, 0, 1, 1, 3, 2, 0};
  const std::vector<token_id> tokens{4, 5, 4, 4, 9, 1, 1, 8};
  const auto limit = GENERATE(8, 5, 0);
  tree<> expected(8);
  expected.reset(7, limit);
  std::vector<node_id> expected_nodes;
  for (std::size_t i = 0; i < parents.size(); ++i)
    expected_nodes.push_back(parents[i] < expected.size() ? expected.draw(parents[i], tokens[i], -0.5F) : no_node);

  const gpu::tree grown(8);
  const auto device_parents = to_device(parents);
  const auto device_tokens = to_device(tokens);
  const gpu::device_array<node_id> nodes(parents.size());
  gpu::launch("grow", grow, {}, nullptr, grown.writer(), growth{device_parents.data(), device_tokens.data(), 8}, limit,
              nodes.data());
  CHECK(to_host(nodes) == expected_nodes);
  const tree_writer w = grown.writer();
  const tree_view host = expected;
  const tree_size size = to_host(w.size, 1)[0];
  REQUIRE(size.n_nodes == host.n_nodes);
  REQUIRE(size.n_draws == host.n_draws);
  const auto nodes_there = static_cast<std::size_t>(host.n_nodes);
  const auto draws_there = static_cast<std::size_t>(host.n_draws);
  CHECK(to_host(w.token, nodes_there) == std::vector(host.token, host.token + host.n_nodes));
  CHECK(to_host(w.parent, nodes_there) == std::vector(host.parent, host.parent + host.n_nodes));
  CHECK(to_host(w.depth, nodes_there) == std::vector(host.depth, host.depth + host.n_nodes));
  CHECK(to_host(w.path_log_prob, nodes_there) == std::vector(host.path_log_prob, host.path_log_prob + host.n_nodes));
  CHECK(to_host(w.first_draw, nodes_there) == std::vector(host.first_draw, host.first_draw + host.n_nodes));
  CHECK(to_host(w.next_draw, draws_there) == std::vector(host.next_draw, host.next_draw + host.n_draws));
  CHECK(to_host(w.drawn_node, draws_there) == std::vector(host.drawn_node, host.drawn_node + host.n_draws));
}

TEST_CASE("A kernel has the shared memory that it is launched with") {
  const auto threads = GENERATE(1U, 33U, 1024U);
  const auto bytes = GENERATE(std::size_t{4096}, gpu::unasked_shared_bytes + 16);
  std::vector<std::int32_t> numbers(3 * threads);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::int32_t>(i);
  const auto device = to_device(numbers);
  gpu::launch("reverse_block", reverse_block, {.grid = 3, .threads = threads, .shared_bytes = bytes}, nullptr,
              device.data());
  for (std::size_t b = 0; b < 3; ++b)
    std::reverse(numbers.begin() + static_cast<std::ptrdiff_t>(b * threads),
                 numbers.begin() + static_cast<std::ptrdiff_t>((b + 1) * threads));
  CHECK(to_host(device) == numbers);
}

TEST_CASE("One of several faults is kept whole, and raised on the host") {
  const auto found = to_device(std::vector<gpu::fault>(1));
  gpu::launch("find_faults", find_faults, {.threads = 64}, nullptr, found.data());
  const gpu::fault kept = to_host(found)[0];
  CHECK(kept.token % 2 == 1);
  CHECK(message_of<numeric_error>([&] { gpu::raise_fault(kept); }) ==
        "the target's logit of token " + std::to_string(kept.token) +
            " after node 3 of sequence 0 is nan; logits must be finite or minus infinity. The model or its weights are "
            "damaged.");
  CHECK_NOTHROW(gpu::raise_fault({}));
}

TEST_CASE("The device draws the host's random numbers") {
  const auto state = to_device(std::vector<gpu::text_state>{{4, 100, 1, 99}});
  const gpu::device_array<double> uniform(1);
  gpu::launch("draw_numbers", draw_numbers, {}, nullptr, gpu::text_batch::of({}, {nullptr, state.data(), 0}),
              uniform.data());
  CHECK(to_host(uniform)[0] == philox_chance(99, 1, 4).uniform({5, 2, purpose::residual}));
}

TEST_CASE("A call that fails says which it is and why", "[refused]") {
  CHECK_THROWS_AS(gpu::device_array<double>(std::size_t{1} << 50), cuda_error);
  CHECK_THROWS_AS(gpu::launch("reverse_block", reverse_block, {.threads = 5000}, nullptr, nullptr), cuda_error);
  CHECK(message_of<cuda_error>([] { gpu::require(cudaErrorMemoryAllocation, "cudaMalloc"); }) ==
        "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation).");
  CHECK_NOTHROW(gpu::device_array<int>(3));
}

TEST_CASE("Arrays move, and copy in the order of their stream") {
  gpu::device_array<std::int32_t> a(4);
  const gpu::pinned_array<std::int32_t> from(4), to(4);
  for (std::size_t i = 0; i < 4; ++i)
    from[i] = static_cast<std::int32_t>(i) - 9, to[i] = 0;
  gpu::device_array<std::int32_t> b = std::move(a);
  CHECK(a.data() == nullptr);
  a = std::move(b);
  a.upload(from.span(), nullptr);
  a.download(to.span().first(2), nullptr, 2);
  gpu::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  CHECK(to[0] == -7);
  CHECK(to[1] == -6);
  CHECK(to[2] == 0);
}
