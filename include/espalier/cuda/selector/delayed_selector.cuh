// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/selector/neural_delayed.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/delayed_selector.hpp"
#include "espalier/selector/selector_features.hpp"
#include "espalier/selector/selector_layer.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier::cuda {

//! The features of the texts of a round, from which a selector chooses: selector_features on the device, before they
//! are summed up. In the memory of the device, passed by value into kernels.
//!
//! Shapes      known [places]: whether a selector may choose; hidden[0] [places][target hidden], hidden[1] and
//!             hidden[2] [places][draft hidden]: the target's state and the draft's at the previous position, and the
//!             draft's after the pending token; sums [places][n_blocks][n_sums]: for each block of the vocabulary, the
//!             five sums of row_divergence in the order in which it makes them, and that of the root's entropy; seconds
//!             [contexts][2]: seconds of a draft pass and of a target pass of one row after a text of this length;
//!             samplings [places]
struct root_features {
  static constexpr std::int32_t n_sums = 6;

  const std::int32_t* known = nullptr;
  const float* hidden[espalier::detail::selector_layout::n_hidden] = {};
  const double* sums = nullptr;
  std::int32_t n_blocks = 0;
  const float* seconds = nullptr;
  const sampling_options* samplings = nullptr;
};

namespace detail {

using espalier::detail::selector_layout;

inline constexpr unsigned selector_threads = 256;

// Returns the number of thread blocks that have a warp for each of n rows.
constexpr unsigned blocks_for_rows(std::size_t n) {
  return static_cast<unsigned>((n * 32 + selector_threads - 1) / selector_threads);
}

__device__ inline std::size_t lane_of_warp() {
  return threadIdx.x % 32;
}
// The number of this warp among all warps of the launch that work for a text.
__device__ inline std::size_t warp_of_launch() {
  return (blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

// The inputs of a layer, as they lie in memory.
struct layer_inputs {
  const float* x;
  __device__ float operator()(std::size_t i) const { return x[i]; }
};

// The squares of the differences of numbers to their mean.
struct squared_differences {
  const float* x;
  float mean;
  __device__ float operator()(std::size_t i) const { return (x[i] - mean) * (x[i] - mean); }
};

// The n numbers of a hidden state, standardised; 0 beyond them.
struct standardised_state {
  const float *x, *mean, *deviation;
  std::size_t n;
  __device__ float operator()(std::size_t i) const {
    return i < n ? espalier::detail::standardised(x[i], mean[i], deviation[i]) : 0.0F;
  }
};

// The products of a row of weights with inputs.
template <class InputT>
struct weighted_inputs {
  const float* row;
  InputT x;
  __device__ float operator()(std::size_t i) const { return row[i] * x(i); }
};

// A selector's network, and the arrays between its layers. In the memory of the device, passed by value into kernels.
//
// Shapes      joined [places][first.stride], wide [places][second.stride], narrow [places][last.stride]
struct selector_network {
  selector_layout places;
  const std::byte* weights;
  float* joined;
  float* wide;
  float* narrow;

  __device__ const float* floats(std::size_t at) const {
    return reinterpret_cast<const float*>(weights + at * selector_layout::line_bytes);
  }
  __device__ const std::uint8_t* bytes(std::size_t at) const {
    return reinterpret_cast<const std::uint8_t*>(weights + at * selector_layout::line_bytes);
  }
  __device__ float* joined_of(std::int32_t place) const {
    return joined + static_cast<std::size_t>(place) * places.first.stride;
  }
  __device__ float* wide_of(std::int32_t place) const {
    return wide + static_cast<std::size_t>(place) * places.second.stride;
  }
  __device__ float* narrow_of(std::int32_t place) const {
    return narrow + static_cast<std::size_t>(place) * places.last.stride;
  }

  // Returns output r of a layer for the inputs x(i), which are 0 beyond the layer's inputs: bit for bit that of
  // espalier::delayed_selector. Called by a warp; every lane gets it.
  template <class InputT>
  __device__ float output(const selector_layout::layer_place& at, std::size_t r, const InputT& x) const {
    const float bias = floats(at.bias)[r];
    if (places.kind == selector_weights::float32) {
      const float* const row = floats(at.rows) + r * at.stride;
      double total = 0;
      for (std::size_t begin = 0; begin < at.stride; begin += espalier::detail::mass_block) {
        const std::size_t end =
            begin + espalier::detail::mass_block < at.stride ? begin + espalier::detail::mass_block : at.stride;
        total += one_warp()(begin, end, weighted_inputs<InputT>{row, x}).of[0];
      }
      return static_cast<float>(total) + bias;
    }
    unsigned largest = 0;
    for (std::size_t i = lane_of_warp(); i < at.stride; i += 32) {
      const float input = x(i);
      const unsigned size = __builtin_bit_cast(unsigned, input) & 0x7FFFFFFFU;
      largest = size > largest ? size : largest;
    }
    for (int half = 16; half > 0; half /= 2) {
      const unsigned other = __shfl_xor_sync(all_lanes, largest, half);
      largest = other > largest ? other : largest;
    }
    const float scale = __builtin_bit_cast(float, largest) / static_cast<float>(espalier::detail::most_whole);
    const float factor = 1.0F / scale;
    std::int32_t total = 0;
    if (isfinite(scale) && isfinite(factor)) {
      for (std::size_t i = lane_of_warp(); i < at.inputs; i += 32) {
        total +=
            espalier::detail::nibble_at(bytes(at.rows), at.stride, r, i) * espalier::detail::whole_of(x(i), factor);
      }
      total = halve_in_warp<32>(total);
    }
    return static_cast<float>(total) * (scale * floats(at.scales)[r]) + bias;
  }
};

// Projects the three hidden states; a warp works for each number of a projection.
template <class NetworkT>
ESPALIER_KERNEL void project_states(text_batch texts, NetworkT net, root_features from) {
  const text_in_batch here = texts.here();
  if (here.place < 0 || from.known[here.place] == 0) return;
  const std::size_t row = warp_of_launch();
  if (row >= selector_layout::n_hidden * selector_layout::projected) return;
  const std::size_t k = row / selector_layout::projected;
  const selector_layout::state_place& at = net.places.states[k];
  const float* const state = from.hidden[k] + static_cast<std::size_t>(here.place) * at.scale.n;
  const standardised_state x{state, net.floats(at.scale.mean), net.floats(at.scale.deviation), at.scale.n};
  const float out = net.output(at.projection, row % selector_layout::projected, x);
  if (lane_of_warp() == 0) net.joined_of(here.place)[row] = out;
}

// Normalises the projections, with a warp for each, and joins the standardised scalars to them, with one more.
template <class NetworkT>
ESPALIER_KERNEL void join_features(text_batch texts, NetworkT net, root_features from) {
  const text_in_batch here = texts.here();
  if (here.place < 0 || from.known[here.place] == 0) return;
  constexpr std::size_t n = selector_layout::projected;
  const std::size_t k = threadIdx.x / 32, lane = lane_of_warp();
  float* const joined = net.joined_of(here.place);
  if (k < selector_layout::n_hidden) {
    float* const x = joined + k * n;
    const float* const scale = net.floats(net.places.states[k].norm_scale);
    const float* const bias = net.floats(net.places.states[k].norm_bias);
    constexpr auto count = static_cast<double>(n);
    const auto mean = static_cast<float>(one_warp()(0, n, layer_inputs{x}).of[0] / count);
    const double squares = one_warp()(0, n, squared_differences{x, mean}).of[0];
    const auto factor = static_cast<float>(1.0 / ::sqrt(squares / count + 1e-5));
    for (std::size_t i = lane; i < n; i += 32)
      x[i] = (x[i] - mean) * factor * scale[i] + bias[i];
    return;
  }
  if (lane >= selector_features::n_scalars) return;
  // The sums in the order of the scalars that come of them, and which of these are the negative of a sum.
  constexpr std::int32_t sum_of[] = {0, 1, 5, 2, 3, 4};
  constexpr bool is_negative[] = {true, true, true, false, true, false};
  const sampling_options sampling = from.samplings[here.place];
  const std::int32_t length = here.text.state->size;
  double value = 0;
  if (lane < 6) {
    const double* const sums =
        from.sums + static_cast<std::ptrdiff_t>(here.place) * from.n_blocks * root_features::n_sums;
    for (std::int32_t block = 0; block < from.n_blocks; ++block)
      value += sums[block * root_features::n_sums + sum_of[lane]];
    if (is_negative[lane]) value = -value;
  } else if (lane == 6) {
    value = static_cast<double>(length);
  } else if (lane == 7) {
    value = static_cast<double>(sampling.temperature);
  } else if (lane == 8) {
    value = static_cast<double>(sampling.top_p);
  } else {
    value = static_cast<double>(from.seconds[static_cast<std::ptrdiff_t>(length) * 2 + static_cast<int>(lane) - 9]);
  }
  joined[selector_layout::n_hidden * n + lane] =
      espalier::detail::standardised(static_cast<float>(value), net.floats(net.places.scalars.mean)[lane],
                                     net.floats(net.places.scalars.deviation)[lane]);
}

// Computes the first layer; a warp works for each of its outputs.
template <class NetworkT>
ESPALIER_KERNEL void widen_features(text_batch texts, NetworkT net, root_features from) {
  const text_in_batch here = texts.here();
  if (here.place < 0 || from.known[here.place] == 0) return;
  const std::size_t row = warp_of_launch();
  if (row >= net.places.first.outputs) return;
  const float out = net.output(net.places.first, row, layer_inputs{net.joined_of(here.place)});
  if (lane_of_warp() == 0) net.wide_of(here.place)[row] = espalier::detail::gelu(out);
}

struct chosen_memory {
  float scores[delayed_action::count];
};

// Computes the last two layers, and writes the tree of the action with the highest score among those that are no larger
// than `most`; ties go to the lower number. Writes `otherwise` for a text for which the selector may not choose. One
// block works for a text. Shapes: to [places]
template <class NetworkT>
ESPALIER_KERNEL void choose_action(text_batch texts, NetworkT net, root_features from, delayed_options most,
                                   delayed_options otherwise, delayed_options* to) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  if (from.known[here.place] == 0) {
    if (threadIdx.x == 0) to[here.place] = otherwise;
    return;
  }
  auto& memory = *reinterpret_cast<chosen_memory*>(shared_memory());
  float* const narrow = net.narrow_of(here.place);
  const std::size_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (std::size_t row = warp; row < net.places.second.outputs; row += warps) {
    const float out = net.output(net.places.second, row, layer_inputs{net.wide_of(here.place)});
    if (lane_of_warp() == 0) narrow[row] = espalier::detail::gelu(out);
  }
  __syncthreads();
  for (std::size_t row = warp; row < net.places.last.outputs; row += warps) {
    const float out = net.output(net.places.last, row, layer_inputs{narrow});
    if (lane_of_warp() == 0) memory.scores[row] = out;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  std::int32_t best = delayed_action::count;
  const auto is_better = [&](std::int32_t a, std::int32_t b) {
    if (b == delayed_action::count) return true;
    return memory.scores[a] > memory.scores[b] || (memory.scores[a] == memory.scores[b] && a < b);
  };
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < delayed_action::count; i += 32) {
    const delayed_options tree = delayed_action::at(i);
    const bool fits = tree.paths <= most.paths && tree.trunk <= most.trunk && tree.length <= most.length;
    if (fits && is_better(i, best)) best = i;
  }
  for (int half = 16; half > 0; half /= 2) {
    const std::int32_t other = __shfl_xor_sync(all_lanes, best, half);
    if (other != delayed_action::count && is_better(other, best)) best = other;
  }
  if (threadIdx.x == 0) to[here.place] = delayed_action::at(best);
}

}  // namespace detail

//! espalier::delayed_selector on the device: the same network, which chooses a delayed tree for each text of a round
//! without a copy to the host.
//!
//! Complexity  choose: four launches; of the layers, a warp works for each output of a text, and reads the layer's
//!             inputs and its row of weights. No synchronisation, no allocation after reserve()
//! Law         the choices are those of the selector that it was made from, given the same features, bit for bit
//! Errors      cuda_error
//! Source      as espalier::delayed_selector
class delayed_selector {
 public:
  //! Copies the weights of a selector of the host to the device.
  explicit delayed_selector(const espalier::delayed_selector& selector)
      : places_(selector.places()), weights_(selector.weights()) {}

  std::int32_t target_hidden_size() const { return static_cast<std::int32_t>(places_.states[0].scale.n); }
  std::int32_t draft_hidden_size() const { return static_cast<std::int32_t>(places_.states[1].scale.n); }

  //! Takes memory for rounds of max_texts texts.
  void reserve(std::int32_t max_texts) {
    const auto zeros = [&](std::size_t stride) {
      return device_array<float>::filled(static_cast<std::size_t>(max_texts) * stride, 0);
    };
    joined_ = zeros(places_.first.stride);  // the numbers beyond a layer's inputs stay 0
    wide_ = zeros(places_.second.stride);
    narrow_ = zeros(places_.last.stride);
  }

  //! Enqueues the choice: writes, for each text of the round, the delayed tree with the highest score among those that
  //! are no larger than `most` in any option, or `otherwise` if the features say that nothing may be chosen.
  //!
  //! Shapes      to [places]
  void choose(const text_batch& texts, const root_features& features, const delayed_options& most,
              const delayed_options& otherwise, delayed_options* to, cudaStream_t stream) const {
    using network = detail::selector_network;
    using detail::blocks_for_rows;
    using detail::selector_layout;
    const network net{places_, weights_.data(), joined_.data(), wide_.data(), narrow_.data()};
    const auto shape = [&](unsigned blocks, unsigned threads = detail::selector_threads) {
      return launch_shape{.grid = texts.lanes(static_cast<std::int32_t>(blocks)), .threads = threads};
    };
    launch("project_states", detail::project_states<network>,
           shape(blocks_for_rows(selector_layout::n_hidden * selector_layout::projected)), stream, texts, net,
           features);
    launch("join_features", detail::join_features<network>, shape(1, 32 * (selector_layout::n_hidden + 1)), stream,
           texts, net, features);
    launch("widen_features", detail::widen_features<network>, shape(blocks_for_rows(places_.first.outputs)), stream,
           texts, net, features);
    launch_shape last = shape(1);
    last.shared_bytes = sizeof(detail::chosen_memory);
    launch("choose_action", detail::choose_action<network>, last, stream, texts, net, features, most, otherwise, to);
  }

 private:
  espalier::detail::selector_layout places_;
  device_array<std::byte> weights_;
  device_array<float> joined_, wide_, narrow_;
};

}  // namespace espalier::cuda
