// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/kv_store/sink_window.hpp"

namespace espalier {
class draft_head_model;
class llama_backend;
}  // namespace espalier

namespace models {
class block_model;
}

namespace generate {

//! A model whose passes are counted at given prices.
template <class ModelT>
struct priced_model {
  ModelT* model;
  const espalier::cost_curve* prices = nullptr;  //!< seconds of its passes; null: they are not counted
  std::int64_t passes = 0;                       //!< passes that were counted
  double seconds = 0;                            //!< what they have cost

  void count(std::int32_t rows, std::int32_t context) {
    if (prices == nullptr) return;
    ++passes;
    seconds += (*prices)(rows, context);
  }
};

//! The key_turner of a transformer on the host, for caches that are compiled without the transformer's code.
class host_turner {
 public:
  explicit host_turner(const espalier::llama_backend& model);

  void operator()(int layer, std::span<float> key, int n) { turn_(turner_.get(), layer, key, n); }

 private:
  std::unique_ptr<void, void (*)(void*)> turner_;
  void (*turn_)(void*, int, std::span<float>, int);
};

using host_window_kv = espalier::sink_window_kv<host_turner>;

//! The Backend of a transformer on the host, for decoders that are compiled without the transformer's code. Only
//! host_model.cpp has that code, which must be compiled alike in all of a program.
class host_model {
 public:
  explicit host_model(priced_model<espalier::llama_backend>& model) : model_(&model) {}

  std::int32_t vocab_size() const;
  std::span<const espalier::token_id> tokens() const;
  std::int32_t max_rows() const;
  std::int32_t max_positions() const;
  espalier::vocab_rows<float> forward(espalier::recurrent_kv& kv, const espalier::forward_batch_view& batch);
  espalier::vocab_rows<float> forward(host_window_kv& kv, const espalier::forward_batch_view& batch);
  std::int32_t hidden_size() const;
  std::span<const float> hidden_state(std::int32_t row) const;

 private:
  friend class host_block;
  friend class host_head;

  priced_model<espalier::llama_backend>* model_;
};

//! The model of block_diffusion that drafts on the host, likewise.
class host_block {
 public:
  using context_type = std::unique_ptr<void, void (*)(void*)>;
  struct request_type {
    context_type* context;
    std::span<const espalier::token_id> text;
    std::int32_t place;
  };

  explicit host_block(priced_model<models::block_model>& model) : model_(&model) {}

  std::int32_t vocab_size() const;
  std::int32_t block_length() const;
  std::int32_t max_positions() const;
  context_type make_context() const;
  void read(context_type& context, const host_model& target, std::span<const std::int32_t> rows, std::int32_t position);
  void forward(std::span<const request_type> requests, std::int32_t length);
  espalier::vocab_rows<float> logits(std::int32_t place, std::int32_t length) const;
  std::span<const espalier::token_id> tokens() const;
  bool corrects() const;
  void correct(std::int32_t place, espalier::tree_view tree, espalier::node_id node, std::span<float> row);

 private:
  priced_model<models::block_model>* model_;
};

//! The model of feature_steps that is a draft head on the host, likewise.
class host_head {
 public:
  using context_type = std::unique_ptr<void, void (*)(void*)>;

  explicit host_head(priced_model<espalier::draft_head_model>& model) : model_(&model) {}

  std::int32_t vocab_size() const;
  std::int32_t max_positions() const;
  std::int32_t max_rows() const;
  std::span<const espalier::token_id> tokens() const;
  context_type make_context() const;
  void reserve(context_type& context, std::int32_t nodes);
  void read(context_type& context, const host_model& target, std::span<const std::int32_t> rows, std::int32_t position);
  espalier::vocab_rows<float> forward(const espalier::feature_pass<context_type>& pass);

 private:
  priced_model<espalier::draft_head_model>* model_;
};

}  // namespace generate
