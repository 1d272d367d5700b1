// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/tensor_names.hpp"

namespace espalier::detail {

// A part of a layer; layer 0 where it belongs to none.
struct part_place {
  model_part part;
  int layer = 0;
};

// Where weights that are laid out as model_weights is hold a part.
template <class WeightsT>
auto& layer_at(WeightsT& weights, part_place place) {
  return weights.layers[static_cast<std::size_t>(place.layer)];
}

template <class WeightsT>
auto& linear_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::query_key_value:
      return layer_at(weights, place).query_key_value;
    case model_part::attention_out:
      return layer_at(weights, place).attention_out;
    case model_part::gate:
      return layer_at(weights, place).gate;
    case model_part::up:
      return layer_at(weights, place).up;
    case model_part::down:
      return layer_at(weights, place).down;
    default:
      return weights.head;
  }
}

template <class WeightsT>
float* scale_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::attention_norm:
      return layer_at(weights, place).attention_norm.scale;
    case model_part::mlp_norm:
      return layer_at(weights, place).mlp_norm.scale;
    case model_part::query_norm:
      return layer_at(weights, place).query_norm;
    case model_part::key_norm:
      return layer_at(weights, place).key_norm;
    case model_part::attention_out_norm:
      return layer_at(weights, place).attention_out_norm;
    case model_part::mlp_out_norm:
      return layer_at(weights, place).mlp_out_norm;
    default:
      return weights.final_norm.scale;
  }
}

// Of a recurrent layer, what it has beside matrices; null for other parts, and in weights that have no such layers.
template <class WeightsT>
float* recurrent_at([[maybe_unused]] WeightsT& weights, [[maybe_unused]] part_place place) {
  if constexpr (requires { layer_at(weights, place).mamba; }) {
    auto& mamba = layer_at(weights, place).mamba;
    switch (place.part) {
      case model_part::convolution:
        return mamba.convolution;
      case model_part::convolution_bias:
        return mamba.convolution_bias;
      case model_part::step_bias:
        return mamba.step_bias;
      case model_part::decay:
        return mamba.decay;
      case model_part::skip:
        return mamba.skip;
      case model_part::gated_norm:
        return mamba.norm;
      default:
        break;
    }
  }
  return nullptr;
}

template <class WeightsT>
float* bias_at(WeightsT& weights, part_place place) {
  switch (place.part) {
    case model_part::attention_norm:
      return layer_at(weights, place).attention_norm.bias;
    case model_part::mlp_norm:
      return layer_at(weights, place).mlp_norm.bias;
    case model_part::final_norm:
      return weights.final_norm.bias;
    default:
      return linear_at(weights, place).bias;
  }
}

// Reads the tensors of a model, by the names that each kind of file gives them, into whatever holds its weights:
//   expect_rows(place, first, rows, type)  how the file stores rows first, first + 1, ... of a matrix
//   set_row(place, row, weights)           row `row` of a matrix, a weight_row; those of one come in ascending runs
//   wants(place, row)                      optional: whether row `row` of a matrix is to be read
//   inputs(place, type)                    optional: which columns of its rows set_row gets, whole blocks of the type
//   set_vector(place, values, n)           the scale of a norm, or what a recurrent layer has beside matrices
//   set_bias(place, first, values, n)      biases of outputs first, first + 1, ..., or of a norm
// Whatever the file does, the two rows that turn together are head_dim / 2 apart, and scales of norms are whole.
template <class WeightsT>
class model_tensors {
 public:
  // Where it only checks, it reads no tensor and sets nothing, but raises what the file lacks, and says what to expect:
  // a config that claims too much is refused before memory is taken for it.
  model_tensors(const model_config& config, tensor_source& file, WeightsT& weights, bool only_check)
      : c_(config),
        names_(names_of(config.layout)),
        tensors_(file, only_check),
        weights_(weights),
        only_check_(only_check) {}

  void read() {
    matrix(names_.embedding, {model_part::embedding}, c_.vocab_size, c_.hidden_size);
    if (!c_.tied_embeddings) linear(names_.head, {model_part::head}, c_.vocab_size, c_.hidden_size, false);
    for (int i = 0; i < c_.n_layers; ++i)
      read_layer(names_.layer + std::to_string(i) + ".", i);
    norm(names_.final_norm, {model_part::final_norm}, c_.hidden_size);
  }

 private:
  void read_layer(const std::string& base, int i) {
    const int width = c_.hidden_size;
    norm(base + names_.attention_norm, {model_part::attention_norm, i}, width);
    if (c_.is_recurrent(i)) {
      read_mamba(base + names_.mamba, i);
    } else {
      read_attention(base, i);
    }
    norm(base + names_.mlp_norm, {model_part::mlp_norm, i}, width);
    if (c_.gated_mlp) linear(base + names_.gate, {model_part::gate, i}, c_.intermediate_size, width, c_.mlp_bias);
    linear(base + names_.up, {model_part::up, i}, c_.intermediate_size, width, c_.mlp_bias);
    linear(base + names_.down, {model_part::down, i}, width, c_.intermediate_size, c_.mlp_bias);
    if (c_.output_norms) norm(base + names_.mlp_out_norm, {model_part::mlp_out_norm, i}, width);
  }

  void read_attention(const std::string& base, int i) {
    const int width = c_.hidden_size;
    read_projections(base, {model_part::query_key_value, i});
    if (c_.query_key_norm) {
      norm(base + names_.query_norm, {model_part::query_norm, i}, c_.head_dim);
      norm(base + names_.key_norm, {model_part::key_norm, i}, c_.head_dim);
    }
    linear(base + names_.attention_out, {model_part::attention_out, i}, width, c_.query_size(), c_.attention_out_bias);
    if (c_.output_norms) norm(base + names_.attention_out_norm, {model_part::attention_out_norm, i}, width);
  }

  void read_mamba(const std::string& base, int i) {
    const mamba_shape& m = c_.mamba;
    const int channels = m.convolved(), taps = m.taps;
    linear(base + "in_proj", {model_part::query_key_value, i}, m.projected(), c_.hidden_size, m.projection_bias);
    linear(base + "out_proj", {model_part::attention_out, i}, c_.hidden_size, m.inner(), m.projection_bias);
    const std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(channels), 1, static_cast<std::uint64_t>(taps)};
    tensors_.numbers(base + "conv1d.weight", shape, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(channels * taps));
      for (int at = 0; at < channels * taps; ++at)
        values_[static_cast<std::size_t>(at % taps * channels + at / taps)] = values[at];
      weights_.set_vector({model_part::convolution, i}, values_.data(), channels * taps);
    });
    const auto vector = [&](const char* name, model_part part, int n) {
      tensors_.vector(base + name, n, [&](const float* values) { weights_.set_vector({part, i}, values, n); });
    };
    if (m.convolution_bias) vector("conv1d.bias", model_part::convolution_bias, channels);
    vector("dt_bias", model_part::step_bias, m.heads);
    tensors_.vector(base + "A_log", m.heads, [&](const float* values) {
      values_.assign(values, values + m.heads);
      for (float& value : values_)
        value = -std::exp(value);
      weights_.set_vector({model_part::decay, i}, values_.data(), m.heads);
    });
    vector("D", model_part::skip, m.heads);
    vector("norm.weight", model_part::gated_norm, m.inner());
  }

  // Queries, keys and values, each head by head.
  void read_projections(const std::string& base, part_place place) {
    const int q = c_.query_size(), kv = c_.kv_size(), dim = c_.head_dim;
    const auto in_order = [](int row) { return row; };
    // Rows 2 i and 2 i + 1 of a head turn together.
    const auto in_pairs = [dim](int row) { return row - row % dim + row % 2 * (dim / 2) + row % dim / 2; };
    // Query, key and value of one head together.
    const auto by_heads = [q, dim](int row) { return row / dim % 3 * q + row / (3 * dim) * dim + row % dim; };
    if (c_.layout == model_config::layout_type::gpt_neox) {
      projection(base + names_.query_key_value, place, 0, q + 2 * kv, by_heads);
    } else if (c_.layer_norm) {
      projection(base + names_.query_key_value, place, 0, q + 2 * kv, in_order);
    } else if (c_.paired_rotary) {
      projection(base + names_.query, place, 0, q, in_pairs);
      projection(base + names_.key, place, q, kv, in_pairs);
      projection(base + names_.value, place, q + kv, kv, in_order);
    } else {
      projection(base + names_.query, place, 0, q, in_order);
      projection(base + names_.key, place, q, kv, in_order);
      projection(base + names_.value, place, q + kv, kv, in_order);
    }
  }

  // Row r of the tensor is row first + order(r) of the matrix.
  template <class OrderT>
  void projection(const std::string& name, part_place place, int first, int rows, const OrderT& order) {
    matrix(name, place, rows, c_.hidden_size, first, order);
    if (!c_.query_bias) return;
    tensors_.vector(name + ".bias", rows, [&](const float* values) {
      values_.resize(static_cast<std::size_t>(rows));
      for (int row = 0; row < rows; ++row)
        values_[static_cast<std::size_t>(order(row))] = values[row];
      weights_.set_bias(place, first, values_.data(), rows);
    });
  }

  void matrix(const std::string& name, part_place place, int rows, int columns) {
    matrix(name, place, rows, columns, 0, [](int row) { return row; });
  }

  template <class OrderT>
  void matrix(const std::string& name, part_place place, int rows, int columns, int first, const OrderT& order) {
    const auto wanted = [&](int row) {
      if constexpr (requires { weights_.wants(place, row); }) return weights_.wants(place, first + order(row));
      return true;
    };
    const auto part = [&](weight_type type) {
      if constexpr (requires { weights_.inputs(place, type); }) return weights_.inputs(place, type);
      return column_range{0, columns};
    };
    const weight_type type = tensors_.matrix(
        name + ".weight", rows, columns,
        [&](int row, const weight_row& weights) { weights_.set_row(place, first + order(row), weights); }, wanted,
        part);
    if (only_check_) weights_.expect_rows(place, first, rows, type);
  }

  void linear(const std::string& name, part_place place, int rows, int columns, bool has_bias) {
    matrix(name, place, rows, columns);
    if (has_bias) bias(name + ".bias", place, rows);
  }

  void bias(const std::string& name, part_place place, int n) {
    tensors_.vector(name, n, [&](const float* values) { weights_.set_bias(place, 0, values, n); });
  }

  void norm(const std::string& name, part_place place, int n) {
    tensors_.vector(name + ".weight", n, [&](const float* values) {
      values_.assign(values, values + n);
      if (c_.norms_less_one) {
        for (float& scale : values_)
          scale += 1.0F;
      }
      weights_.set_vector(place, values_.data(), n);
    });
    if (c_.layer_norm) bias(name + ".bias", place, n);
  }

  const model_config& c_;
  const tensor_names& names_;
  tensor_reader tensors_;
  WeightsT& weights_;
  bool only_check_;
  std::vector<float> values_;
};

}  // namespace espalier::detail
