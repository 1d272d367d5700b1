// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/parallel_head_model.cuh"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_kind.hpp"

namespace models {

//! A model that drafts all depths in one pass, of any kind that the library reads on the device: a model of
//! cuda::block_diffusion, as block_model is on the host.
template <class NumberT>
class device_block_model {
  using block_type = espalier::cuda::block_draft_model<NumberT>;
  using head_type = espalier::cuda::parallel_head_model<NumberT>;

 public:
  using context_type = std::variant<typename block_type::context_type, typename head_type::context_type>;

  //! Loads a model for one text whose trees have paths of at most max_depth nodes.
  template <class TargetT>
  static device_block_model load(const std::string& path, const TargetT& target, std::int32_t max_depth) {
    if (espalier::draft_kind_of(path) != espalier::draft_kind::peagle)
      return device_block_model(block_type::load(path, target));
    const std::int32_t length = espalier::draft_head_config::load(path).block_length;
    return device_block_model(head_type::load(path, target, (std::max)(length, max_depth) + length));
  }

  std::int32_t vocab_size() const {
    return std::visit([](const auto& model) { return model.vocab_size(); }, model_);
  }
  std::int32_t columns() const {
    return std::visit([](const auto& model) { return model.columns(); }, model_);
  }
  const espalier::token_id* tokens() const {
    return std::visit([](const auto& model) { return model.tokens(); }, model_);
  }
  std::int32_t block_length() const {
    return std::visit([](const auto& model) { return model.block_length(); }, model_);
  }
  std::int32_t max_positions() const {
    return std::visit([](const auto& model) { return model.max_positions(); }, model_);
  }
  context_type make_context(std::int32_t max_texts, std::int32_t n_behind = 0) const {
    if (const auto* head = std::get_if<head_type>(&model_)) return head->make_context(max_texts, n_behind);
    return std::get<block_type>(model_).make_context(max_texts);
  }

  template <class PrefillT>
  void begin(PrefillT& prefill, context_type& context, std::int32_t place, espalier::cuda::text_view text,
             std::int32_t n_tokens, std::int32_t n_known, cudaStream_t stream) {
    auto* head = std::get_if<head_type>(&model_);
    if (head != nullptr) head->begin(prefill, of_head(context), place, text, n_tokens, n_known, stream);
  }

  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const espalier::cuda::state_rows& rows,
            cudaStream_t stream) {
    if (auto* head = std::get_if<head_type>(&model_)) return head->read(of_head(context), backend, rows, stream);
    block().read(of_block(context), backend, rows, stream);
  }

  espalier::vocab_rows<float> forward(context_type& context, const espalier::cuda::text_batch& texts,
                                      std::int32_t length, cudaStream_t stream) {
    if (auto* head = std::get_if<head_type>(&model_)) return head->forward(of_head(context), texts, length, stream);
    return block().forward(of_block(context), texts, length, stream);
  }

  bool corrects() const { return std::holds_alternative<block_type>(model_) && block().corrects(); }
  void reserve_corrections(context_type& context, std::int32_t max_nodes, std::int32_t n_texts) {
    block().reserve_corrections(of_block(context), max_nodes, n_texts);
  }
  espalier::vocab_rows<float> corrected(const context_type& context, const espalier::cuda::text_batch& texts,
                                        espalier::cuda::node_list nodes, cudaStream_t stream) const {
    return block().corrected(of_block(context), texts, nodes, stream);
  }

 private:
  explicit device_block_model(block_type model) : model_(std::move(model)) {}
  explicit device_block_model(head_type model) : model_(std::move(model)) {}

  block_type& block() { return std::get<block_type>(model_); }
  const block_type& block() const { return std::get<block_type>(model_); }
  static auto& of_block(auto& context) { return std::get<0>(context); }
  static auto& of_head(context_type& context) { return std::get<1>(context); }

  std::variant<block_type, head_type> model_;
};

}  // namespace models
