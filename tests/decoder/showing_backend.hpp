// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/concepts/backend.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "text_models.hpp"

namespace models {

using namespace espalier;

//! A backend whose hidden state of a row is the key of the text up to that row. It fails on one of its calls.
struct showing_backend {
  showing_backend(std::int32_t vocab, models::text_model model) : inner(vocab, model) {}

  text_backend<models::text_model> inner;
  std::vector<std::uint64_t> keys{};
  int calls = 0;
  int fail_at = -1;

  std::int32_t vocab_size() const { return inner.vocab_size(); }

  static std::uint64_t next(std::uint64_t key, token_id t) {
    return models::mixed(key ^ static_cast<std::uint64_t>(t));
  }

  logits_view forward(token_kv& kv, forward_batch_view batch) {
    const logits_view logits = inner.forward(kv, batch);
    keys.assign(static_cast<std::size_t>(batch.n_rows()), 0);
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        std::uint64_t key = 1;
        for (std::int32_t i = 0; i < s.prefix; ++i)
          key = next(key, kv.token(s.sequence, i));
        const auto mask = batch.mask_of(s, r);
        for (std::int32_t j = 0; j < 32 * s.mask_words; ++j) {
          if ((mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) != 0)
            key = next(key, kv.token(s.sequence, s.prefix + j));
        }
        keys[static_cast<std::size_t>(r)] = key;
      }
    }
    if (calls++ == fail_at) throw std::runtime_error("the backend failed");
    return logits;
  }

  std::uint64_t hidden(std::int32_t row) const { return keys[static_cast<std::size_t>(row)]; }

  static std::uint64_t key_of(std::span<const token_id> text) {
    std::uint64_t key = 1;
    for (const token_id t : text)
      key = next(key, t);
    return key;
  }
  static std::array<float, 2> state_of(std::uint64_t key) {
    return {static_cast<float>(key & 0xFFFFFF), static_cast<float>(key >> 40)};
  }

  // The hidden state is the key in two numbers.
  std::int32_t hidden_size() const { return 2; }
  std::span<const float> hidden_state(std::int32_t row) const {
    state = state_of(hidden(row));
    return state;
  }
  mutable std::array<float, 2> state{};
};
static_assert(detail::KeepsHiddenStates<showing_backend>);

}  // namespace models
