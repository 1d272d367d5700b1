// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/script.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/interop/dense_mask.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/model/torch/torch_module.hpp"
#include "espalier/model/torch/torch_options.hpp"

namespace espalier::cuda {

//! A model of PyTorch on the device, as target or as draft. Its passes run in the decoder's stream and over the
//! library's own cache.
//!
//!     cuda::torch_backend target(torch_module::load("smollm2.pt", at::Device(at::kCUDA, 0)), {.max_positions = 2048});
//!     auto cache = target.cache();  // for one text
//!
//! Shapes      forward -> [n_outputs][vocab_size] float on the device, valid until the next call
//! Complexity  one call of the module; one launch for its mask
//! Law         the laws of Backend within PyTorch's rounding, which depends on how many rows a pass has; but a pass
//!             allocates memory, and no graph can capture it
//! Errors      option_error for a module that is not on a GPU, and if a graph captures the pass, because PyTorch's
//!             allocator does not know of the capture: make decoders with replay = false; input_error for a cache of
//!             another shape, of several texts, or without a slot beyond the longest text; torch_error if the module
//!             fails
//! Pre         the cache was made by cache(), or holds finite numbers: attention multiplies what a row does not see by
//!             zero
class torch_backend {
 public:
  using number = float;

  explicit torch_backend(torch_module module, const torch_options& options = {})
      : module_(std::move(module)),
        limits_(espalier::detail::limited(options, module_.shape())),
        device_(module_.device()) {
    if (!module_.device().is_cuda()) {
      raise<option_error>("this backend is a GPU's, but the module of PyTorch is on ", module_.device().str(), ".");
    }
    if (!device_.has_index()) device_ = at::Device(at::kCUDA, c10::cuda::current_device());
  }

  //! Makes a cache for one text, with a slot beyond the longest text, into which padding rows write.
  contiguous_kv<float> cache() const {
    const torch_shape& shape = module_.shape();
    contiguous_kv<float> kv(shape.n_layers, shape.row_size, 1, max_positions() + 1);
    // Attention multiplies the rows that are not seen by zero, so they must be finite numbers.
    const auto view = kv.view();
    const std::int64_t numbers = std::int64_t{2} * shape.n_layers * view.page_size * view.row_size;
    require(cudaMemset(view.data, 0, sizeof(float) * static_cast<std::size_t>(numbers)), "cudaMemset");
    return kv;
  }

  std::int32_t vocab_size() const { return module_.shape().vocab_size; }
  std::int32_t max_rows() const { return limits_.max_rows; }
  std::int32_t max_positions() const { return limits_.max_positions; }
  const torch_module& module() const { return module_; }

  vocab_rows<float> forward(contiguous_kv<float>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const torch_shape& shape = module_.shape();
    if (kv.n_layers() != shape.n_layers || kv.row_size() != shape.row_size || kv.n_sequences() != 1) {
      raise<input_error>("the cache has ", kv.n_sequences(), " texts with ", kv.n_layers(), " layers of ",
                         kv.row_size(), " numbers a row, but must have one text with ", shape.n_layers, " of ",
                         shape.row_size, ".");
    }
    if (kv.capacity() <= max_positions()) {
      raise<input_error>("the cache has ", kv.capacity(), " slots, but needs one more than the longest text, ",
                         max_positions(), " tokens (option max_positions), where padding rows write.");
    }
    cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
    require(cudaStreamIsCapturing(stream, &captures), "cudaStreamIsCapturing");
    if (captures != cudaStreamCaptureStatusNone) {
      raise<option_error>("a graph cannot capture the passes of PyTorch: make the decoder with replay = false.");
    }
    espalier::detail::asking_torch(batch.n_rows, [&] { pass(kv, batch, stream); });
    return {logits_.data_ptr<float>(), batch.n_outputs, shape.vocab_size};
  }

 private:
  void pass(contiguous_kv<float>& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard in(c10::cuda::getStreamFromExternal(stream, device_.index()));
    // Padding rows write their keys and values to the last slot, which no text reaches.
    const at::Tensor slots = indices(batch.slots, batch.n_rows);
    const at::Tensor places = at::where(slots < 0, std::int64_t{kv.capacity()} - 1, slots);
    const at::Tensor seen = at::empty({batch.n_rows, batch.max_context}, options(at::kBool));
    interop::write_dense_mask(batch, batch.max_context, seen.data_ptr<bool>(), stream);
    const at::Tensor outputs = batch.outputs != nullptr ? at::clamp_min(indices(batch.outputs, batch.n_outputs), 0)
                                                        : at::arange(batch.n_outputs, options(at::kLong));
    const auto view = kv.view();
    logits_ = module_(indices(batch.tokens, batch.n_rows), indices(batch.positions, batch.n_rows), places, seen,
                      outputs, rows_at(kv, view.key(0, 0, 0)), rows_at(kv, view.value(0, 0, 0)))
                  .logits.to(at::kFloat)
                  .contiguous();
  }

  at::TensorOptions options(at::ScalarType number) const { return at::TensorOptions().dtype(number).device(device_); }

  at::Tensor indices(const std::int32_t* data, std::int64_t n) const {
    return at::from_blob(const_cast<std::int32_t*>(data), {n}, options(at::kInt)).to(at::kLong);
  }

  // Returns a tensor over the keys or the values of the cache: [layers][capacity][row_size].
  at::Tensor rows_at(const contiguous_kv<float>& kv, float* first) const {
    const auto view = kv.view();
    const std::int64_t next_layer = kv.n_layers() > 1 ? view.key(1, 0, 0) - view.key(0, 0, 0) : 0;
    return at::from_blob(first, {kv.n_layers(), kv.capacity(), kv.row_size()}, {next_layer, kv.row_size(), 1},
                         options(at::kFloat));
  }

  torch_module module_;
  torch_options limits_;
  at::Device device_;
  at::Tensor logits_;
};

}  // namespace espalier::cuda
