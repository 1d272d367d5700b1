// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/cuda/core/block_barrier.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/persistent_pass/pass_attention.cuh"
#include "espalier/cuda/model/llama/persistent_pass/pass_job.cuh"
#include "espalier/cuda/model/llama/persistent_pass/pass_product.cuh"
#include "espalier/cuda/model/llama/rotate.cuh"
#include "espalier/cuda/model/llama/step_launcher.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"

namespace espalier::cuda {

namespace detail {

// Returns the product with its rows and columns divided over blocks so that the busiest block has the least to do. No
// sum depends on the division.
inline pass_product plan_product(pass_product product, std::int32_t n_rows, std::int32_t n_blocks) {
  const auto up = [](std::int32_t n, std::int32_t by) { return (n + by - 1) / by; };
  const std::int32_t n_groups = up(std::max(n_rows, 1), pass_tile_rows);
  const auto room = static_cast<std::int32_t>(pass_weight_bytes / 512) / product.n_chunks();
  const std::int32_t most = std::clamp(room, 1, pass_max_units);
  std::int32_t best = 0;
  for (std::int32_t group_blocks = 1; group_blocks <= std::min(n_groups, n_blocks); ++group_blocks) {
    const std::int32_t across = n_blocks / group_blocks;
    const std::int32_t tile_units = std::min(up(product.units, across), most), n_tiles = up(product.units, tile_units);
    const std::int32_t tile_blocks = std::min(across, n_tiles);
    // Loading the rows and storing the sums takes about as long as ten units.
    const std::int32_t time = up(n_groups, group_blocks) * up(n_tiles, tile_blocks) * (10 + tile_units);
    if (best != 0 && time >= best) continue;
    best = time;
    product.tile_units = tile_units;
    product.n_tiles = n_tiles;
    product.tile_blocks = tile_blocks;
    product.group_blocks = group_blocks;
  }
  return product;
}

// A RowT of multiply_rows for a product over all rows of the batch: returns i, or -1 if row i is padding.
struct batch_rows {
  const pass_row* rows;

  __device__ std::int32_t operator()(std::int32_t i) const { return rows[i].sequence >= 0 ? i : -1; }
};

// A RowT of multiply_rows for a product over the outputs of the batch: returns the row of output i, or -1 if there is
// none or it is padding.
struct output_rows {
  const pass_row* rows;
  const std::int32_t* outputs;

  __device__ std::int32_t operator()(std::int32_t i) const {
    return outputs[i] >= 0 && rows[outputs[i]].sequence >= 0 ? outputs[i] : -1;
  }
};

// The work of one thread block in a whole pass. All blocks wait for one another five times a layer. Before a block
// waits, it starts to copy its weights of the next product into shared memory.
template <class NumberT, class LogitT, int dim, class BarrierT>
class pass_block {
 public:
  __device__ pass_block(const pass_job<NumberT, LogitT>& job_, const kv_view<NumberT>& kv_,
                        const forward_batch_view& batch_)
      : job(job_),
        kv(kv_),
        batch(batch_),
        memory(shared_memory(), batch_.n_rows, batch_.n_outputs, job_.hidden, job_.weight_bytes),
        barrier(job_.arrivals) {}

  __device__ void run() {
    fetch(job.query_key_value_product, job.layers[0].query_key_value, job.layers[0].attention_norm);
    read_rows(memory, kv, batch);
    ptx::copy_async_wait<0>();
    __syncthreads();
    for (std::int32_t i = 0; i < job.n_layers; ++i)
      run_layer(i);
    if (batch.n_outputs == 0) return;
    multiply_rows(job.head_product, memory, job.head, batch.n_outputs, output_rows{memory.rows, memory.outputs},
                  normed(stream_load{job.stream, job.hidden}), logit_target<LogitT>{job.logits, job.columns});
  }

 private:
  const pass_job<NumberT, LogitT>& job;
  const kv_view<NumberT>& kv;
  const forward_batch_view& batch;
  pass_memory memory;
  BarrierT barrier;

  __device__ void run_layer(std::int32_t i) {
    const pass_layer<NumberT>& layer = job.layers[i];
    project(layer, i);
    meet(job.attention_out_product, layer.attention_out, nullptr);
    attend(i);
    barrier.arrive();
    barrier.wait();
    multiply(job.attention_out_product, layer.attention_out, plain_rows<NumberT>{job.attended, job.n_heads * dim},
             stream_target{job.stream, nullptr, job.hidden});
    meet(job.gate_up_product, layer.gate_up, layer.mlp_norm);
    multiply(job.gate_up_product, layer.gate_up, normed(stream_load{job.stream, job.hidden}),
             activated_target<NumberT>{job.activated, job.intermediate});
    meet(job.down_product, layer.down, nullptr);
    multiply(job.down_product, layer.down, plain_rows<NumberT>{job.activated, job.intermediate},
             stream_target{job.stream, layer.keep, job.hidden});
    if (i + 1 < job.n_layers) {
      meet(job.query_key_value_product, job.layers[i + 1].query_key_value, job.layers[i + 1].attention_norm);
    } else if (batch.n_outputs > 0) {
      meet(job.head_product, job.head, job.final_norm);
    }
  }

  __device__ void project(const pass_layer<NumberT>& layer, std::int32_t i) {
    head_target<NumberT, dim> target{};
    target.rows = memory.rows;
    target.cosine = job.cosine;
    target.sine = job.sine;
    target.max_positions = job.max_positions;
    target.n_heads = job.n_heads;
    target.n_kv_heads = job.n_kv_heads;
    target.queries = job.queries;
    target.query_stride = job.query_stride;
    target.keys = kv.data + i * kv.layer_stride;
    target.to_values = static_cast<std::int64_t>(kv.page_size) * kv.row_size;
    target.cache_stride = kv.row_size;
    if (i > 0) {
      multiply(job.query_key_value_product, layer.query_key_value, normed(stream_load{job.stream, job.hidden}), target);
      return;
    }
    // Each row is loaded by several blocks. The one that works on the first tile of columns writes it to the stream.
    const bool writes = static_cast<std::int32_t>(blockIdx.x) % job.query_key_value_product.tile_blocks == 0;
    multiply(job.query_key_value_product, layer.query_key_value,
             normed(embedding_load<NumberT>{batch.tokens, job.embedding, job.vocab, job.hidden,
                                            writes ? job.stream : nullptr}),
             target);
  }

  __device__ void attend(std::int32_t i) {
    const std::int32_t per = job.attention_rows, n_units = (batch.n_rows + per - 1) / per * job.n_kv_heads;
    kv_view<NumberT> layer = kv;
    layer.data += i * kv.layer_stride;
    for (auto unit = static_cast<std::int32_t>(blockIdx.x); unit < n_units;
         unit += static_cast<std::int32_t>(gridDim.x)) {
      const std::int32_t first = unit / job.n_kv_heads * per, left = batch.n_rows - first;
      pass_attention<NumberT, dim> of{.rows = memory.rows,
                                      .mask = batch.mask,
                                      .queries = job.queries,
                                      .query_stride = job.query_stride,
                                      .kv = layer,
                                      .attended = job.attended,
                                      .n_heads = job.n_heads,
                                      .group = job.n_heads / job.n_kv_heads,
                                      .exponent_scale = 1.44269504F / sqrtf(static_cast<float>(dim)),
                                      .kv_head = unit % job.n_kv_heads,
                                      .first_row = first,
                                      .n_rows = left < per ? left : per};
      of.run(memory.work);
      __syncthreads();
    }
  }

  template <class LoadT>
  __device__ normed_rows<NumberT, LoadT> normed(const LoadT& load) const {
    return {load, memory.scale, job.hidden, job.epsilon};
  }

  template <class SourceT, class TargetT>
  __device__ void multiply(const pass_product& product, const NumberT* matrix, const SourceT& source,
                           const TargetT& target) {
    multiply_rows(product, memory, matrix, batch.n_rows, batch_rows{memory.rows}, source, target);
  }

  __device__ void fetch(const pass_product& product, const NumberT* matrix, const float* scale) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    if (block / product.tile_blocks >= product.group_blocks) return;
    fetch_weights(product, matrix, block % product.tile_blocks, memory.weights);
    if (scale != nullptr) fetch_scale(scale, job.hidden, memory.scale);
    ptx::copy_async_commit();
  }

  // Waits for all blocks, and for this block's weights of `product`, which comes next, and its norm's scale, if not
  // null.
  __device__ void meet(const pass_product& product, const NumberT* matrix, const float* scale) {
    barrier.arrive();
    fetch(product, matrix, scale);
    ptx::copy_async_wait<0>();
    barrier.wait();
  }
};

template <class NumberT, class LogitT, int dim, class BarrierT>
ESPALIER_KERNEL __launch_bounds__(pass_threads, 1) void run_pass(const __grid_constant__ pass_job<NumberT, LogitT> job,
                                                                 const __grid_constant__ kv_view<NumberT> kv,
                                                                 const __grid_constant__ forward_batch_view batch) {
  pass_block<NumberT, LogitT, dim, BarrierT>(job, kv, batch).run();
}

}  // namespace detail

//! Runs the whole forward pass of a small transformer as one launch. Its thread blocks run from the first step to the
//! last and wait for one another after each step, so there is no launch between one product and the next. Weights come
//! from the second-level cache.
//!
//! A layer is five steps: (1) norm, product of query, key and value, rotation, writing the cache rows; (2) attention;
//! (3) output product; (4) norm, product of gate and up, activation; (5) down product. While the blocks wait for one
//! another, each copies its weights of the next product into shared memory. A model with up to 4 MB of weights runs in
//! one cluster of sixteen blocks, whose barriers are short. A larger model runs on all multiprocessors, and so does any
//! model if the device or the program has no such clusters.
//!
//! Complexity  one launch; 5 n_layers barriers; weights are read from the second-level cache, at most once for each 16
//!             rows
//! Law         a row's bits depend on the tokens that it sees and their positions and on nothing else: not on other
//!             rows, their number, their order, padding or NaN, nor on which of those tokens lie in the tree
//! Errors      cuda_error
template <class NumberT, class LogitT>
class persistent_pass {
 public:
  using weights_type = model_weights<NumberT>;
  using memory_type = detail::model_memory<NumberT, LogitT>;

  //! True if the kernel can compute the model with up to max_rows rows. The model must have the steps of Llama (no
  //! biases, norms of heads, layers without rotation, windows or caps), heads of 32 or 64 dimensions, at most 16 query
  //! heads for a key-value head, at most 32 layers, and sizes that are multiples of 8. The weights must take at most
  //! three quarters of the second-level cache, the rows must fit in shared memory, and the device must have cooperative
  //! launches.
  static bool fits(const model_config& c, const detail::model_steps& steps, int max_rows) {
    const bool plain = c.gated_mlp && !c.parallel_residual && !c.layer_norm && !c.query_bias && !c.attention_out_bias &&
                       !c.mlp_bias && !c.query_key_norm && c.rotary_dims == c.head_dim && c.embedding_scale == 1.0F &&
                       c.attention_scale == 0.0F && !c.attention_sinks &&
                       std::all_of(steps.all().begin(), steps.all().end(), knows);
    const bool whole = c.hidden_size % 8 == 0 && c.intermediate_size % 8 == 0 && c.columns() % 8 == 0 &&
                       (c.head_dim == 32 || c.head_dim == 64) && c.n_heads / c.n_kv_heads <= detail::pass_queries &&
                       c.n_layers <= detail::pass_max_layers;
    if (!plain || !whole) return false;
    const device_type device = this_device();
    return device.cooperative != 0 && weight_bytes(c) <= 0.75 * static_cast<double>(device.cache_bytes) &&
           shared_bytes(c, max_rows, max_rows, detail::pass_weight_bytes, detail::pass_max_units) <=
               static_cast<std::size_t>(device.shared_bytes);
  }

  //! Pre         fits(config, steps, max_rows); weights, tables and memory live as long as this object
  persistent_pass(const model_config& config, const detail::model_steps& steps, const weights_type& weights,
                  const detail::rotary_table& rotary, const memory_type& memory)
      : config_(config), device_(this_device()), arrivals_(device_array<unsigned>::filled(1, 0)) {
    one_cluster_ = weight_bytes(config) <= cluster_weight_bytes && device_.clusters != 0 && cluster_fits();
    fill(steps, weights, rotary, memory);
  }

  //! From now on each pass copies the stream after `layer` to `to`.
  void keep(int layer, float* to) { job_.layers[layer].keep = to; }

  void run(const kv_view<NumberT>& kv, const forward_batch_view& batch, cudaStream_t stream) const {
    if (config_.head_dim == 64) {
      run_dim<64>(kv, batch, stream);
    } else {
      run_dim<32>(kv, batch, stream);
    }
  }

 private:
  static constexpr unsigned cluster_blocks = 16;
  static constexpr double cluster_weight_bytes = 4e6;

  struct device_type {
    int multiprocessors = 0, cache_bytes = 0, shared_bytes = 0, cooperative = 0, clusters = 0;
  };

  static device_type this_device() {
    int device = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    const auto get = [device](cudaDeviceAttr which) {
      int value = 0;
      require(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
      return value;
    };
    return {get(cudaDevAttrMultiProcessorCount), get(cudaDevAttrL2CacheSize),
            get(cudaDevAttrMaxSharedMemoryPerBlockOptin), get(cudaDevAttrCooperativeLaunch),
            get(cudaDevAttrClusterLaunch)};
  }

  // Bytes of the weights that each pass reads.
  static double weight_bytes(const model_config& c) {
    const double hidden = c.hidden_size;
    return sizeof(NumberT) * hidden *
           (c.columns() + c.n_layers * (2.0 * c.query_size() + 2.0 * c.kv_size() + 3.0 * c.intermediate_size));
  }

  static std::size_t shared_bytes(const model_config& c, int n_rows, int n_outputs, std::size_t weight_bytes,
                                  int tile_units) {
    const int inputs = (std::max)({c.hidden_size, c.query_size(), c.intermediate_size});
    const int n_chunks = (inputs + detail::pass_chunk - 1) / detail::pass_chunk;
    const std::size_t attention =
        c.head_dim == 64 ? detail::attention_work_bytes<64>() : detail::attention_work_bytes<32>();
    return detail::pass_memory::bytes_before_weights(n_rows, n_outputs, c.hidden_size) + weight_bytes +
           (std::max)(detail::product_work_bytes(n_chunks, tile_units), attention);
  }

  // True if the kernel can compute this step.
  static bool knows(const detail::model_step& step) {
    switch (step.kind) {
      case detail::step_kind::embed:
      case detail::step_kind::multiply:
      case detail::step_kind::keep:
        return true;
      case detail::step_kind::normalise:
        return !step.as_is;
      case detail::step_kind::rotate:
        return !step.local_rotary && !step.unrotated;
      case detail::step_kind::attend:
        return step.window == 0 && step.limit == 0.0F;
      case detail::step_kind::activate:
        return step.activation == espalier::detail::activation_kind::silu_gate;
      default:
        return false;
    }
  }

  // Stores the address of a step's norm or matrix in job_, where the kernel reads it.
  void take(const detail::model_step& step, const weights_type& weights) {
    using part = detail::model_part;
    if (step.layer < 0) return;
    detail::pass_layer<NumberT>& to = job_.layers[step.layer];
    const auto& from = weights.layers[static_cast<std::size_t>(step.layer)];
    if (step.kind == detail::step_kind::normalise) {
      (step.part == part::mlp_norm ? to.mlp_norm : to.attention_norm) =
          espalier::detail::scale_at(weights, {step.part, step.layer});
    } else if (step.kind == detail::step_kind::multiply) {
      if (step.part == part::query_key_value) to.query_key_value = from.query_key_value.matrix;
      if (step.part == part::attention_out) to.attention_out = from.attention_out.matrix;
      if (step.part == part::up) to.gate_up = from.gate.matrix;
      if (step.part == part::down) to.down = from.down.matrix;
    }
  }

  void fill(const detail::model_steps& steps, const weights_type& weights, const detail::rotary_table& rotary,
            const memory_type& memory) {
    const model_config& c = config_;
    for (const detail::model_step& step : steps.all())
      take(step, weights);
    job_.embedding = weights.embedding;
    job_.final_norm = weights.final_norm.scale;
    job_.head = weights.head.matrix;
    job_.cosine = rotary.cosine.data();
    job_.sine = rotary.sine.data();
    job_.stream = memory.stream;
    job_.queries = memory.projected;
    job_.attended = memory.mixed;
    job_.activated = memory.activated;
    job_.logits = memory.logits;
    job_.arrivals = arrivals_.data();
    const int heads = c.n_heads + 2 * c.n_kv_heads;
    job_.query_key_value_product = {heads * c.head_dim / 8, c.hidden_size, c.head_dim / 8, c.head_dim, c.head_dim / 2};
    job_.attention_out_product = {c.hidden_size / 8, c.query_size()};
    job_.gate_up_product = {c.intermediate_size / 4, c.hidden_size, c.intermediate_size / 4, 0, c.intermediate_size};
    job_.down_product = {c.hidden_size / 8, c.intermediate_size};
    job_.head_product = {c.columns() / 8, c.hidden_size};
    job_.n_layers = c.n_layers;
    job_.hidden = c.hidden_size;
    job_.n_heads = c.n_heads;
    job_.n_kv_heads = c.n_kv_heads;
    job_.intermediate = c.intermediate_size;
    job_.vocab = c.vocab_size, job_.columns = c.columns();
    job_.max_positions = rotary.positions;
    job_.query_stride = heads * c.head_dim;
    job_.epsilon = static_cast<float>(c.norm_epsilon);
  }

  // True if a cluster of sixteen blocks can run: some devices with clusters have no room for so many blocks.
  bool cluster_fits() const {
    const auto kernel = config_.head_dim == 64 ? &detail::run_pass<NumberT, LogitT, 64, cluster_barrier>
                                               : &detail::run_pass<NumberT, LogitT, 32, cluster_barrier>;
    cudaFuncAttributes attributes = {};
    require(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    if (attributes.ptxVersion < 90) return false;  // compiled for devices without clusters
    const launch_shape shape{.grid = cluster_blocks,
                             .threads = detail::pass_threads,
                             .shared_bytes = static_cast<std::size_t>(device_.shared_bytes),
                             .cluster = cluster_blocks};
    return resident_clusters("run_pass", kernel, shape) > 0;
  }

  template <int dim>
  void run_dim(const kv_view<NumberT>& kv, const forward_batch_view& batch, cudaStream_t stream) const {
    if (one_cluster_) {
      launch_on<dim, cluster_barrier>(cluster_blocks, kv, batch, stream);
    } else {
      launch_on<dim, grid_barrier>(static_cast<unsigned>(device_.multiprocessors), kv, batch, stream);
    }
  }

  template <int dim, class BarrierT>
  void launch_on(unsigned blocks, const kv_view<NumberT>& kv, const forward_batch_view& batch,
                 cudaStream_t stream) const {
    auto job = job_;
    const auto n_blocks = static_cast<std::int32_t>(blocks);
    std::int32_t most_units = 1;
    std::size_t weight_bytes = 0;
    for (detail::pass_product* product : {&job.query_key_value_product, &job.attention_out_product,
                                          &job.gate_up_product, &job.down_product, &job.head_product}) {
      const std::int32_t rows = product == &job.head_product ? batch.n_outputs : batch.n_rows;
      *product = detail::plan_product(*product, rows, n_blocks);
      most_units = (std::max)(most_units, product->tile_units);
      weight_bytes = (std::max)(weight_bytes, static_cast<std::size_t>(product->tile_units) *
                                                  static_cast<std::size_t>(product->n_chunks()) * 512);
    }
    job.weight_bytes = static_cast<std::int32_t>(weight_bytes);
    const std::int32_t units = batch.n_rows * config_.n_kv_heads;
    job.attention_rows =
        std::clamp((units + n_blocks - 1) / n_blocks, 1, detail::pass_queries / (config_.n_heads / config_.n_kv_heads));
    const launch_shape shape{
        .grid = blocks,
        .threads = detail::pass_threads,
        .shared_bytes = shared_bytes(config_, batch.n_rows, batch.n_outputs, weight_bytes, most_units),
        .cluster = one_cluster_ ? blocks : 1,
        .cooperative = !one_cluster_};
    launch("run_pass", detail::run_pass<NumberT, LogitT, dim, BarrierT>, shape, stream, job, kv, batch);
  }

  model_config config_;
  device_type device_;
  device_array<unsigned> arrivals_;
  bool one_cluster_ = false;
  detail::pass_job<NumberT, LogitT> job_;
};

}  // namespace espalier::cuda
