// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/drafter/feature_steps.hpp"

// A model for feature_steps whose rows depend on every token that a row sees, and on the state that each of them was
// read with: a cache row is the pair of both. A wrong slot, mask, position or state changes the row.
template <class NumberT = float>
struct feature_model {
  struct pair_type {
    espalier::token_id token = -1;
    float state = 0;
  };
  struct context_type {
    std::vector<float> states;      // by position, the target's
    std::vector<float> drafted;     // by number
    std::vector<pair_type> cached;  // by slot
  };

  std::int32_t vocab = 5;
  std::vector<espalier::token_id> few{};  // the tokens that have a column; empty: all
  std::int32_t positions = 100;
  std::uint64_t seed = 1;
  int passes = 0;
  int fail_at = -1;
  int most_rows = 320;
  std::vector<NumberT> logits{};

  std::int32_t vocab_size() const { return vocab; }
  std::int32_t max_positions() const { return positions; }
  std::int32_t max_rows() const { return most_rows; }
  std::span<const espalier::token_id> tokens() const { return few; }
  context_type make_context() const { return {std::vector<float>(static_cast<std::size_t>(positions)), {}, {}}; }
  void reserve(context_type& context, std::int32_t nodes) const {
    context.drafted.resize(static_cast<std::size_t>(nodes) + 1);
    context.cached.assign(static_cast<std::size_t>(positions + nodes), {});
  }

  template <class BackendT>
  requires requires(const BackendT& backend) { backend.hidden(0, 0); }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, std::int32_t position) {
    for (const std::int32_t row : rows)
      context.states[static_cast<std::size_t>(position++)] = backend.hidden(0, row)[0];
  }

  // The state of a row, made of what it reads.
  static float state_after(pair_type read) {
    return std::fmod(read.state * 3 + static_cast<float>(read.token) + 0.25F, 17.0F);
  }

  // The logits after these pairs: of each column.
  std::vector<NumberT> row_after(const std::vector<pair_type>& seen) const {
    std::uint64_t hash = seed;
    const auto mix = [&](std::uint64_t x) { hash = (hash ^ x) * 0x9E3779B97F4A7C15U, hash ^= hash >> 29U; };
    for (const pair_type& p : seen)
      mix(static_cast<std::uint64_t>(p.token + 7)),
          mix(static_cast<std::uint64_t>(static_cast<std::int64_t>(p.state * 64)));
    std::vector<NumberT> row(few.empty() ? static_cast<std::size_t>(vocab) : few.size());
    for (NumberT& x : row)
      mix(1), x = static_cast<NumberT>(hash >> 40U) / NumberT(1 << 23) - 1;
    return row;
  }

  // The row of logits over the vocabulary after a text, whose tokens but the last have these states, and after a path.
  std::vector<NumberT> expected(std::span<const espalier::token_id> text, std::span<const float> states,
                                std::span<const espalier::token_id> path) const {
    std::vector<pair_type> seen;
    if (text.size() == 1) seen.push_back({text[0], 0});
    for (std::size_t i = 1; i < text.size(); ++i)
      seen.push_back({text[i], states[i - 1]});
    for (const espalier::token_id t : path)
      seen.push_back({t, state_after(seen.back())});
    const std::vector<NumberT> row = row_after(seen);
    if (few.empty()) return row;
    std::vector<NumberT> wide(static_cast<std::size_t>(vocab), -std::numeric_limits<NumberT>::infinity());
    for (std::size_t i = 0; i < few.size(); ++i)
      wide[static_cast<std::size_t>(few[i])] = row[i];
    return wide;
  }

  espalier::vocab_rows<NumberT> forward(const espalier::feature_pass<context_type>& pass) {
    if (passes++ == fail_at) throw std::runtime_error("the draft head failed");
    const espalier::forward_batch_view batch = pass.batch.view();
    logits.clear();
    for (const espalier::batch_sequence& s : batch.sequences) {
      context_type& context = *pass.contexts[static_cast<std::size_t>(s.sequence)];
      for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
        const auto r = static_cast<std::size_t>(row);
        const auto [reads, writes] = pass.states[r];
        const std::int32_t position = batch.positions[r];
        pair_type read{batch.tokens[r], 0};
        if (reads >= 0) read.state = context.drafted[static_cast<std::size_t>(reads)];
        if (reads < 0 && position > 0) read.state = context.states[static_cast<std::size_t>(position) - 1];
        context.cached[static_cast<std::size_t>(batch.slots[r])] = read;
        if (writes >= 0) context.drafted[static_cast<std::size_t>(writes)] = state_after(read);
        if (std::find(batch.outputs.begin(), batch.outputs.end(), row) == batch.outputs.end()) continue;
        std::vector<pair_type> seen(context.cached.begin(), context.cached.begin() + s.prefix);
        const std::uint32_t* mask = batch.mask.data() + s.mask_begin + std::ptrdiff_t{row - s.row_begin} * s.mask_words;
        for (std::int32_t column = 0; column < 32 * s.mask_words; ++column) {
          if ((mask[column / 32] >> (column % 32) & 1U) != 0)
            seen.push_back(context.cached[static_cast<std::size_t>(s.prefix + column)]);
        }
        const std::vector<NumberT> made = row_after(seen);
        logits.insert(logits.end(), made.begin(), made.end());
      }
    }
    const auto columns = static_cast<std::int32_t>(few.empty() ? static_cast<std::size_t>(vocab) : few.size());
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), columns};
  }
};
