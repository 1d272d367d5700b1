// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/tree_policy/same_tree.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/decoder/grow.hpp"

// The same policy on host and device, over the same rows.
namespace espalier_test {

//! Texts that grow trees at once.
inline constexpr std::int32_t grown_texts = 2;

//! Gives all texts options of their own, for grow_both with a policy that is not fresh.
template <class DeviceT>
void give_options(DeviceT& device, const typename DeviceT::options_type& own) {
  device.reserve(grown_texts);
  const auto learnt = device.learnt_with(own);
  REQUIRE(learnt.size() == device.learnt_bytes());
  for (std::size_t place = 0; place < grown_texts; ++place)
    espalier::cuda::require(
        cudaMemcpy(device.learnt() + place * learnt.size(), learnt.data(), learnt.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
}

struct growth_options {
  std::int32_t limit = 1 << 20;
  int rounds = 1;
  bool captured = true;  //!< the rounds of the device are replays of one graph
  std::uint64_t seed = 77;
  bool fresh = true;  //!< the device's policy has not learnt anything; otherwise the host's trees may be smaller
};

//! A policy on the host and on the device, as functions, so that grow_rounds is compiled once for all policies.
struct both_policies {
  std::function<void(std::size_t text, espalier::tree<>&, table_drafter&, espalier::philox_chance&)> grow_on_host;
  std::function<void(std::size_t text, const espalier::tree<>&, espalier::verdict)> observe_on_host;
  std::function<void(const espalier::cuda::text_batch&, device_table_drafter&, cudaStream_t)> grow;
  std::function<void(const espalier::cuda::text_batch&, const espalier::verdict*, cudaStream_t)> observe;
};

//! Does what grow_both says. Trees have `capacity` nodes.
inline std::string grow_rounds(const both_policies& policies, std::int32_t capacity, const row_table<float>& table,
                               growth_options options) {
  namespace gpu = espalier::cuda;
  constexpr std::int32_t n_texts = grown_texts;
  table_drafter host_drafter(table);
  device_table_drafter device_drafter(table);
  host_drafter.reserve(capacity);
  device_drafter.reserve(capacity, n_texts, nullptr);
  std::vector<espalier::tree<>> expected(n_texts, espalier::tree<>(capacity));
  const gpu::tree grown(capacity, n_texts);
  const auto states = to_device(std::vector<gpu::text_state>(n_texts));
  const auto place_of = to_device(std::vector<std::int32_t>{1, 0, -1});
  gpu::text_batch texts = gpu::text_batch::of(grown.writer(), {nullptr, states.data(), 0});
  texts.n = 3;
  texts.place_of = place_of.data();
  texts.tree_words = static_cast<std::ptrdiff_t>(gpu::tree::n_words(capacity));
  const auto decisions = to_device(std::vector<espalier::verdict>(n_texts));
  const gpu::stream work;
  const cudaStream_t stream = work.get();
  std::optional<gpu::graph> replay;
  if (options.captured) replay.emplace(stream, [&] { policies.grow(texts, device_drafter, stream); });
  std::string found;
  for (int round = 0; round < options.rounds && found.empty(); ++round) {
    std::vector<espalier::verdict> accepted;
    std::vector<gpu::text_state> now(n_texts);
    for (std::int32_t t = 0; t < n_texts; ++t) {
      now[static_cast<std::size_t>(t)] = {round + 1, 0, static_cast<std::uint32_t>(2 + t), options.seed};
      start_round(grown, 3 + 5 * round + t, options.limit, stream, t);
    }
    states.upload(std::span<const gpu::text_state>(now), stream);
    if (options.captured) {
      replay->launch(stream);
    } else {
      policies.grow(texts, device_drafter, stream);
    }
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    for (std::int32_t t = 0; t < n_texts && found.empty(); ++t) {
      const auto text = static_cast<std::size_t>(t);
      espalier::tree<>& tree = expected[text];
      tree.reset(3 + 5 * round + t, options.limit);
      espalier::philox_chance chance(options.seed, static_cast<std::uint32_t>(2 + t),
                                     static_cast<std::uint32_t>(round + 1));
      host_drafter.passes = 0;
      host_drafter.reserve(capacity);
      policies.grow_on_host(text, tree, host_drafter, chance);
      found = difference(grown, tree, t);
      const asked_so_far asked = device_drafter.asked(t);
      const bool asks = host_drafter.passes > 0;
      if (found.empty() && asks && asked.unlawful != 0) found = "the device asked against the rules";
      if (found.empty() && asks && asked.passes != host_drafter.passes)
        found = "draft passes are " + std::to_string(asked.passes) + " for " + std::to_string(host_drafter.passes);
      const auto row_of = device_drafter.row_of(t);
      for (std::int32_t u = 0; u < tree.size() && found.empty() && asks; ++u) {
        const auto i = static_cast<std::size_t>(u);
        if ((row_of[i] >= 0) != (host_drafter.row_of()[i] >= 0))
          found = "the rows asked for differ at " + std::to_string(u);
      }
      if (!found.empty()) found = "round " + std::to_string(round) + ", text " + std::to_string(t) + ": " + found;
      accepted.push_back({(round * 7 + t) % tree.size(), 1});
      policies.observe_on_host(text, tree, accepted.back());
    }
    if (!found.empty()) break;
    decisions.upload(std::span<const espalier::verdict>(accepted), stream);
    policies.observe(texts, decisions.data(), stream);
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return found;
}

//! Grows some rounds' trees of two texts at once, in three lanes of which one is empty; the roots differ, and what was
//! accepted is drawn at random. Empty where all are the same, drafts asked about the same nodes, and the rules of
//! propose were kept.
template <class HostT, class DeviceT>
std::string grow_both(const HostT& host, DeviceT& device, const row_table<float>& table, growth_options options = {}) {
  namespace gpu = espalier::cuda;
  const std::int32_t capacity = gpu::most_asked<device_table_drafter>(device);
  if (options.fresh && host.max_nodes() != device.max_nodes()) return "max_nodes";
  if (options.fresh && capacity != espalier::most_asked(host)) return "most_asked";
  if (options.fresh) gpu::reserve_trees<device_table_drafter>(device, grown_texts);
  std::vector<HostT> hosts(grown_texts, host);
  const both_policies policies{
      [&](std::size_t text, espalier::tree<>& tree, table_drafter& drafter, espalier::philox_chance& chance) {
        espalier::grow(hosts[text], tree, drafter, chance);
      },
      [&](std::size_t text, const espalier::tree<>& tree, espalier::verdict accepted) {
        hosts[text].observe(tree, accepted);
      },
      [&](const gpu::text_batch& texts, device_table_drafter& drafter, cudaStream_t stream) {
        gpu::grow(device, texts, drafter, stream);
      },
      [&](const gpu::text_batch& texts, const espalier::verdict* decisions, cudaStream_t stream) {
        device.observe(texts, decisions, stream);
      }};
  return grow_rounds(policies, capacity, table, options);
}

}  // namespace espalier_test
