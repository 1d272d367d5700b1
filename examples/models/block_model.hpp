// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/model/llama/block_draft_model.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/parallel_head_model.hpp"

namespace models {

//! A model that drafts all depths in one pass, of any kind that the library reads on the host: a model of
//! block_diffusion.
class block_model {
 public:
  using context_type = std::variant<espalier::block_draft_context, espalier::parallel_head_context>;
  struct request_type {
    context_type* context;
    std::span<const espalier::token_id> text;
    std::int32_t place;
  };

  static block_model load(const std::string& path, espalier::llama_backend& target) {
    if (espalier::draft_kind_of(path) == espalier::draft_kind::peagle)
      return block_model(espalier::parallel_head_model::load(path, target));
    return block_model(espalier::block_draft_model::load(path, target));
  }

  std::int32_t vocab_size() const {
    return std::visit([](const auto& model) { return model.vocab_size(); }, model_);
  }
  std::int32_t block_length() const {
    return std::visit([](const auto& model) { return model.block_length(); }, model_);
  }
  std::int32_t max_positions() const {
    return std::visit([](const auto& model) { return model.max_positions(); }, model_);
  }
  std::span<const espalier::token_id> tokens() const {
    return std::visit([](const auto& model) { return model.tokens(); }, model_);
  }
  context_type make_context() {
    return std::visit([](auto& model) -> context_type { return model.make_context(); }, model_);
  }

  void read(context_type& context, const espalier::llama_backend& target, std::span<const std::int32_t> rows,
            std::int32_t position) {
    visit([&](auto& model, auto& own) { model.read(own, target, rows, position); }, context);
  }

  void forward(std::span<const request_type> requests, std::int32_t length) {
    std::visit(
        [&](auto& model) {
          using model_type = std::remove_cvref_t<decltype(model)>;
          std::vector<typename model_type::request_type> asked;
          for (const request_type& r : requests)
            asked.push_back({&std::get<typename model_type::context_type>(*r.context), r.text, r.place});
          model.forward(asked, length);
        },
        model_);
  }

  espalier::vocab_rows<float> logits(std::int32_t place, std::int32_t length) const {
    return std::visit([&](const auto& model) { return model.logits(place, length); }, model_);
  }

  bool corrects() const {
    const auto* block = std::get_if<espalier::block_draft_model>(&model_);
    return block != nullptr && block->corrects();
  }
  void correct(std::int32_t place, espalier::tree_view tree, espalier::node_id node, std::span<float> row) {
    if (auto* block = std::get_if<espalier::block_draft_model>(&model_)) block->correct(place, tree, node, row);
  }

 private:
  template <class ModelT>
  explicit block_model(ModelT&& model) : model_(std::forward<ModelT>(model)) {}

  // Calls use() with the model and its own kind of context.
  template <class UseT>
  void visit(const UseT& use, context_type& context) {
    std::visit(
        [&](auto& model) {
          use(model, std::get<typename std::remove_cvref_t<decltype(model)>::context_type>(context));
        },
        model_);
  }

  std::variant<espalier::block_draft_model, espalier::parallel_head_model> model_;
};

}  // namespace models
