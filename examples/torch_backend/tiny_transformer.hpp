// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

//! A transformer of random weights in plain ATen operations, for any device: stands for a model that one has in
//! PyTorch.
//!
//! What makes it fit for trees: positions, cache slots and what each row sees are given, not implied by the order of
//! the rows.
class tiny_transformer {
 public:
  static constexpr std::int64_t vocab = 512;
  static constexpr std::int64_t heads = 4;
  static constexpr std::int64_t head_dim = 16;
  static constexpr std::int64_t hidden = heads * head_dim;

  //! Of two models with the same seed, the one with fewer layers begins as the other: a draft of it.
  tiny_transformer(at::Device on, std::int64_t n_layers, std::int64_t max_positions) {
    at::manual_seed(1);
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      return (at::randn({rows, columns}) / std::sqrt(static_cast<double>(columns))).to(on);
    };
    embedding_ = matrix(vocab, hidden) * 4;
    head_ = matrix(vocab, hidden) * 2;
    for (std::int64_t i = 0; i < n_layers; ++i)
      layers_.push_back({matrix(3 * hidden, hidden), matrix(hidden, hidden) * 0.3, matrix(4 * hidden, hidden),
                         matrix(hidden, 4 * hidden) * 0.3});
    const at::Tensor angles = at::arange(max_positions).unsqueeze(1) *
                              at::exp(at::arange(hidden / 2) * (-std::log(10000.0) / static_cast<double>(hidden / 2)));
    positions_ = at::cat({at::sin(angles), at::cos(angles)}, 1).to(at::kFloat).to(on);
  }

  std::int64_t n_layers() const { return static_cast<std::int64_t>(layers_.size()); }

  //! The hidden states of the rows; their keys and values go to the cache.
  //!
  //! Shapes      tokens, positions, slots: [n_rows]; seen [n_rows][columns] bool; cache, a layer: keys and values
  //!             [slots][hidden]
  at::Tensor hidden_states(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& slots,
                           const at::Tensor& seen, const std::vector<std::pair<at::Tensor, at::Tensor>>& cache) const {
    const std::int64_t n = tokens.size(0), columns = seen.size(1);
    at::Tensor stream = embedding_.index_select(0, tokens) + positions_.index_select(0, positions);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const layer& l = layers_[i];
      const auto projected = at::linear(normed(stream), l.query_key_value).chunk(3, 1);
      const auto& [keys, values] = cache[i];
      keys.index_copy_(0, slots, projected[1]);
      values.index_copy_(0, slots, projected[2]);
      const auto by_head = [](const at::Tensor& x) { return x.view({1, x.size(0), heads, head_dim}).transpose(1, 2); };
      const at::Tensor mixed =
          at::scaled_dot_product_attention(by_head(projected[0].contiguous()), by_head(keys.narrow(0, 0, columns)),
                                           by_head(values.narrow(0, 0, columns)), seen.view({1, 1, n, columns}));
      stream = stream + at::linear(mixed.transpose(1, 2).reshape({n, hidden}), l.out);
      stream = stream + at::linear(at::gelu(at::linear(normed(stream), l.up)), l.down);
    }
    return stream;
  }

  //! [n_rows][vocab]
  at::Tensor logits(const at::Tensor& hidden_states) const {
    return at::linear(normed(hidden_states), head_).contiguous();
  }

 private:
  struct layer {
    at::Tensor query_key_value, out, up, down;
  };

  static at::Tensor normed(const at::Tensor& x) { return at::layer_norm(x, {hidden}); }

  at::Tensor embedding_, head_, positions_;
  std::vector<layer> layers_;
};
