// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "espalier/backend/checked_forward.hpp"
#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Brings a cache up to a committed text, leaving the last tokens of it pending.
//!
//! What is pending is always the text beyond kv.size(): the prompt at first, the last token between rounds, and the
//! accepted tokens that a truncating store dropped. All three are forwarded as one chain.
//!
//! Complexity  one pass for each `chunk` tokens; no allocation after reserve()
class prefill {
 public:
  //! Rows of one prefill pass at most.
  static constexpr std::int32_t chunk = 64;

  void reserve() {
    batch_.reserve(chunk, chunk);
    kept_.resize(chunk);
    std::iota(kept_.begin(), kept_.end(), 0);
  }

  //! [chunk] the numbers from 0 on: the rows of a pass.
  std::span<const std::int32_t> rows() const { return kept_; }

  //! With pending = 0 the last pass asks for the logits of the last n_outputs tokens, or of as many as there are or a pass
  //! takes, and they are returned. After each pass after_pass(first, n) hears which tokens it was over.
  //!
  //! Pre         kv.size(sequence) < text.size() where logits are wanted
  //! Post        text.size() - kv.size(sequence) <= pending
  //! Errors      input_error where the text does not fit the cache; what the backend throws, the cache then holding the
  //!             chunks that were finished, and scratch
  template <class BackendT, class KVStoreT, class AfterPassT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text, std::int32_t pending,
           const AfterPassT& after_pass, std::int32_t n_outputs = 1) {
    std::int32_t most = chunk;
    if constexpr (BoundedBackend<BackendT>) most = std::min<std::int32_t>(most, backend.max_rows());
    const std::int32_t goal = static_cast<std::int32_t>(text.size()) - pending;
    vocab_rows<logit_number<BackendT, KVStoreT>> logits;
    for (std::int32_t done = kv.size(sequence); done < goal;) {
      std::int32_t n = (std::min)(goal - done, most);
      // The last outputs belong to one pass.
      const std::int32_t rest = goal - done - n;
      if (pending == 0 && rest > 0 && rest < n_outputs) n = (std::max)(1, n - (n_outputs - rest));
      if (kv.append(sequence, n) < 0) {
        raise<input_error>("a text of ", text.size(), " tokens does not fit a cache of ", kv.capacity(), ".");
      }
      batch_.clear();
      batch_.begin_sequence(sequence, done, n);
      batch_.add_chain(text.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)), done,
                       pending == 0 && done + n == goal ? (std::min)(n, n_outputs) : 0);
      logits = checked_forward(backend, kv, batch_.view());
      after_pass(done, n);
      kv.commit(sequence, std::span<const std::int32_t>(kept_).first(static_cast<std::size_t>(n)));
      done += n;
    }
    return logits;
  }

  template <class BackendT, class KVStoreT>
  requires Backend<BackendT, KVStoreT> && KVStore<KVStoreT>
  auto run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, std::span<const token_id> text,
           std::int32_t pending) {
    return run(backend, kv, sequence, text, pending, [](std::int32_t, std::int32_t) {});
  }

 private:
  forward_batch batch_;
  std::vector<std::int32_t> kept_;
};

}  // namespace espalier
