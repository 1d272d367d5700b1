// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/tree_policy/same_tree.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::difference;
using espalier_test::start_round;
using espalier_test::to_device;
using espalier_test::to_host;
using gpu::detail::append_draws;
using gpu::detail::listed_draw;
using gpu::detail::mixed_draws;

namespace espalier_test {

// What asks about new nodes that are not a multiple of 3. Not in an unnamed namespace: kernels have hidden visibility,
// which nvcc takes only where their arguments have external linkage.
struct counted_step {
  __device__ const counted_step& of(std::int32_t) const { return *this; }

  gpu::child_lists children;
  const std::int32_t* counts;
  std::int32_t most;  // draws of the tree

  __device__ std::int32_t budget() const { return most; }
  __device__ std::int32_t n_draws(std::int32_t entry, node_id) const { return counts[entry]; }
  __device__ bool enter(const tree_writer&, node_id node, std::ptrdiff_t) const { return node % 3 != 0; }
  __device__ void ask(node_id node, std::ptrdiff_t at) const { children.probabilities[at] = static_cast<float>(node); }
};

}  // namespace espalier_test

namespace {

struct drawn {
  node_id above;
  token_id token;
  float log_prob;
};

// A thread a draw.
template <class DrawT>
__global__ void append_mixed(tree_writer tree, const DrawT* list) {
  const tree_size size = *tree.size;
  const DrawT d = list[threadIdx.x];
  const mixed_draws draws(*reinterpret_cast<mixed_draws::memory*>(gpu::shared_memory()), d.above, d.token);
  listed_draw own;
  if (d.above != no_node) own = draws.placed(listed_draw::of(tree, d.above, d.token, d.log_prob));
  append_draws(tree, size, mixed_draws::most, draws.n_nodes(), draws.n_draws(), [&](std::int32_t) { return own; });
}

// The same random tree twice: the nodes of its last levels have no draws.
std::vector<node_id> grow_at_random(tree<>& host, const gpu::tree& device, std::int32_t limit, std::mt19937& random) {
  host.reset(1, limit);
  start_round(device, 1, limit);
  const std::vector<drawn> first = {{0, 4, -1.5F}, {0, 2, -0.5F}, {0, 9, -2.25F}};
  std::vector<drawn> list(mixed_draws::most, {no_node, -1, 0});
  const std::size_t n = random() % (first.size() + 1);
  for (std::size_t i = 0; i < n && host.draw(first[i].above, first[i].token, first[i].log_prob) != no_node; ++i)
    list[i] = first[i];
  const auto uploaded = to_device(list);
  gpu::launch("append_mixed", append_mixed<drawn>,
              {.threads = mixed_draws::most, .shared_bytes = sizeof(mixed_draws::memory)}, nullptr, device.writer(),
              uploaded.data());
  REQUIRE(difference(device, host) == "");
  std::vector<node_id> leaves;
  for (node_id u = 0; u < host.size(); ++u) {
    if (host.view().is_leaf(u)) leaves.push_back(u);
  }
  return leaves;
}

}  // namespace

TEST_CASE("Draws in any order are appended as one after the other") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto limit = static_cast<std::int32_t>(4 + random() % 90);
    tree<> host(limit);
    const gpu::tree device(limit);
    const auto leaves = grow_at_random(host, device, limit, random);
    const auto n_tokens = 1 + random() % 6, holes = random() % 3;
    std::vector<drawn> list(mixed_draws::most, {no_node, -1, 0});
    for (drawn& d : list) {
      if (host.full() || (holes > 0 && random() % (1 + holes) != 0)) continue;
      d.above = leaves[random() % leaves.size()];
      d.token = static_cast<token_id>(random() % n_tokens);
      d.log_prob = -0.25F * static_cast<float>(1 + d.token);
      host.draw(d.above, d.token, d.log_prob);
    }
    const auto uploaded = to_device(list);
    gpu::launch("append_mixed", append_mixed<drawn>,
                {.threads = mixed_draws::most, .shared_bytes = sizeof(mixed_draws::memory)}, nullptr, device.writer(),
                uploaded.data());
    CAPTURE(round, limit, n_tokens);
    REQUIRE(difference(device, host) == "");
  }
}

TEST_CASE("The draws of a level are appended node after node") {
  std::mt19937 random(6);
  for (int round = 0; round < 60; ++round) {
    const auto limit = static_cast<std::int32_t>(4 + random() % (round % 3 == 0 ? 1020 : 60));
    const auto budget = static_cast<std::int32_t>(round % 4 == 0 ? limit - 2 : 1024);
    tree<> host(limit);
    const gpu::tree device(limit);
    const auto leaves = grow_at_random(host, device, limit, random);
    const auto k = static_cast<std::int32_t>(1 + random() % (round % 5 == 0 ? 1100 : 40));
    std::vector<node_id> asked;
    std::vector<std::int32_t> counts;
    for (const node_id u : leaves) {
      asked.resize(asked.size() + random() % 40, no_node);
      asked.push_back(u);
      counts.resize(asked.size(), 7);
      counts.back() = static_cast<std::int32_t>(random() % static_cast<unsigned>(k + 1));
    }
    std::vector<token_id> tokens(asked.size() * static_cast<std::size_t>(k));
    std::vector<float> log_probs(tokens.size());
    const node_id before = host.size();
    for (std::size_t entry = 0; entry < asked.size(); ++entry) {
      for (std::int32_t c = 0; c < k; ++c) {
        const std::size_t at = entry * static_cast<std::size_t>(k) + static_cast<std::size_t>(c);
        tokens[at] = c * 7 % 1999;
        log_probs[at] = -0.5F * static_cast<float>(c);
        if (asked[entry] != no_node && c < counts[entry] && host.view().n_draws < budget)
          host.append(asked[entry], tokens[at], log_probs[at]);
      }
    }
    const auto n_next = static_cast<std::int32_t>(random() % 30);
    const std::int32_t left = std::min(limit, budget) - host.view().n_draws;
    std::vector<node_id> expected;
    for (node_id u = before; u < host.size(); ++u) {
      if (u % 3 != 0 && static_cast<std::int32_t>(expected.size()) < std::min(left, n_next)) expected.push_back(u);
    }
    const std::size_t n_asked = expected.size();
    expected.resize(static_cast<std::size_t>(n_next), no_node);
    const auto uploaded = to_device(asked), given = to_device(tokens), count_of = to_device(counts);
    const auto probs = to_device(log_probs), marks = to_device(std::vector<float>(tokens.size(), -1.0F));
    const gpu::device_array<node_id> next(static_cast<std::size_t>(n_next) + 1);
    const espalier_test::counted_step step{
        {.tokens = given.data(), .probabilities = marks.data(), .log_probs = probs.data(), .k = k},
        count_of.data(),
        budget};
    gpu::detail::launch_level(gpu::text_batch::of(device.writer(), {}), step,
                              {uploaded.data(), static_cast<std::int32_t>(asked.size())}, {next.data(), n_next, n_next},
                              nullptr);
    CAPTURE(round, limit, budget, k, n_next);
    REQUIRE(difference(device, host) == "");
    CHECK(to_host(next.data(), expected.size()) == expected);
    std::vector<node_id> marked;
    for (const float mark : to_host(marks)) {
      if (mark >= 0) marked.push_back(static_cast<node_id>(mark));
    }
    expected.resize(n_asked);
    CHECK(marked == expected);
  }
}
