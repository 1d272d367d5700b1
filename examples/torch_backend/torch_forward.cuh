// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/interop/dense_mask.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "tiny_transformer.hpp"

//! What espalier::cuda::callable_backend calls: shows the batch and the cache to PyTorch as tensors, without a copy,
//! and runs the model in the decoder's stream.
class torch_forward {
 public:
  torch_forward(tiny_transformer model, at::Device on) : model_(std::move(model)), on_(on) {}

  espalier::vocab_rows<float> operator()(espalier::cuda::contiguous_kv<float>& kv,
                                         const espalier::cuda::forward_batch_view& batch, cudaStream_t stream) {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard in(c10::cuda::getStreamFromExternal(stream, on_.index()));
    // Padding rows write their keys and values to the last slot, which no text reaches.
    const at::Tensor slots = indices(batch.slots, batch.n_rows);
    const at::Tensor places = at::where(slots < 0, std::int64_t{kv.capacity() - 1}, slots.to(at::kLong));
    const at::Tensor seen = at::empty({batch.n_rows, batch.max_context}, options(at::kBool));
    espalier::cuda::interop::write_dense_mask(batch, batch.max_context, seen.data_ptr<bool>(), stream);
    at::Tensor states = model_.hidden_states(indices(batch.tokens, batch.n_rows),
                                             indices(batch.positions, batch.n_rows), places, seen, layers_of(kv));
    if (batch.outputs != nullptr)
      states = states.index_select(0, at::clamp_min(indices(batch.outputs, batch.n_outputs), 0));
    logits_ = model_.logits(states);
    return {logits_.data_ptr<float>(), batch.n_outputs, static_cast<std::int32_t>(tiny_transformer::vocab)};
  }

 private:
  at::TensorOptions options(at::ScalarType number) const { return at::TensorOptions().dtype(number).device(on_); }

  at::Tensor indices(const std::int32_t* data, std::int64_t n) const {
    return at::from_blob(const_cast<std::int32_t*>(data), {n}, options(at::kInt));
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> layers_of(const espalier::cuda::contiguous_kv<float>& kv) const {
    const auto view = kv.view();
    const auto rows = [&](float* data) {
      return at::from_blob(data, {kv.capacity(), kv.row_size()}, options(at::kFloat));
    };
    std::vector<std::pair<at::Tensor, at::Tensor>> layers;
    for (std::int32_t i = 0; i < kv.n_layers(); ++i)
      layers.emplace_back(rows(view.key(i, 0, 0)), rows(view.value(i, 0, 0)));
    return layers;
  }

  tiny_transformer model_;
  at::Device on_;
  at::Tensor logits_;  // lives until the next pass
};
