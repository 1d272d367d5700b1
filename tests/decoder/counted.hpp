// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "text_models.hpp"

// A text_backend that counts rows, those of committed text apart: of positions before the end of the text that is being
// written.
struct counted_backend {
  explicit counted_backend(std::int32_t vocab, models::text_model model) : inner(vocab, model) {}

  espalier::text_backend<models::text_model> inner;
  std::int32_t size = 0;  // tokens of the text
  int passes = 0, rows = 0, text_rows = 0, largest = 0;
  int fails_at = -1;  // a number of passes
  bool fails = false;

  void count(std::int32_t tokens) {
    size = tokens;
    rows = text_rows = largest = 0;
  }

  std::int32_t vocab_size() const { return inner.vocab_size(); }

  template <class KVStoreT>
  espalier::logits_view forward(KVStoreT& kv, espalier::forward_batch_view batch) {
    if (fails || passes++ == fails_at) throw std::runtime_error("the backend failed");
    rows += batch.n_rows();
    largest = std::max(largest, batch.n_rows());
    for (const std::int32_t position : batch.positions)
      text_rows += position < size ? 1 : 0;
    return inner.forward(kv, batch);
  }
};

// A store as a user may write one: it does not remember which tokens its rows are of.
struct plain_store {
  explicit plain_store(std::int32_t capacity, espalier::commit_mode mode = espalier::commit_mode::compact,
                       std::int32_t n_sequences = 1)
      : rows(capacity, mode, n_sequences) {}
  espalier::token_kv rows;

  std::int32_t size(std::int32_t s) const { return rows.size(s); }
  std::int32_t capacity() const { return rows.capacity(); }
  bool compacts() const { return rows.compacts(); }
  std::int32_t append(std::int32_t s, std::int32_t n) { return rows.append(s, n); }
  std::int32_t commit(std::int32_t s, std::span<const std::int32_t> kept) { return rows.commit(s, kept); }
  void truncate(std::int32_t s, std::int32_t n) { rows.truncate(s, n); }
  espalier::token_id& token(std::int32_t s, std::int32_t slot) { return rows.token(s, slot); }
};
static_assert(espalier::KVStore<plain_store> && !espalier::PrefixKVStore<plain_store>);

// Two models and their caches, for decoders that share them.
template <class KVStoreT = espalier::token_kv>
struct two_models {
  explicit two_models(models::text_model target_model = {.seed = 5},
                      espalier::commit_mode mode = espalier::commit_mode::compact,
                      espalier::commit_mode draft_mode = espalier::commit_mode::compact, std::int32_t n_sequences = 3)
      : kv(400, mode, n_sequences),
        draft_kv(400, draft_mode, n_sequences),
        target(11, target_model),
        draft(11, strayed(target_model)) {}

  static models::text_model strayed(models::text_model model) {
    model.noise = 0.5;
    return model;
  }

  // What is counted from here on are rows of a text of so many tokens.
  void count(std::size_t tokens) {
    target.count(static_cast<std::int32_t>(tokens));
    draft.count(static_cast<std::int32_t>(tokens));
  }

  auto drafter(std::int32_t sequence = 0) {
    return espalier::autoregressive<counted_backend&, KVStoreT&>(draft, draft_kv, {.temperature = 1}, sequence);
  }

  template <class PolicyT, class VerifierT>
  auto decoder(PolicyT policy, VerifierT verifier, espalier::decoder_options options = {}) {
    return espalier::make_decoder(drafter(options.sequence), std::move(policy), std::move(verifier), kv, target,
                                  std::move(options));
  }

  KVStoreT kv, draft_kv;
  counted_backend target, draft;
};

inline std::vector<espalier::token_id> copy(std::span<const espalier::token_id> tokens) {
  return {tokens.begin(), tokens.end()};
}

// Steps until a round has been committed, or the text has ended.
template <class DecoderT>
void step_round(DecoderT& decode) {
  while (decode.step() && decode.last_round().committed.empty()) {
  }
}

template <class DecoderT>
std::vector<espalier::token_id> run(DecoderT& decode) {
  while (decode.step()) {
  }
  return copy(decode.current().tokens());
}
