// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "text_models.hpp"

// A model for block_diffusion to whom the hidden state of a token is the token: row i of a block holds the logits that
// a text_model with seed + i has after the text.
struct states_model {
  std::int32_t vocab = 5;
  std::int32_t length = 4;
  std::int32_t positions = 100;
  models::text_model law{};
  std::vector<espalier::token_id> few{};  // the tokens that have a column; empty: all
  int passes = 0;
  int fail_at = -1;
  std::vector<espalier::token_id> text{};
  std::vector<std::vector<float>> blocks{};  // by place

  struct context_type {
    std::vector<espalier::token_id> tokens;
  };

  std::int32_t vocab_size() const { return vocab; }
  std::int32_t block_length() const { return length; }
  std::int32_t max_positions() const { return positions; }
  std::span<const espalier::token_id> tokens() const { return few; }
  std::int32_t columns() const { return few.empty() ? vocab : static_cast<std::int32_t>(few.size()); }
  context_type make_context() const {
    return {std::vector<espalier::token_id>(static_cast<std::size_t>(positions), -1)};
  }

  template <class BackendT>
  requires requires(const BackendT& backend) { backend.hidden(0, 0); }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, std::int32_t position) {
    for (const std::int32_t row : rows) {
      if (position < positions)
        context.tokens[static_cast<std::size_t>(position)] = static_cast<espalier::token_id>(backend.hidden(0, row)[0]);
      ++position;
    }
  }

  void marginal(std::span<const espalier::token_id> context, std::int32_t place, std::span<float> row) const {
    models::text_model model = law;
    model.seed += static_cast<std::uint64_t>(place);
    model(context, row);
  }
  std::vector<float> marginal(std::span<const espalier::token_id> context, std::int32_t place) const {
    std::vector<float> row(static_cast<std::size_t>(vocab));
    marginal(context, place, row);
    return row;
  }

  struct request_type {
    context_type* context;
    std::span<const espalier::token_id> text;
    std::int32_t place = 0;
  };

  void forward(std::span<const request_type> requests, std::int32_t n) {
    if (passes++ == fail_at) throw std::runtime_error("the block model failed");
    for (const request_type& r : requests) {
      const auto position = static_cast<std::ptrdiff_t>(r.text.size()) - 1;
      text.assign(r.context->tokens.begin(), r.context->tokens.begin() + position);
      text.push_back(r.text.back());
      const auto size = static_cast<std::size_t>(columns()), place = static_cast<std::size_t>(r.place);
      if (blocks.size() <= place) blocks.resize(place + 1);
      blocks[place].resize(static_cast<std::size_t>(n) * size);
      for (std::int32_t i = 0; i < n; ++i) {
        const std::span<float> row = std::span<float>(blocks[place]).subspan(static_cast<std::size_t>(i) * size, size);
        if (few.empty()) {
          marginal(text, i, row);
          continue;
        }
        const std::vector<float> wide = marginal(text, i);
        for (std::size_t column = 0; column < size; ++column)
          row[column] = wide[static_cast<std::size_t>(few[column])];
      }
      // It may leave anything behind from here on.
      std::fill(r.context->tokens.begin() + position, r.context->tokens.end(), -7);
    }
  }
  espalier::vocab_rows<float> logits(std::int32_t place, std::int32_t n) const {
    return {blocks[static_cast<std::size_t>(place)].data(), n, columns()};
  }
};

// A target whose hidden states are its tokens.
struct states_target : models::probe_backend {
  using probe_backend::probe_backend;
  std::vector<float> states{};

  espalier::logits_view forward(espalier::token_kv& kv, espalier::forward_batch_view batch) {
    states.assign(batch.tokens.begin(), batch.tokens.end());
    return probe_backend::forward(kv, batch);
  }
  std::span<const float> hidden(int, int row) const {
    return std::span<const float>(states).subspan(static_cast<std::size_t>(row), 1);
  }
};
