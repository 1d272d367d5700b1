// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/read_ahead.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/array_pieces.cuh"
#include "espalier/cuda/model/llama/convolve.cuh"
#include "espalier/cuda/model/llama/expert_mixture.cuh"
#include "espalier/cuda/model/llama/matrix_products.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/recurrent_block.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/model/llama/mixture_shape.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"

namespace espalier::cuda::detail {

using espalier::detail::model_part;
using espalier::detail::model_step;
using espalier::detail::model_steps;
using espalier::detail::step_kind;
using espalier::detail::step_rows;

// The numbers by which matrix_products knows the products of a transformer; -1: this device has no part of the matrix.
struct step_products {
  int query_key_value = -1, key_value = -1, attention_out = -1, router = -1, widen = -1, down = -1, head = -1;
  int paired_query_key_value = -1;            // of a layer that reads step_rows::paired
  int conv_factors = -1;                      // of attention and of the MLP
  int recurrent_in = -1, recurrent_out = -1;  // query_key_value and attention_out of recurrent layers
  int shared_widen = -1, shared_down = -1;    // of shared experts

  // Adds the products of the layers of a model on one device, which has the whole of each matrix. `numbers` is the type
  // of weights and activations.
  void add_layers(matrix_products& products, const model_config& config, cudaDataType_t numbers) {
    const int hidden = config.hidden_size, gates = config.gated_mlp ? 2 : 1;
    const bool adds = config.adds_products();
    const recurrent_block_shape& recurrence = config.recurrence;
    const mixture_shape& mixture = config.mixture;
    query_key_value = products.add(config.projected_size(), hidden, numbers, false);
    attention_out = products.add(hidden, config.query_size(), CUDA_R_32F, adds);
    if (config.is_hybrid()) {
      recurrent_in = products.add(recurrence.projected(), hidden, numbers, false);
      recurrent_out = products.add(hidden, recurrence.inner(), CUDA_R_32F, adds);
    }
    widen = products.add(gates * config.intermediate_size, hidden, numbers, false);
    down = products.add(hidden, config.intermediate_size, CUDA_R_32F, adds);
    if (config.has_mixtures()) router = products.add(mixture.routed_size(), hidden, CUDA_R_32F, false);
    if (mixture.shared_size > 0) {
      shared_widen = products.add(gates * mixture.shared_size, hidden, numbers, false);
      shared_down = products.add(hidden, mixture.shared_size, CUDA_R_32F, adds);
    }
  }

  int of(const model_step& step, const model_config& config) const {
    if (step.from == step_rows::paired) return paired_query_key_value;
    const bool recurrent = step.layer >= 0 && config.is_recurrent(step.layer);
    const bool shared = step.layer >= 0 && config.is_mixture(step.layer);
    switch (step.part) {
      case model_part::query_key_value:
        return recurrent ? recurrent_in : query_key_value;
      case model_part::key_value:
        return key_value;
      case model_part::attention_out:
        return recurrent ? recurrent_out : attention_out;
      case model_part::router:
        return router;
      case model_part::down:
        return shared ? shared_down : down;
      case model_part::head:
        return head;
      case model_part::attention_factors:
      case model_part::mlp_factors:
        return conv_factors;
      default:
        return shared ? shared_widen : widen;
    }
  }
};

// The memory of one device that steps read and write: the arrays of step_rows, each with room for the planned rows.
template <class NumberT, class LogitT>
struct model_memory {
  float* stream = nullptr;
  float* output = nullptr;        // [rows][hidden_size] a product, if the model does not add it to the stream as it is
  float* conv_factors = nullptr;  // [rows][conv_factors()] what rows give for the convolutions around one part
  NumberT* normed = nullptr;
  NumberT* paired = nullptr;  // of a draft head
  NumberT* mlp_normed = nullptr;
  NumberT* projected = nullptr;
  NumberT* mixed = nullptr;
  NumberT* widened = nullptr;
  NumberT* activated = nullptr;  // in a mixture [rows * used][mixture.size]
  float* read = nullptr;         // [rows][recurrence.inner()] what rows read from a recurrent state
  // Rows that a model with mixtures of experts has:
  float* routed = nullptr;         // [rows][mixture.routed_size()] products of the router
  std::int32_t* chosen = nullptr;  // [rows * used]
  float* factors = nullptr;        // [rows * used]
  float* outputs = nullptr;        // [rows * used][hidden_size] outputs of experts
  LogitT* logits = nullptr;

  // Takes the arrays of the layers of a model on one device, which has the whole of each matrix, for this many rows.
  void take_layers(const model_config& config, int rows, array_pieces<NumberT>& numbers, array_pieces<float>& floats,
                   array_pieces<std::int32_t>& integers) {
    const auto size = [&](int width) { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width); };
    const recurrent_block_shape& recurrence = config.recurrence;
    const mixture_shape& mixture = config.mixture;
    normed = numbers.take(size(config.hidden_size));
    if (config.parallel_residual) mlp_normed = numbers.take(size(config.hidden_size));
    projected = numbers.take(size((std::max)(config.projected_size(), recurrence.projected())));
    mixed = numbers.take(size(config.mixed_size()));
    if (config.is_hybrid()) read = floats.take(size(recurrence.inner()));
    widened = numbers.take(size((config.gated_mlp ? 2 : 1) * config.activated_size()));
    activated = numbers.take(
        (std::max)(size(config.activated_size()), size(mixture.used) * static_cast<std::size_t>(mixture.size)));
    if (config.has_mixtures()) {
      routed = floats.take(size(mixture.routed_size()));
      factors = floats.take(size(mixture.used));
      outputs = floats.take(size(mixture.used) * static_cast<std::size_t>(config.hidden_size));
      chosen = integers.take(size(mixture.used));
    }
    stream = floats.take(size(config.hidden_size));
    if (!config.adds_products()) output = floats.take(size(config.hidden_size));
  }

  NumberT* operator[](step_rows which) const {
    switch (which) {
      case step_rows::normed:
        return normed;
      case step_rows::paired:
        return paired;
      case step_rows::mlp_normed:
        return mlp_normed;
      case step_rows::projected:
        return projected;
      case step_rows::mixed:
        return mixed;
      case step_rows::widened:
        return widened;
      default:
        return activated;
    }
  }
};

inline constexpr int scale_threads = 256;

template <class NumberT>
ESPALIER_KERNEL void scale_and_cap(NumberT* numbers, std::int64_t n, float scale, float cap) {
  const std::int64_t i = std::int64_t{blockIdx.x} * scale_threads + threadIdx.x;
  if (i >= n) return;
  const float scaled = static_cast<float>(numbers[i]) * scale;
  numbers[i] = NumberT(cap > 0.0F ? cap * tanhf(scaled / cap) : scaled);
}

// Multiplies each of n logits by `scale`, and with a cap above 0 turns the product into cap * tanh(product / cap).
template <class LogitT>
void scale_logits(LogitT* logits, std::int64_t n, float scale, float cap, cudaStream_t stream) {
  if (n == 0 || (scale == 1.0F && cap == 0.0F)) return;
  launch("scale_and_cap", scale_and_cap<LogitT>,
         {.grid = static_cast<unsigned>((n + scale_threads - 1) / scale_threads), .threads = scale_threads}, stream,
         logits, n, scale, cap);
}

// The members of a PlaceT of step_launcher that are the same for all models on one device, which has the whole of each
// matrix.
template <class NumberT, class LogitT>
struct whole_place {
  const matrix_products& products;
  const model_memory<NumberT, LogitT>& memory;

  template <class LinearT>
  void add(const model_step& step, int number, const LinearT& linear, const NumberT* x, int rows,
           cudaStream_t stream) const {
    products.multiply(number, linear.matrix, x, step.adds ? memory.stream : memory.output, rows, stream);
  }
  void stream_changed() const {}
  void dispatch(const mixture_job<NumberT>& job, cudaStream_t stream) const {
    const mixture_launcher<NumberT> mixture{job, stream};
    mixture.widen();
    mixture.narrow();
    mixture.add();
  }
};

// Launches the steps of a transformer on one device, for one pass. A step is a product, a kernel, or a part of the
// kernel that comes next. The kernel of a norm also does what the steps before it have left undone: it adds a product's
// bias, or the norm of a product, and copies a layer's output. Norms that follow one another are one kernel. Kernels
// that leave memory idle ask for the beginning of the next product's weights.
//
// WeightsT is laid out as model_weights. PlaceT says what differs between a model on one device, a rank and a draft:
//   embed(batch, stream)                        fills the stream
//   add(step, number, linear, x, rows, stream)  computes the product of attention_out or down, without its bias: adds
//                                               it to memory.stream if step.adds, else writes it to memory.output
//   stream_changed()                            is called when a norm has written to the stream
//   kept(layer) -> float*                       the memory to which the stream after a layer is copied
//   see(layer, batch, scores)                   if it is there, changes what the rows of a layer see: the masks of the
//                                               batch, and the windows
//   dispatch(job, stream)                       of a model with mixtures: computes the mixture of this job, whose
//                                               experts have been chosen; its arrays are those of `memory`
//   states                                      of a model with recurrent layers: the recurrent_view of the cache
template <class NumberT, class LogitT, class AttentionT, class WeightsT, class PlaceT>
class step_launcher {
 public:
  const model_steps& steps;    // all steps of the model
  const model_config& config;  // its numbers of heads and intermediate_size are those that this device has
  const matrix_products& products;
  const step_products& numbers;
  const rotary_tables& rotary;
  const AttentionT* attention;  // null: this device has no heads
  const WeightsT& weights;
  model_memory<NumberT, LogitT> memory;
  std::size_t read_ahead_bytes;
  PlaceT& place;

  // Runs these steps of the model. If the batch asks for no logits, it ends after the last layer.
  void run(std::span<const model_step> made, const kv_view<NumberT>& kv, const forward_batch_view& batch,
           cudaStream_t stream) const {
    const int rows = products.planned(batch.n_rows);
    job_type job = fresh_job();
    int n_norms = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
      const model_step& step = made[i];
      switch (step.kind) {
        case step_kind::embed:
          place.embed(batch, stream);
          break;
        case step_kind::normalise:
          if (step.outputs_only) {
            if (job.keep != nullptr) normalise(job, batch.n_rows, stream);
            if (batch.n_outputs == 0) return;
            job.settles = false;
            job.rows = batch.outputs;
          }
          job.norms[n_norms++] = norm_of(step);
          if (i + 1 < made.size() && made[i + 1].kind == step_kind::normalise) break;
          job.next = ahead(steps[step.next]);
          normalise(job, step.outputs_only ? batch.n_outputs : batch.n_rows, stream);
          n_norms = 0;
          break;
        case step_kind::multiply:
          multiply(step, rows, batch, job, stream);
          break;
        case step_kind::add_norm:
          job.add_normed(memory.output, espalier::detail::scale_at(weights, {step.part, step.layer}));
          break;
        case step_kind::add_scaled:
          job.add_scaled(memory.output, step.factor);
          break;
        case step_kind::keep:
          job.keep = place.kept(step.layer);
          break;
        case step_kind::norm_heads:
          norm_heads(step, batch.n_rows, stream);
          break;
        case step_kind::rotate:
          rotate(step, kv, batch, stream);
          break;
        case step_kind::attend:
          if (attention != nullptr) attend(step, kv, batch, stream);
          break;
        case step_kind::activate:
          activate(step, batch.n_rows, stream);
          break;
        case step_kind::cap:
          scale_logits(memory.logits, std::int64_t{batch.n_outputs} * config.columns(), 1, step.limit, stream);
          break;
        case step_kind::dispatch:
          dispatch(step, batch, stream);
          break;
        case step_kind::convolve:
          convolve(step, batch, stream);
          break;
        case step_kind::gate:
          gate(step, batch.n_rows, stream);
          break;
        case step_kind::recur:
          recur(step, batch, stream);
          break;
      }
    }
  }

 private:
  using job_type = normalise_job<NumberT>;
  using linear_type = typename WeightsT::linear_type;

  job_type fresh_job() const { return job_type::of(memory.stream, config.hidden_size, config.norm_epsilon); }

  // Launches the norms of the job. Post: the job is a fresh one.
  void normalise(job_type& job, int n, cudaStream_t stream) const {
    detail::normalise(job, n, stream);
    if (job.settles) place.stream_changed();
    job = fresh_job();
  }

  typename job_type::norm norm_of(const model_step& step) const {
    if (step.as_is) return {nullptr, nullptr, memory[step.to]};
    const auto& norm = espalier::detail::norm_at(weights, {step.part, step.layer});
    return {norm.scale, norm.bias, memory[step.to]};
  }

  const auto& layer_of(const model_step& step) const { return weights.layers[static_cast<std::size_t>(step.layer)]; }

  const linear_type& linear_of(const model_step& step) const {
    return espalier::detail::linear_at(weights, {step.gated ? model_part::gate : step.part, step.layer});
  }

  static bool goes_back(const model_step& step) {
    return step.part == model_part::attention_out || step.part == model_part::down;
  }

  void multiply(const model_step& step, int rows, const forward_batch_view& batch, job_type& job,
                cudaStream_t stream) const {
    const linear_type& linear = linear_of(step);
    const int number = numbers.of(step, config);
    const NumberT* x = memory[step.from];
    if (goes_back(step)) {
      place.add(step, number, linear, x, rows, stream);
      job.add_later(linear.bias);
    } else if (number >= 0 && step.outputs_only) {
      products.multiply(number, linear.matrix, x, memory.logits, products.planned(batch.n_outputs), stream);
    } else if (number >= 0 && step.to == step_rows::routed) {
      products.multiply(number, linear.matrix, x, memory.routed, rows, stream);
    } else if (number >= 0 && step.to == step_rows::factors) {
      products.multiply(number, linear.matrix, x, memory.conv_factors, rows, stream);
    } else if (number >= 0) {
      products.multiply(number, linear.matrix, x, memory[step.to], rows, stream);
    }
  }

  // Rows that are added to the stream come from a product in memory.output.
  void convolve(const model_step& step, const forward_batch_view& batch, cudaStream_t stream) const {
    const auto set = [&](auto job) {
      const int side = step.adds ? 1 : 0, factors = config.conv_factors();
      job.taps = espalier::detail::scale_at(weights, {step.part, step.layer}) +
                 static_cast<std::ptrdiff_t>(side) * config.conv_taps * config.hidden_size;
      job.factors = memory.conv_factors + side * (factors / 2);
      job.width = config.hidden_size, job.group = config.conv_group;
      job.n_taps = config.conv_taps, job.factor_stride = factors;
      detail::convolve(job, batch, stream);
    };
    if (step.adds) {
      set(convolve_job<float>{.from = memory.output, .to = memory.stream});
    } else {
      set(convolve_job<NumberT>{.from = memory[step.from]});
    }
  }

  void dispatch(const model_step& step, const forward_batch_view& batch, cudaStream_t stream) const {
    if constexpr (requires(const mixture_job<NumberT>& job) { place.dispatch(job, stream); }) {
      const auto& layer = layer_of(step);
      const auto& first = layer.experts.front();
      mixture_job<NumberT> job;
      job.sequence_of = batch.sequence_of;
      job.routed = memory.routed, job.router_bias = layer.router.bias;
      job.from = memory[step.from];
      job.gate = first.gate.matrix, job.gate_bias = first.gate.bias;
      job.up = first.up.matrix, job.up_bias = first.up.bias;
      job.down = first.down.matrix, job.down_bias = first.down.bias;
      job.chosen = memory.chosen, job.factors = memory.factors;
      job.activated = memory.activated, job.outputs = memory.outputs, job.to = memory.stream;
      job.rows = batch.n_rows, job.experts = config.mixture.experts, job.used = config.mixture.used;
      job.routed_stride = config.mixture.routed_size();
      job.hidden = config.hidden_size, job.inner = config.mixture.size;
      job.inputs = first.down.inputs, job.width = config.hidden_size, job.down_bias_stride = config.hidden_size;
      job.sums_to_one = config.mixture.sums_to_one;
      job.limit = config.mixture.limit, job.gain = config.mixture.gain;
      mixture_launcher<NumberT>{job, stream}.choose();
      place.dispatch(job, stream);
    }
  }

  void norm_heads(const model_step& step, int n, cudaStream_t stream) const {
    norm_heads_job<NumberT> job;
    job.projected = memory[step.to];
    job.scales[0] = layer_of(step).query_norm, job.scales[1] = layer_of(step).key_norm;
    job.widths[0] = config.query_size(), job.widths[1] = config.kv_size();
    job.stride = config.projected_size();
    job.epsilon = config.norm_epsilon;
    detail::norm_heads(job, n, stream);
  }

  void rotate(const model_step& step, const kv_view<NumberT>& kv, const forward_batch_view& batch,
              cudaStream_t stream) const {
    if (config.n_kv_heads == 0) return;
    auto job = rotate_job<NumberT>::of(config, rotary, layer_of(step), memory.projected, step);
    // Attention runs before the next product and reads the context. If that takes too much of the second-level cache,
    // the product's weights are not asked for.
    const std::size_t context =
        2 * sizeof(NumberT) * static_cast<std::size_t>(config.kv_size()) * static_cast<std::size_t>(batch.max_context);
    if (context <= 2 * read_ahead_bytes) job.next = ahead(steps[step.next]);
    detail::rotate(job, kv, batch, stream);
  }

  void attend(const model_step& step, const kv_view<NumberT>& kv, forward_batch_view batch, cudaStream_t stream) const {
    attention_scores scores{.scale = config.score_scale(),
                            .cap = step.limit,
                            .window = step.window,
                            .sinks = espalier::detail::scale_at(weights, {model_part::sinks, step.layer})};
    if constexpr (requires { place.see(step.layer, batch, scores); }) place.see(step.layer, batch, scores);
    attention->run(memory.projected, kv, step.cache_layer, batch, scores, memory.mixed, stream);
  }

  void gate(const model_step& step, int n, cudaStream_t stream) const {
    const float* const bias = layer_of(step).query_key_value.bias;
    gate_job<NumberT> job;
    job.gates = memory[step.from] + step.column;
    job.bias = bias != nullptr ? bias + step.column : nullptr;
    job.mixed = memory[step.to];
    job.width = config.query_size(), job.stride = config.projected_size();
    detail::gate(job, n, stream);
  }

  void recur(const model_step& step, const forward_batch_view& batch, cudaStream_t stream) const {
    if constexpr (requires { place.states; }) {
      const auto& layer = layer_of(step);
      recurrent_job<NumberT> job;
      job.shape = config.recurrence, job.weights = layer.recurrence, job.states = place.states;
      job.projected = memory[step.from], job.bias = layer.query_key_value.bias;
      job.read = memory.read, job.out = memory[step.to];
      job.layer = step.cache_layer, job.epsilon = config.norm_epsilon;
      recurrent_launcher<NumberT>{job, batch, stream}.run();
    }
  }

  int activated_size(const model_step& step) const {
    return config.is_mixture(step.layer) ? config.mixture.shared_size : config.intermediate_size;
  }

  void activate(const model_step& step, int n, cudaStream_t stream) const {
    if (activated_size(step) == 0) return;
    activate_job<NumberT> job;
    job.in = memory.widened;
    job.bias = step.gated ? layer_of(step).gate.bias : layer_of(step).up.bias;
    job.out = memory.activated;
    if (step.shared)
      job.shared = memory.routed + config.mixture.experts, job.shared_stride = config.mixture.routed_size();
    job.width = activated_size(step);
    job.kind = step.activation;
    job.next = ahead(steps[step.next]);
    detail::activate(job, n, stream);
  }

  // Returns the beginning of a product's weights, which a kernel before the product asks for.
  read_ahead ahead(const model_step& product) const {
    const linear_type& linear = linear_of(product);
    return read_ahead::of(linear.matrix, static_cast<std::size_t>(outputs_of(product)),
                          sizeof(NumberT) * static_cast<std::size_t>(linear.inputs), read_ahead_bytes);
  }

  int outputs_of(const model_step& product) const {
    switch (product.part) {
      case model_part::query_key_value:
        return config.is_recurrent(product.layer) ? config.recurrence.projected() : config.projected_size();
      case model_part::key_value:
        return 2 * config.kv_size();
      case model_part::router:
        return config.mixture.routed_size();
      case model_part::up:
        return (product.gated ? 2 : 1) * activated_size(product);
      case model_part::head:
        return config.columns();
      case model_part::attention_factors:
      case model_part::mlp_factors:
        return config.conv_factors();
      default:
        return config.hidden_size;
    }
  }
};

}  // namespace espalier::cuda::detail
