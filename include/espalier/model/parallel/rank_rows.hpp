// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/parallel/parallel_backend.cpp
#pragma once

#include <algorithm>

#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::detail {

// The rows of a model's matrices that a rank has, and the inputs of matrices that are divided by inputs.
class rank_rows {
 public:
  rank_rows(const model_config& config, const rank_part& part, rank_split split)
      : config_(config), part_(part), split_(split) {}

  // True if the rank has all rows of the matrix, but only its own inputs of each row.
  bool is_cut(part_place place) const {
    return split_ == rank_split::sums && (place.part == model_part::attention_out || place.part == model_part::down);
  }
  rank_part::range inputs_of(part_place place) const {
    return place.part == model_part::down ? inner_of(place) : part_.queries(config_);
  }
  int inputs_in_file(part_place place) const { return size_of(config_, place).inputs; }

  // Returns which of a vector's numbers the rank holds: all, but only the sinks of its own heads.
  column_range numbers_of(part_place place, int n) const {
    if (place.part != model_part::sinks) return {0, n};
    const rank_part::range own = part_.queries(config_);
    return {own.begin / config_.head_dim, own.end / config_.head_dim};
  }

  // Returns how many outputs and inputs of a matrix the rank holds. n_biases() returns how many of its biases the rank
  // holds, which is all if it is the `down` of an expert and divided by inputs.
  matrix_size held(part_place place) const {
    const matrix_size whole = size_of(config_, place);
    return is_cut(place) ? matrix_size{whole.outputs, inputs_of(place).size()}
                         : matrix_size{n_biases(place), whole.inputs};
  }
  int n_biases(part_place place) const {
    switch (place.part) {
      case model_part::query_key_value:
        return part_.queries(config_).size() + 2 * part_.kv_size(config_);
      case model_part::attention_out:
      case model_part::down:
        return has_all_biases(place) ? config_.hidden_size : part_.hidden.size();
      case model_part::gate:
      case model_part::up:
        return inner_of(place).size();
      case model_part::router:
        return config_.mixture.experts;
      default:
        return part_.vocabulary.size();
    }
  }

  // Returns the inputs of a row that a loader gets: all of them or, where the matrix is cut, the rank's, widened to
  // whole blocks. A block is one of the row's type, or 32 inputs if that is more: rows are rounded by blocks of 32.
  column_range inputs_to_read(part_place place, weight_type type) const {
    const int all = inputs_in_file(place), block = (std::max)(32, block_weights(type));
    if (!is_cut(place)) return {0, all};
    const rank_part::range own = inputs_of(place);
    if (own.size() == 0) return {};
    return {own.begin / block * block, (std::min)(all, (own.end + block - 1) / block * block)};
  }

  // Returns the index of an output, and of its bias, among the rank's own; -1 if the rank does not have it.
  int own_output(part_place place, int row) const {
    const auto within = [&](rank_part::range range) { return range.has(row) ? row - range.begin : -1; };
    switch (place.part) {
      case model_part::query_key_value:
        return own_projection(row);
      case model_part::attention_out:
      case model_part::down:
        return has_all_biases(place) ? row : within(part_.hidden);
      case model_part::gate:
      case model_part::up:
        return within(inner_of(place));
      case model_part::router:
        return row;
      default:
        return within(part_.vocabulary);
    }
  }
  // Returns the index of a row of the matrix among the rank's own; -1 if the rank does not have it.
  int own_row(part_place place, int row) const { return is_cut(place) ? row : own_output(place, row); }

 private:
  rank_part::range inner_of(part_place place) const { return place.expert >= 0 ? part_.expert : part_.intermediate; }
  bool has_all_biases(part_place place) const { return place.expert >= 0 && is_cut(place); }

  int own_projection(int row) const {
    const rank_part::range queries = part_.queries(config_);
    const int q = config_.query_size(), kv = config_.kv_size(), own_kv = part_.kv_size(config_);
    if (row < q) return queries.has(row) ? row - queries.begin : -1;
    const int at = (row - q) % kv - part_.kv_heads.begin * config_.head_dim;
    return at >= 0 && at < own_kv ? queries.size() + (row - q) / kv * own_kv + at : -1;
  }

  const model_config& config_;
  const rank_part& part_;
  rank_split split_;
};

}  // namespace espalier::detail
