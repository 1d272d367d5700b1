// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_split.hpp"

namespace espalier::detail {

// Which rows of a model's matrices a rank has, and which inputs of those that are divided by inputs.
class rank_rows {
 public:
  rank_rows(const model_config& config, const rank_part& part, rank_split split)
      : config_(config), part_(part), split_(split) {}

  // Whether the rank has all rows of the matrix, and of each row its inputs alone.
  bool is_cut(part_place place) const {
    return split_ == rank_split::sums && (place.part == model_part::attention_out || place.part == model_part::down);
  }
  rank_part::range inputs_of(part_place place) const {
    return place.part == model_part::down ? part_.intermediate : part_.queries(config_);
  }
  int inputs_in_file(part_place place) const {
    if (place.part == model_part::down) return config_.intermediate_size;
    return place.part == model_part::attention_out ? config_.query_size() : config_.hidden_size;
  }

  // Where the rank has an output of a matrix, or its bias; -1 where it has not.
  int own_output(part_place place, int row) const {
    const auto within = [&](rank_part::range range) { return range.has(row) ? row - range.begin : -1; };
    switch (place.part) {
      case model_part::query_key_value:
        return own_projection(row);
      case model_part::attention_out:
      case model_part::down:
        return within(part_.hidden);
      case model_part::gate:
      case model_part::up:
        return within(part_.intermediate);
      default:
        return within(part_.vocabulary);
    }
  }
  // Where it has a row of the matrix.
  int own_row(part_place place, int row) const { return is_cut(place) ? row : own_output(place, row); }

 private:
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
