// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/cuda/model/llama/row_upload.cuh"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_rows.hpp"

namespace espalier::cuda {

//! A rank's part of a transformer's weights in the memory of its device: espalier::rank_weights' twin. Norms, and the
//! biases of what goes back to the stream, are whole; of every matrix a rank has the outputs of its part, or, with
//! rank_split::sums, of attention_out and down all outputs of the inputs of its part.
//!
//! Complexity  as espalier::rank_weights; 4 MiB of host memory. Synchronises
//! Errors      as model_weights
template <class NumberT>
class rank_weights {
 public:
  using layer_type = typename model_weights<NumberT>::layer_type;
  using linear_type = typename model_weights<NumberT>::linear_type;

  model_weights<NumberT> own;  //!< with the rank's outputs alone, numbered from 0

  static rank_weights load(const model_config& config, espalier::tensor_source& file, const rank_part& part,
                           rank_split split) {
    rank_weights weights;
    loader to{weights.own, config, {config, part, split}, {}, {}, 0};
    espalier::detail::model_tensors(config, file, to, true).read();
    weights.own = model_weights<NumberT>::of_shape(config, widths(config, part, split));
    espalier::detail::model_tensors(config, file, to, false).read();
    to.upload.flush();
    weights.weights_taken_ = to.weights_taken;
    return weights;
  }

  std::size_t bytes() const { return own.bytes(); }
  //! Weights of matrices that load took from the file; those of a block that ranks share are counted by each.
  std::int64_t weights_taken() const { return weights_taken_; }

 private:
  static detail::weight_widths widths(const model_config& c, const rank_part& part, rank_split split) {
    const bool sums = split == rank_split::sums;
    const int queries = part.queries(c).size(), intermediate = part.intermediate.size();
    return {.vocabulary = part.vocabulary.size(),
            .projected = queries + 2 * part.kv_size(c),
            .attended = sums ? queries : c.query_size(),
            .intermediate = intermediate,
            .activated = sums ? intermediate : c.intermediate_size,
            .back = sums ? c.hidden_size : part.hidden.size()};
  }

  struct loader {
    model_weights<NumberT>& weights;
    const model_config& config;
    espalier::detail::rank_rows rows;
    detail::row_upload<NumberT> upload;
    std::vector<float> floats;
    std::int64_t weights_taken;

    bool wants(espalier::detail::part_place place, int row) const { return rows.own_row(place, row) >= 0; }
    espalier::detail::column_range inputs(espalier::detail::part_place place, weight_type type) const {
      return rows.inputs_to_read(place, type);
    }
    void expect_rows(espalier::detail::part_place, int, int, weight_type) {}
    void set_row(espalier::detail::part_place place, int row, const weight_row& values) {
      weights_taken += values.n;
      const linear_type& part = espalier::detail::linear_at(weights, place);
      NumberT* matrix = place.part == espalier::detail::model_part::embedding ? weights.embedding : part.matrix;
      floats.resize(static_cast<std::size_t>(values.n));
      values.decode(floats.data());
      const auto n = static_cast<std::size_t>(part.inputs);
      const int first =
          rows.is_cut(place) && n > 0 ? rows.inputs_of(place).begin - inputs(place, values.type).begin : 0;
      upload.add(matrix + static_cast<std::size_t>(rows.own_row(place, row)) * n, floats.data() + first, n);
    }
    void set_vector(espalier::detail::part_place place, const float* values, int n) {
      detail::upload_vector(espalier::detail::scale_at(weights, place), values, n);
    }
    void set_bias(espalier::detail::part_place place, int first, const float* values, int n) {
      using espalier::detail::model_part;
      float* to = espalier::detail::bias_at(weights, place);
      if (place.part != model_part::query_key_value && place.part != model_part::gate && place.part != model_part::up) {
        detail::upload_vector(to + first, values, n);
        return;
      }
      // The rank's, in runs.
      for (int i = 0, end = 0; i < n; i = end) {
        const int first_own = rows.own_output(place, first + i);
        for (end = i + 1; first_own >= 0 && end < n && rows.own_output(place, first + end) == first_own + end - i;)
          ++end;
        if (first_own >= 0) detail::upload_vector(to + first_own, values + i, end - i);
      }
    }
  };

  std::int64_t weights_taken_ = 0;
};

}  // namespace espalier::cuda
