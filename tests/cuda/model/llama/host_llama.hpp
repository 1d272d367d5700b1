// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"

//! The host's transformer and its cache behind a wall: nvcc does not compile its vectors.
class host_llama {
 public:
  using row_type = std::vector<float>;

  host_llama(const std::string& folder, int n_sequences, int capacity);
  ~host_llama();

  const espalier::model_config& config() const;
  //! Appends the rows of each sequence to its cache. Logits of the rows asked for.
  std::vector<row_type> forward(const espalier::forward_batch_view& batch);
  //! Commits the first n rows of the last batch.
  void commit_first(int sequence, int n);
  //! The residual stream after a layer, for a row of the last batch.
  row_type hidden(int layer, int row) const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

//! Heads of this many dimensions, and sizes that no kernel likes.
espalier::model_config wide_llama(int head_dim);

//! Writes config.json and model.safetensors of a Llama with random weights; of a Mistral where config.window is not 0,
//! whose layers all see such a window.
void write_random_llama(const std::string& folder, const espalier::model_config& config, unsigned seed);

//! Writes config.json and model.safetensors of a gpt-oss with random weights, whose experts are large enough for ranks
//! to have a part of each.
void write_random_gpt_oss(const std::string& folder, unsigned seed);

//! Writes config.json and model.safetensors of a hybrid of three layers, one with attention, with random weights; with
//! noise, of one that often agrees with the hybrid without. Its states have this many numbers a channel.
void write_random_hybrid(const std::string& folder, espalier::recurrence_kind kind, float noise, int state = 24);
