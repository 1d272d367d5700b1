// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "../../examples/generate/host_model.hpp"
#include "../../examples/generate/priced_models.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "model_set.hpp"
#include "price_table.hpp"

namespace bench {

using round_watcher = std::function<void(const espalier::round_record&)>;

//! The text of one method after one prompt, and the statistics of writing it.
struct written_text {
  std::vector<espalier::token_id> tokens;
  espalier::statistics stats;
};

//! The way in which a text is written.
struct text_options {
  int max_tokens = 256;
  espalier::decoder_options decoding{};
  espalier::commit_mode commit = espalier::commit_mode::compact;
};

//! Decodes with any drafter, policy and verifier, and the target of a folder of models; no model has seen the prompt
//! before. With a table of prices, the seconds of statistics and of observed rounds are those that passes cost by the
//! table; without one they are the clock's.
class text_writer {
 public:
  explicit text_writer(models::model_set& models, const models::price_table* price = nullptr)
      : passes_(models, price),
        compacting_(models.make_cache(models.target)),
        truncating_(models.make_cache(models.target, espalier::commit_mode::truncate)),
        draft_kv_(models.make_cache(models.draft_model())) {}
  text_writer(const text_writer&) = delete;
  text_writer& operator=(const text_writer&) = delete;

  //! The autoregressive draft; all drafts that this makes share one cache.
  auto draft(espalier::sampling_options sampling = {.temperature = 1.0F}) {
    return espalier::autoregressive(generate::host_model(passes_.draft), draft_kv_, sampling);
  }

  //! The autoregressive draft over a cache of its own that keeps the first tokens and a window of the last ones.
  auto draft(const espalier::sink_window_options& window) {
    const espalier::llama_backend& model = *passes_.draft.model;
    return espalier::autoregressive(generate::host_model(passes_.draft),
                                    generate::host_window_kv(model.config().n_layers, model.config().kv_size(), 1,
                                                             window, generate::host_turner(model)),
                                    {.temperature = 1.0F});
  }

  //! The block draft.
  //!
  //! Pre         the folder has one
  auto block() { return espalier::block_diffusion(generate::host_block(passes_.block)); }

  //! Writes max_tokens tokens, also past an end of text, and calls the observer for each round.
  template <class DrafterT, class PolicyT, class VerifierT, class ObserverT>
  written_text write(DrafterT&& drafter, PolicyT&& policy, VerifierT&& verifier,
                     std::span<const espalier::token_id> prompt, const text_options& how, ObserverT&& observer) {
    auto& kv = how.commit == espalier::commit_mode::compact ? compacting_ : truncating_;
    auto decode = espalier::make_decoder(std::forward<DrafterT>(drafter), std::forward<PolicyT>(policy),
                                         std::forward<VerifierT>(verifier), kv, generate::host_model(passes_.target),
                                         how.decoding);
    // A decoder would use rows of the prompt that the cache still holds; here each method must read the whole prompt.
    kv.truncate(0, 0);
    draft_kv_.truncate(0, 0);
    written_text result;
    const auto observe = [&](const espalier::round_record& round) {
      const espalier::round_record seen = passes_.priced(round);
      result.stats(seen);
      observer(seen);
    };
    const auto tokens = decode.generate(prompt, {.max_tokens = how.max_tokens}, observe);
    result.tokens.assign(tokens.begin(), tokens.end());
    return result;
  }

  template <class DrafterT, class PolicyT, class VerifierT>
  written_text write(DrafterT&& drafter, PolicyT&& policy, VerifierT&& verifier,
                     std::span<const espalier::token_id> prompt, const text_options& how) {
    const auto nobody = [](const espalier::round_record&) {};
    return write(std::forward<DrafterT>(drafter), std::forward<PolicyT>(policy), std::forward<VerifierT>(verifier),
                 prompt, how, nobody);
  }

 private:
  generate::priced_models passes_;
  espalier::recurrent_kv compacting_;
  espalier::recurrent_kv truncating_;
  espalier::recurrent_kv draft_kv_;
};

}  // namespace bench
