// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "batch_writer.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/model/llama/llama_backend.hpp"

//! Ways to run a backend that tests compare with one another.
namespace llama_driver {

using row_type = std::vector<float>;

//! Of any model, with recurrent layers or without.
inline espalier::recurrent_kv cache_for(const espalier::llama_backend& backend, int capacity, int n_sequences = 1,
                                        espalier::commit_mode mode = espalier::commit_mode::compact) {
  return espalier::host_cache(backend.config(), n_sequences, capacity, {.commit = mode});
}

inline std::vector<row_type> rows_of(espalier::logits_view logits) {
  std::vector<row_type> rows;
  for (std::int32_t r = 0; r < logits.n_rows; ++r)
    rows.emplace_back(logits.row(r).begin(), logits.row(r).end());
  return rows;
}

template <class KVStoreT>
void commit_first(KVStoreT& kv, int sequence, int n) {
  std::vector<std::int32_t> kept(static_cast<std::size_t>(n));
  std::iota(kept.begin(), kept.end(), 0);
  kv.commit(sequence, kept);
}

//! Plain decoding: one token a pass; the logits after each.
template <class BackendT, class KVStoreT>
std::vector<row_type> plainly(BackendT& backend, KVStoreT& kv, std::span<const espalier::token_id> tokens,
                              int sequence = 0) {
  std::vector<row_type> rows;
  for (const espalier::token_id token : tokens) {
    espalier::forward_batch batch;
    const int position = kv.size(sequence);
    kv.append(sequence, 1);
    batch.begin_sequence(sequence, position, 1);
    batch.add_row(token, position, 0, true);
    rows.push_back(rows_of(backend.forward(kv, batch.view())).front());
    commit_first(kv, sequence, 1);
  }
  return rows;
}

}  // namespace llama_driver
