// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/forward/checked_forward.hpp"

namespace espalier {

//! Brings a cache up to a committed text, leaving the last tokens of it pending.
//!
//! What is pending is always the text beyond kv.size(): the prompt at first, the last token between rounds, and the
//! accepted tokens that a truncating store dropped. All three are forwarded as one chain.
//!
//! Complexity  one pass for each chunk of tokens; no allocation after reserve()
class prefill {
 public:
  //! Rows of one pass at most, where nothing else is said.
  static constexpr std::int32_t default_chunk = 64;

  explicit prefill(std::int32_t chunk = default_chunk) { reserve(chunk); }

  void reserve(std::int32_t chunk) {
    batch_.reserve(chunk, chunk);
    kept_.resize(static_cast<std::size_t>(chunk));
    std::iota(kept_.begin(), kept_.end(), 0);
  }

  //! [chunk] the numbers from 0 on: the rows of a pass.
  std::span<const std::int32_t> rows() const { return kept_; }

  //! One pass over the next n tokens, or as many as a pass takes; gives the logits of the last n_outputs of them.
  //! before_commit(first, n) hears which tokens it was over.
  //!
  //! Pre         kv.size(sequence) + n <= text.size()
  //! Errors      input_error where the text does not fit the cache; what the backend throws, the cache then holding
  //!             scratch
  template <class BackendT, class KVStoreT, class BeforeCommitT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto pass(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text, std::int32_t n,
            std::int32_t n_outputs, const BeforeCommitT& before_commit) {
    const std::int32_t done = kv.size(sequence);
    n = (std::min)(n, most_rows(backend));
    if (kv.append(sequence, n) < 0)
      raise<input_error>("a text of ", text.size(), " tokens does not fit a cache of ", kv.capacity(),
                         ", or its pages are used up.");
    batch_.clear();
    batch_.begin_sequence(sequence, done, n);
    batch_.add_chain(text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)), done,
                     (std::min)(n, n_outputs));
    const auto logits = checked_forward(backend, kv, batch_.view());
    before_commit(done, n);
    kv.commit(sequence, std::span<const std::int32_t>(kept_).first(static_cast<std::size_t>(n)));
    if constexpr (PrefixKVStore<KVStoreT>)
      kv.remember(sequence, done, text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)));
    return logits;
  }

  //! Passes until the cache holds the whole text. The logits are those of its last n_outputs tokens, or of as many as
  //! there are or a pass takes; after_pass(first, n) hears which tokens each pass was over.
  //!
  //! Errors      as pass(); the chunks that were finished stay
  template <class BackendT, class KVStoreT, class AfterPassT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text,
           std::int32_t n_outputs, const AfterPassT& after_pass) {
    const std::int32_t most = most_rows(backend);
    for (;;) {
      const std::int32_t left = static_cast<std::int32_t>(text.size()) - kv.size(sequence);
      if (left <= 0) return vocab_rows<logit_number<BackendT, KVStoreT>>{};
      if (left <= most) return pass(backend, kv, sequence, text, left, n_outputs, after_pass);
      // The last outputs belong to one pass.
      const std::int32_t rest = left - most;
      const std::int32_t n = rest < n_outputs ? (std::max)(std::int32_t{1}, most - (n_outputs - rest)) : most;
      pass(backend, kv, sequence, text, n, 0, after_pass);
    }
  }

 private:
  template <class BackendT>
  std::int32_t most_rows(const BackendT& backend) const {
    const auto chunk = static_cast<std::int32_t>(kept_.size());
    if constexpr (BoundedBackend<BackendT>) return std::min<std::int32_t>(chunk, backend.max_rows());
    return chunk;
  }

  forward_batch batch_;
  std::vector<std::int32_t> kept_;
};

}  // namespace espalier
