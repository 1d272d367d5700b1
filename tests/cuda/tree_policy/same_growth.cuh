// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/support.cuh"
#include "cuda/tree_policy/same_tree.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/decoder/grow.hpp"

// The same policy on host and device, over the same rows.
namespace espalier_test {

struct growth_options {
  std::int32_t limit = 1 << 20;
  int rounds = 1;
  bool captured = true;  //!< the rounds of the device are replays of one graph
  std::uint64_t seed = 77;
};

//! Grows some rounds' trees; the roots differ, and what was accepted is drawn at random. Empty where all are the same,
//! drafts asked about the same nodes, and the rules of propose were kept.
template <class HostT, class DeviceT>
std::string grow_both(HostT& host, DeviceT& device, const row_table<float>& table, growth_options options = {}) {
  namespace gpu = espalier::cuda;
  if (host.max_nodes() != device.max_nodes()) return "max_nodes";
  const std::int32_t capacity = device.max_nodes();
  table_drafter host_drafter(table);
  device_table_drafter device_drafter(table);
  host_drafter.reserve(capacity);
  device_drafter.reserve(capacity, {}, nullptr);
  espalier::tree<> expected(capacity);
  const gpu::tree grown(capacity);
  const auto state = to_device(std::vector<gpu::text_state>(1));
  const gpu::chance_source chance{state.data()};
  const auto decision = to_device(std::vector<espalier::verdict>(1));
  cudaStream_t stream = nullptr;
  gpu::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t round_graph = nullptr;
  if (options.captured) {
    gpu::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    gpu::grow(device, grown.writer(), device_drafter, chance, stream);
    gpu::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    gpu::require(cudaGraphInstantiate(&round_graph, graph, 0), "cudaGraphInstantiate");
  }
  std::string found;
  for (int round = 0; round < options.rounds && found.empty(); ++round) {
    const espalier::token_id root = 3 + 5 * round;
    expected.reset(root, options.limit);
    espalier::philox_chance host_chance(options.seed, 2, static_cast<std::uint32_t>(round + 1));
    host_drafter.passes = 0;
    host_drafter.reserve(capacity);
    espalier::grow(host, expected, host_drafter, host_chance);

    gpu::text_state now{};
    now.size = round + 1;
    now.stream = 2;
    now.seed = options.seed;
    state.upload(std::span<const gpu::text_state>(&now, 1), stream);
    start_round(grown, root, options.limit, stream);
    if (options.captured) {
      gpu::require(cudaGraphLaunch(round_graph, stream), "cudaGraphLaunch");
    } else {
      gpu::grow(device, grown.writer(), device_drafter, chance, stream);
    }
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    found = difference(grown, expected);
    const asked_so_far asked = device_drafter.asked();
    if (found.empty() && host_drafter.passes > 0 && asked.unlawful != 0) found = "the device asked against the rules";
    if (found.empty() && host_drafter.passes > 0 && asked.passes != host_drafter.passes)
      found = "draft passes are " + std::to_string(asked.passes) + " for " + std::to_string(host_drafter.passes);
    const auto row_of = device_drafter.row_of();
    for (std::int32_t u = 0; u < expected.size() && found.empty() && host_drafter.passes > 0; ++u) {
      const auto i = static_cast<std::size_t>(u);
      if ((row_of[i] >= 0) != (host_drafter.row_of()[i] >= 0))
        found = "the rows asked for differ at " + std::to_string(u);
    }
    if (!found.empty()) found = "round " + std::to_string(round) + ": " + found;

    const espalier::verdict v{(round * 7) % expected.size(), 1};
    host.observe(expected, v);
    decision.upload(std::span<const espalier::verdict>(&v, 1), stream);
    device.observe(grown.writer(), decision.data(), stream);
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  if (round_graph != nullptr) gpu::require(cudaGraphExecDestroy(round_graph), "cudaGraphExecDestroy");
  if (graph != nullptr) gpu::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  gpu::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return found;
}

}  // namespace espalier_test
