// SPDX-License-Identifier: BSL-1.0
#include "host_model.hpp"

#include <vector>

#include "../models/block_model.hpp"
#include "espalier/model/llama/draft_head_model.hpp"
#include "espalier/model/llama/key_turner.hpp"
#include "espalier/model/llama/llama_backend.hpp"

namespace generate {

namespace {

using block_context = models::block_model::context_type;

block_context& held(const host_block::context_type& context) {
  return *static_cast<block_context*>(context.get());
}

using head_context = espalier::draft_head_model::context_type;

head_context& head_held(const host_head::context_type& context) {
  return *static_cast<head_context*>(context.get());
}

// A feature_pass whose contexts are those of the head itself.
struct head_pass {
  const espalier::forward_batch& batch;
  std::vector<head_context*> contexts;
  std::span<const espalier::feature_pass<host_head::context_type>::row_states> states;
};

}  // namespace

host_turner::host_turner(const espalier::llama_backend& model)
    : turner_(new espalier::key_turner(model.config(), model.max_positions()),
              [](void* turner) { delete static_cast<espalier::key_turner*>(turner); }),
      turn_([](void* turner, int layer, std::span<float> key, int n) {
        (*static_cast<espalier::key_turner*>(turner))(layer, key, n);
      }) {}

std::int32_t host_model::vocab_size() const {
  return model_->model->vocab_size();
}

std::span<const espalier::token_id> host_model::tokens() const {
  return model_->model->tokens();
}

std::int32_t host_model::max_rows() const {
  return model_->model->max_rows();
}

std::int32_t host_model::max_positions() const {
  return model_->model->max_positions();
}

espalier::vocab_rows<float> host_model::forward(espalier::recurrent_kv& kv, const espalier::forward_batch_view& batch) {
  // A text has one sequence.
  model_->count(batch.n_rows(), batch.sequences.front().prefix);
  return model_->model->forward(kv, batch);
}

espalier::vocab_rows<float> host_model::forward(host_window_kv& kv, const espalier::forward_batch_view& batch) {
  model_->count(batch.n_rows(), batch.sequences.front().prefix);
  return model_->model->forward(kv, batch);
}

std::int32_t host_model::hidden_size() const {
  return model_->model->hidden_size();
}

std::span<const float> host_model::hidden_state(std::int32_t row) const {
  return model_->model->hidden_state(row);
}

std::int32_t host_block::vocab_size() const {
  return model_->model->vocab_size();
}

std::int32_t host_block::block_length() const {
  return model_->model->block_length();
}

std::int32_t host_block::max_positions() const {
  return model_->model->max_positions();
}

host_block::context_type host_block::make_context() const {
  return {new block_context(model_->model->make_context()),
          [](void* context) { delete static_cast<block_context*>(context); }};
}

void host_block::read(context_type& context, const host_model& target, std::span<const std::int32_t> rows,
                      std::int32_t position) {
  model_->model->read(held(context), *target.model_->model, rows, position);
}

void host_block::forward(std::span<const request_type> requests, std::int32_t length) {
  model_->count(static_cast<std::int32_t>(requests.size()) * length,
                static_cast<std::int32_t>(requests.front().text.size()) - 1);
  std::vector<models::block_model::request_type> asked;
  for (const request_type& r : requests)
    asked.push_back({&held(*r.context), r.text, r.place});
  model_->model->forward(asked, length);
}

espalier::vocab_rows<float> host_block::logits(std::int32_t place, std::int32_t length) const {
  return model_->model->logits(place, length);
}

std::span<const espalier::token_id> host_block::tokens() const {
  return model_->model->tokens();
}

bool host_block::corrects() const {
  return model_->model->corrects();
}

void host_block::correct(std::int32_t place, espalier::tree_view tree, espalier::node_id node, std::span<float> row) {
  model_->model->correct(place, tree, node, row);
}

std::int32_t host_head::vocab_size() const {
  return model_->model->vocab_size();
}

std::int32_t host_head::max_positions() const {
  return model_->model->max_positions();
}

std::int32_t host_head::max_rows() const {
  return model_->model->max_rows();
}

std::span<const espalier::token_id> host_head::tokens() const {
  return model_->model->tokens();
}

host_head::context_type host_head::make_context() const {
  return {new head_context(model_->model->make_context()),
          [](void* context) { delete static_cast<head_context*>(context); }};
}

void host_head::reserve(context_type& context, std::int32_t nodes) {
  model_->model->reserve(head_held(context), nodes);
}

void host_head::read(context_type& context, const host_model& target, std::span<const std::int32_t> rows,
                     std::int32_t position) {
  model_->model->read(head_held(context), *target.model_->model, rows, position);
}

espalier::vocab_rows<float> host_head::forward(const espalier::feature_pass<context_type>& pass) {
  const espalier::forward_batch_view rows = pass.batch.view();
  model_->count(rows.n_rows(), rows.sequences.front().prefix);
  head_pass own{pass.batch, {}, pass.states};
  for (const context_type* context : pass.contexts)
    own.contexts.push_back(&head_held(*context));
  return model_->model->forward(own);
}

}  // namespace generate
